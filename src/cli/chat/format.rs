//! The chat template of a checkpoint, and the tokens that end a turn.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::vocabulary::Specials;
use super::apart::Apart;
use llama_trace_core::error::{Error, Result};
use llama_trace_engine::generate::chat::{LLAMA2, LLAMA3};
use llama_trace_formats::checkpoint::{Checkpoint, chat_template};
use llama_trace_formats::files::gguf::ENDS;
use llama_trace_formats::tokenizer::Tokenizer;

const HEADERS: [&str; 3] = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"];
/// Size of Llama 2's vocabulary.
const LLAMA2_VOCAB: usize = 32_000;

/// The chat format of a model.
pub(super) struct Format {
    pub(super) template: Arc<Apart>,
    /// Ids that end an answer.
    pub(super) ends: Vec<u32>,
}

/// Returns the chat format of the checkpoint: its own template. A checkpoint without a template gets Llama 3's template
/// if the vocabulary has the header tokens of Llama 3. It gets Llama 2's template if the vocabulary looks like Llama
/// 2's and the model's name is that of a chat model.
///
/// # Errors
/// [`Error::Model`] if the template's files cannot be read, or no template fits.
pub(super) fn find(checkpoint: &Checkpoint, tokenizer: &dyn Tokenizer) -> Result<Format> {
    let files = chat_template::read(checkpoint)?;
    let specials = Specials::of(tokenizer, checkpoint.config.vocab);
    let tokens = BTreeMap::new;
    let (text, template) = if let Some((text, place)) = files.template {
        (text.clone(), Apart::new(text, &place, files.tokens.clone()))
    } else if HEADERS.iter().all(|name| specials.id(name).is_some()) {
        (LLAMA3.into(), Apart::new(LLAMA3.into(), "Llama 3's header format", tokens()))
    } else if is_llama2_chat(checkpoint, tokenizer) {
        (LLAMA2.into(), Apart::new(LLAMA2.into(), "Llama 2's [INST] format", tokens()))
    } else {
        return Err(none(checkpoint, tokenizer));
    };
    // Tokens that end a turn, in addition to the checkpoint's end-of-text ids.
    let written = ENDS.iter().copied().filter(|name| text.contains(name));
    let named = files.tokens.get("eos_token").map(String::as_str);
    let mut ends = checkpoint.eos.clone();
    ends.extend(written.chain(named).filter_map(|name| specials.id(name)));
    ends.sort_unstable();
    ends.dedup();
    Ok(Format { template: Arc::new(template), ends })
}

/// Returns whether this is a Llama 2 chat model. Base and chat models of Llama 2 have the same vocabulary, so the name
/// decides.
fn is_llama2_chat(checkpoint: &Checkpoint, tokenizer: &dyn Tokenizer) -> bool {
    let name = checkpoint.name.to_lowercase();
    let vocabulary =
        tokenizer.vocab_size() == LLAMA2_VOCAB && tokenizer.label(1) == "<s>" && tokenizer.label(2) == "</s>";
    vocabulary && (name.contains("chat") || name.contains("instruct"))
}

fn none(checkpoint: &Checkpoint, tokenizer: &dyn Tokenizer) -> Error {
    let place =
        checkpoint.path.as_ref().map_or_else(|| "the model".into(), |path| path.display().to_string());
    Error::model("this model has no chat format; it may not be made for chats")
        .at(place)
        .expected(
            "chat_template.jinja or a chat_template in tokenizer_config.json; or Llama 3's <|start_header_id|>, \
             <|end_header_id|> and <|eot_id|> in the vocabulary; or Llama 2's 32000 tokens with <s> and </s> and \
             a name with `chat` or `instruct`",
        )
        .found(format!("no template, {} tokens, the name `{}`", tokenizer.vocab_size(), checkpoint.name))
        .next("put a chat_template.jinja beside the model, or let the model continue a text: --prompt")
}
