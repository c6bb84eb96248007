//! Converts a conversation to the ids that the model reads.

use super::Message;
use llama_trace_core::error::Result;
use llama_trace_formats::tokenizer::{Quoted, Tokenizer, check_length};

/// Returns the ids of the text that `render` makes of `messages`, up to the beginning of the model's answer. `context`
/// is the model's context in tokens. `render` is [`super::Template::render`], or the same in a separate process.
///
/// Special tokens that the template writes become tokens. Their names inside a message stay text. Only this differs
/// from `apply_chat_template` in transformers, where a user can end a turn by typing `<|eot_id|>`.
///
/// # Errors
/// The errors of `render`, [`check_length`] and [`Tokenizer::encode`].
pub fn prompt(
    render: impl Fn(&[Message]) -> Result<String>,
    tokenizer: &dyn Tokenizer,
    messages: &[Message],
    context: usize,
) -> Result<Vec<u32>> {
    let said: Vec<&str> = messages.iter().map(|message| &*message.content).collect();
    // Checks the length before any other work.
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
