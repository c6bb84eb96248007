//! Prompts as ids.

use llama_trace_core::error::{Error, Result};
use llama_trace_formats::tokenizer::{self, Tokenizer};

/// The prompt of a sequence.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// The text as it was given; none if the prompt was given as ids.
    pub text: Option<String>,
    /// The ids.
    pub ids: Vec<u32>,
    /// Where the prompt was given (its file and line, or the number of its option), if there may be several
    /// prompts.
    pub place: Option<String>,
}

/// The ids of a text, for a model whose context has `context` tokens.
///
/// # Errors
/// The error of `tokenizer`, and [`Error::Prompt`] if the text is empty, too long or has no tokens.
pub fn encode(text: &str, tokenizer: Result<&dyn Tokenizer>, context: usize) -> Result<Vec<u32>> {
    let tokenizer = tokenizer?;
    if text.is_empty() && tokenizer.bos().is_none() {
        return Err(Error::prompt(
            "the prompt is empty, and this model has no beginning-of-text token to start from",
        )
        .expected("at least one token")
        .next("give a prompt, or ids with --ids"));
    }
    tokenizer::check_length(tokenizer, text.len(), Some(context))?;
    tokenizer.encode(text)
}

/// The ids of a part of a text. Tokenizers that put a space before a text get the part without its own space.
///
/// # Errors
/// [`Error::Prompt`] if the text is too long or has no tokens.
pub fn encode_part(text: &str, tokenizer: &dyn Tokenizer) -> Result<Vec<u32>> {
    tokenizer::check_length(tokenizer, text.len(), None)?;
    let whole = tokenizer.encode_marked(text)?;
    let says = |ids: &[u32]| ids.iter().map(|&id| tokenizer.label(id)).collect::<String>() == text;
    if says(&whole) {
        return Ok(whole);
    }
    if let Some(rest) = text.strip_prefix(' ').filter(|rest| !rest.is_empty()) {
        let ids = tokenizer.encode_marked(rest)?;
        if says(&ids) {
            return Ok(ids);
        }
    }
    let token = (0..tokenizer.vocab_size() as u32).find(|&id| says(&[id]));
    Ok(token.map_or(whole, |id| vec![id]))
}

/// The error for a text prompt when the model has no tokenizer.
pub fn no_tokenizer() -> Error {
    Error::prompt("this model has no tokenizer, so it cannot read a text")
        .expected(
            "a tokenizer in or beside the model (tokenizer.json, tokenizer.model, or tokenizer.bin for a .bin), or --tokenizer FILE",
        )
        .found("none")
        .next("give a tokenizer, or the prompt as token ids: --ids 1,403,407")
}
