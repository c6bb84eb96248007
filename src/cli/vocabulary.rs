//! Notes on a vocabulary and its model, for `info` and before a chat.

use std::collections::{BTreeMap, BTreeSet};

use llama_trace_formats::checkpoint::{Checkpoint, chat_template};
use llama_trace_formats::files::gguf::ENDS;
use llama_trace_formats::tokenizer::Tokenizer;

/// Maximum number of names in a line.
const NAMED: usize = 12;

/// The ids of tokens, by the tokens' names. Only tokens whose names begin like those of special tokens: with `<`, `[`
/// or `_`.
pub(super) struct Specials(BTreeMap<String, u32>);

impl Specials {
    pub(super) fn of(tokenizer: &dyn Tokenizer, rows: usize) -> Self {
        let label =
            |id| Some((tokenizer.label(id), id)).filter(|(label, _)| label.starts_with(['<', '[', '_']));
        let ids = tokenizer.vocab_size().max(rows) as u32;
        Self((0..ids).rev().filter_map(label).collect())
    }

    pub(super) fn id(&self, name: &str) -> Option<u32> {
        self.0.get(name).copied()
    }
}

/// Notes on three subjects: how the tokenizer reads its file, the model's rows without a token, and names in the chat
/// template that are not tokens.
pub(super) fn remarks(checkpoint: &Checkpoint, tokenizer: &dyn Tokenizer) -> Vec<String> {
    let mut lines: Vec<String> = tokenizer.note().map(Into::into).into_iter().collect();
    let (tokens, rows) = (tokenizer.vocab_size(), checkpoint.config.vocab);
    if tokens < rows {
        lines.push(format!(
            "{} of the model's {rows} rows have no token, because the vocabulary has only {tokens} tokens: these ids are shown as #id",
            rows - tokens
        ));
    }
    if tokens > rows {
        lines.push(format!(
            "{} of the {tokens} tokens have no row in the model, which has {rows} rows",
            tokens - rows
        ));
    }
    // If the template is missing or broken, the error is reported at the start of a chat.
    let template = chat_template::read(checkpoint).ok().and_then(|files| files.template);
    if let Some((text, _)) = template {
        let specials = Specials::of(tokenizer, rows);
        let mut missing: Vec<&str> =
            written(&text).into_iter().filter(|name| specials.id(name).is_none()).collect();
        let more = missing.len().saturating_sub(NAMED);
        missing.truncate(NAMED);
        if !missing.is_empty() {
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            lines.push(format!(
                "the chat template writes {}{more}, for which there is no token: the model reads it as plain text",
                missing.join(", ")
            ));
        }
    }
    lines
}

/// The names of special tokens in a template's text: those spelt `<|…|>`, and those that end a turn.
fn written(text: &str) -> BTreeSet<&str> {
    let mut names: BTreeSet<&str> = ENDS.into_iter().filter(|name| text.contains(name)).collect();
    // `_<EOT>` contains `<EOT>`.
    if names.contains("_<EOT>") {
        names.remove("<EOT>");
    }
    for (at, _) in text.match_indices("<|") {
        let rest = &text[at..];
        let inside = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '/' | ':' | '.');
        let end = rest[2..].find(|c| !inside(c)).map_or(rest.len(), |end| end + 2);
        if end > 2 && rest[end..].starts_with("|>") {
            names.insert(&rest[..end + 2]);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_a_template() {
        let text =
            "{{ '<|im_start|>' + role }}<|a b|>{{ '<|' + role + '|>' }}</s><|im_start|>_<EOT>[INST]<|x";
        assert_eq!(written(text).into_iter().collect::<Vec<_>>(), ["</s>", "<|im_start|>", "_<EOT>"]);
    }
}
