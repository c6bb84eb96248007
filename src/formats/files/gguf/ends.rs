//! The end-of-generation and control tokens of a GGUF file's vocabulary, determined as in llama.cpp: by their keys, or
//! without a key by their spelling.

use super::Metadata;
use llama_trace_core::error::Result;

/// Tokens that end a text or a turn, by their text. This is llama.cpp's list of `special_eog_ids`. A turn of a chat
/// also ends at each token in this list that the chat template writes.
pub const ENDS: [&str; 22] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Fill-in-the-middle tokens: the name in their key, whether a text ends there, and their spellings if there is no key.
const FILL: [(&str, bool, &[&str]); 6] = [
    (
        "fim_pre",
        false,
        &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ],
    ),
    (
        "fim_suf",
        false,
        &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ],
    ),
    (
        "fim_mid",
        false,
        &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ],
    ),
    ("fim_pad", true, &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"]),
    ("fim_rep", true, &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"]),
    ("fim_sep", true, &["<|file_sep|>"]),
];
/// Tokens that are shown as text, whatever their type.
const SHOWN: [&str; 4] = ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// The token types in llama.cpp, which may override the types in the file.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    /// End-of-generation tokens: first those from keys, then the others in the order of their ids.
    pub(crate) ids: Vec<u32>,
    /// Control tokens, which are not text.
    pub(crate) control: Vec<u32>,
    /// User-defined tokens: found verbatim in a text, and shown as text.
    pub(crate) user: Vec<u32>,
    /// Normal tokens.
    pub(crate) normal: Vec<u32>,
}

impl Metadata<'_> {
    /// The id of the special token with this name (`bos`, `eos`, …) from its key. If the key is missing or out of
    /// range, the usual id of vocabularies of this kind.
    ///
    /// # Errors
    /// Returns [`llama_trace_core::error::Error::Model`] if the key holds no id.
    pub(crate) fn special(&self, name: &str) -> Result<Option<u32>> {
        let count = self.texts("tokenizer.ggml.tokens")?.map_or(usize::MAX, super::List::len);
        let inside = |id: &u32| (*id as usize) < count;
        let usual = match (self.text("tokenizer.ggml.model")?, name) {
            (Some("llama"), "unknown") => Some(0),
            (Some("llama"), "bos") => Some(1),
            (Some("llama"), "eos") => Some(2),
            (Some("gpt2"), "bos" | "eos") => match self.text("tokenizer.ggml.pre")? {
                Some("chatglm-bpe" | "glm4" | "glm5") if name == "bos" => None,
                _ => Some(11),
            },
            _ => None,
        };
        let named = self.id(&format!("tokenizer.ggml.{name}_token_id"))?;
        Ok(named.filter(inside).or(usual.filter(inside)))
    }

    /// The tokens to which llama.cpp gives another type than the file.
    ///
    /// # Errors
    /// The errors of [`Metadata::special`].
    pub(crate) fn ends(&self) -> Result<Ends> {
        let mut ends = Ends::default();
        for name in ["eos", "eot", "eom"] {
            let id = self.special(name)?;
            ends.ids.extend(id.filter(|id| !ends.ids.contains(id)));
        }
        let Some(tokens) = self.texts("tokenizer.ggml.tokens")? else { return Ok(ends) };
        let spelt = || FILL.iter().flat_map(|(_, _, texts)| texts.iter()).chain(&ENDS).chain(&SHOWN);
        let known: std::collections::HashSet<&[u8]> = spelt().map(|text| text.as_bytes()).collect();
        let found: Vec<(u32, &[u8])> =
            (0..).zip(tokens.texts()).filter(|(_, text)| known.contains(text)).collect();
        let id_of = |text: &str| found.iter().find(|(_, known)| *known == text.as_bytes()).map(|(id, _)| *id);
        let mut more = Vec::new();
        for (name, ends_text, texts) in FILL {
            let id = match self.special(name)? {
                Some(id) => Some(id),
                None => {
                    let id = texts.iter().find_map(|text| id_of(text));
                    ends.control.extend(id);
                    id
                }
            };
            more.extend(id.filter(|_| ends_text));
        }
        let by_text: Vec<u32> = ENDS.iter().filter_map(|text| id_of(text)).collect();
        ends.control.extend(&by_text);
        more.extend(by_text);
        more.sort_unstable();
        more.dedup();
        ends.ids.extend(more.iter().filter(|id| !ends.ids.contains(id)).copied().collect::<Vec<_>>());
        ends.user.extend(SHOWN.iter().filter_map(|text| id_of(text)));
        // In formats with these tokens, `<|end|>` ends a message but not the turn.
        let has = |text: &str| id_of(text).is_some_and(|id| ends.ids.contains(&id));
        let (call, end) = (has("<|call|>") || has("<|calls|>"), id_of("<|end|>").filter(|_| has("<|end|>")));
        if call && (has("<|return|>") || has("<|flush|>")) {
            ends.user.extend(end);
        }
        // In Gemma 4's format, `</s>` is text.
        if has("<|tool_response>") {
            ends.normal.extend(id_of("</s>").filter(|_| has("</s>")));
        }
        let Ends { ids, user, normal, .. } = &mut ends;
        ids.retain(|id| !(normal.contains(id) || Some(*id) == end && user.contains(id)));
        Ok(ends)
    }
}
