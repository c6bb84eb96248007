//! From a conversation to the ids that the model reads.

use super::Message;
use llama_trace_core::error::Result;
use llama_trace_formats::tokenizer::{Quoted, Tokenizer, check_length};

/// The ids of the text that `render` makes of `messages`, up to where the answer of a model with a context of so
/// many tokens begins. `render` is [`super::Template::render`], or that in a process of its own.
///
/// The special tokens that the template writes are tokens; their names in what somebody said are text. This
/// is the one difference from `apply_chat_template` in transformers, with which a user ends a turn by
/// typing `<|eot_id|>`.
///
/// # Errors
/// As `render`, [`check_length`] and [`Tokenizer::encode`].
pub fn prompt(
    render: impl Fn(&[Message]) -> Result<String>,
    tokenizer: &dyn Tokenizer,
    messages: &[Message],
    context: usize,
) -> Result<Vec<u32>> {
    let said: Vec<&str> = messages.iter().map(|message| &*message.content).collect();
    // Before anything is made of them.
    check_length(tokenizer, said.iter().map(|text| text.len()).sum(), Some(context))?;
    let render = |messages: &[Message]| {
        let text = render(messages)?;
        check_length(tokenizer, text.len(), Some(context))?;
        Ok(text)
    };
    let Some(quoted) = Quoted::new(tokenizer, &said) else {
        return tokenizer.encode_marked(&render(messages)?);
    };
    let quote = |message: &Message| Message { role: message.role, content: quoted.quote(&message.content) };
    let messages: Vec<_> = messages.iter().map(quote).collect();
    quoted.encode(&render(&messages)?)
}
