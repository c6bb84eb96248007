//! From a conversation to the ids that the model reads.

use super::{Message, Template};
use crate::error::Result;
use crate::tokenizer::{Quoted, Tokenizer};

/// The ids of the text that `template` makes of `messages`, up to where the model's next answer begins.
///
/// The special tokens that the template writes are tokens; their names in what somebody said are text. This
/// is the one difference from `apply_chat_template` in transformers, with which a user ends a turn by
/// typing `<|eot_id|>`.
///
/// # Errors
/// As [`Template::render`] and [`Tokenizer::encode`].
pub fn prompt(template: &Template, tokenizer: &dyn Tokenizer, messages: &[Message]) -> Result<Vec<u32>> {
    let said: Vec<&str> = messages.iter().map(|message| &*message.content).collect();
    let Some(quoted) = Quoted::new(tokenizer, &said) else {
        return tokenizer.encode_marked(&template.render(messages)?);
    };
    let quote = |message: &Message| Message { role: message.role, content: quoted.quote(&message.content) };
    let messages: Vec<_> = messages.iter().map(quote).collect();
    quoted.encode(&template.render(&messages)?)
}
