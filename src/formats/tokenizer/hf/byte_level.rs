//! GPT-2's byte-level BPE, built from its parts, for files with a vocabulary but no tokenizer.json.

use serde_json::{Value, json};
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::{AddedToken, PostProcessorWrapper, PreTokenizerWrapper};

use super::check::Checked;
use super::decoder::{ALPHABET, Decoder};
use super::sizes::Growth;
use super::{HfTokenizer, guarded};
use crate::files::printable;
use llama_trace_core::error::{Error, Result};

/// The pre-tokenization: how a text is split into pieces before merging. Tokens never cross the pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tokenizer) enum Cut {
    /// GPT-2: words with the space before them, numbers, runs of symbols.
    Gpt2,
    /// SmolLM: like GPT-2, but every digit is separate.
    SmolLm,
    /// Llama 3: numbers in groups of three, English contractions in upper and lower case.
    Llama3,
    /// Qwen2: like Llama 3, but every digit is separate.
    Qwen2,
    /// These expressions, one after the other. Every match is a piece, and so is the text between matches.
    Expressions(&'static [&'static str]),
}

impl Cut {
    /// The corresponding `pre_tokenizer` of a tokenizer.json.
    pub(super) fn section(self) -> Value {
        let byte_level = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex});
        let split = |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
        let expression = |numbers: &str| {
            let regex = [
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
                r"[^\r\n\p{L}\p{N}]?\p{L}+",
                numbers,
                r" ?[^\s\p{L}\p{N}]+[\r\n]*",
                r"\s*[\r\n]+",
                r"\s+(?!\S)",
                r"\s+",
            ];
            split(&regex.join("|"))
        };
        let parts = match self {
            Self::Gpt2 => vec![byte_level(true)],
            Self::SmolLm => vec![json!({"type": "Digits", "individual_digits": true}), byte_level(true)],
            Self::Llama3 => vec![expression(r"\p{N}{1,3}"), byte_level(false)],
            Self::Qwen2 => vec![expression(r"\p{N}"), byte_level(false)],
            Self::Expressions(all) => {
                all.iter().map(|regex| split(regex)).chain([byte_level(false)]).collect()
            }
        };
        json!({"type": "Sequence", "pretokenizers": parts})
    }

    /// Its expressions in order, without GPT-2's, which the crate contains.
    pub(super) fn expressions(self) -> Vec<String> {
        let section = self.section();
        let parts = section["pretokenizers"].as_array().into_iter().flatten();
        parts.filter_map(|part| part["pattern"]["Regex"].as_str().map(str::to_owned)).collect()
    }
}

/// A byte-level BPE.
pub(in crate::tokenizer) struct ByteLevel {
    /// The tokens by id, spelt in GPT-2's byte alphabet.
    pub(in crate::tokenizer) tokens: Vec<String>,
    /// The merges in order of priority.
    pub(in crate::tokenizer) merges: Merges,
    /// Whether the rank of a merge is the id of its result, not its position in the list.
    pub(in crate::tokenizer) by_id: bool,
    /// Ids of tokens that are found verbatim in the text before it is split.
    pub(in crate::tokenizer) added: Vec<u32>,
    /// Ids of special tokens, which are found in the same way but are not text: beginning, end, …
    pub(in crate::tokenizer) special: Vec<u32>,
    /// The pre-tokenization.
    pub(in crate::tokenizer) cut: Cut,
    /// Llama 3's rule: a piece that is a whole token is not built by merges.
    pub(in crate::tokenizer) whole: bool,
    /// The token that encoding adds before a text.
    pub(in crate::tokenizer) before: Option<u32>,
    /// The token that encoding adds after a text.
    pub(in crate::tokenizer) after: Option<u32>,
    /// The tokens that end a text.
    pub(in crate::tokenizer) ends: Vec<u32>,
}

/// `bytes` in GPT-2's alphabet.
pub(in crate::tokenizer) fn spelt(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| ALPHABET[usize::from(byte)]).collect()
}

impl ByteLevel {
    /// Builds the tokenizer from these parts, found at `place`.
    ///
    /// # Errors
    /// Returns [`Error::Model`] if a merge or a special token is not among the tokens.
    pub(in crate::tokenizer) fn build(self, place: &str) -> Result<HfTokenizer> {
        let wrong = |found: String| {
            Error::model("the vocabulary is not valid")
                .at(place)
                .expected("tokens, and merges of two tokens into a third")
                .found(printable(&found))
                .next(
                    "fetch the file again, give another one with --tokenizer, or run the model on token ids",
                )
        };
        let around = |id: Option<u32>| {
            let name = |id: u32| self.tokens.get(id as usize).map(|name| (name.as_str(), id));
            let named =
                id.map(|id| name(id).ok_or_else(|| wrong("a special token outside the vocabulary".into())));
            named.transpose()
        };
        let template = template(around(self.before)?, around(self.after)?);
        let added = |ids: &[u32], special: bool| -> Option<Vec<AddedToken>> {
            let name = |id: &u32| self.tokens.get(*id as usize);
            ids.iter().map(|id| Some(AddedToken::from(name(id)?, special).normalized(false))).collect()
        };
        let tokens = added(&self.added, false).zip(added(&self.special, true));
        let (plain, special) = tokens.ok_or_else(|| wrong("an id outside the vocabulary".into()))?;
        let ids = self.tokens.len() as u32;
        let pre_tokenizer: PreTokenizerWrapper = from_section(self.cut.section());
        let vocab: Vocab = self.tokens.into_iter().zip(0..).collect();
        let covered = ALPHABET.iter().all(|letter| vocab.contains_key(&*letter.encode_utf8(&mut [0; 4])));
        let checked = Checked {
            decoder: Decoder::ByteLevel,
            drops_unknown: !covered,
            ids,
            growth: Growth::NONE,
            cuts_as_gpt2: false,
        };
        let builder = BPE::builder().vocab_and_merges(vocab, self.merges).ignore_merges(self.whole);
        let inner = guarded(|| {
            let mut inner = tokenizers::Tokenizer::new(builder.build()?);
            inner.with_pre_tokenizer(Some(pre_tokenizer));
            inner.with_post_processor(Some(from_section::<PostProcessorWrapper>(template)));
            inner.add_tokens(plain)?;
            inner.add_special_tokens(special)?;
            Ok(inner)
        });
        let inner = inner.map_err(wrong)?;
        let made = HfTokenizer::new(inner, checked).map_err(wrong)?;
        Ok(HfTokenizer { by_id: self.by_id, ends: self.ends, ..made })
    }
}

/// The `post_processor` that adds `before` and `after` to a text.
pub(super) fn template(before: Option<(&str, u32)>, after: Option<(&str, u32)>) -> Value {
    let mut tokens = serde_json::Map::new();
    let mut piece = |token: Option<(&str, u32)>| {
        token.map(|(name, id)| {
            tokens.insert(name.into(), json!({"id": name, "ids": [id], "tokens": [name]}));
            json!({"SpecialToken": {"id": name, "type_id": 0}})
        })
    };
    let (before, after) = (piece(before), piece(after));
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let single: Vec<Value> = before.into_iter().chain([text]).chain(after).collect();
    json!({"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": tokens})
}

/// A component of the crate's tokenizer, built from a section of a tokenizer.json that the code above writes.
fn from_section<T: serde::de::DeserializeOwned>(section: Value) -> T {
    serde_json::from_value(section).unwrap_or_else(|error| unreachable!("this section is valid: {error}"))
}

#[cfg(test)]
mod tests {
    use super::super::super::Tokenizer;
    use super::super::super::tests::decode;
    use super::*;

    fn parts(cut: Cut) -> ByteLevel {
        let tokens = ["a", "b", "1", "Ġ", "'", "S", "ab", "11", "aba", "<|begin|>", "<|end|>", "<user>"];
        let merges = [("a", "b"), ("1", "1")].map(|(a, b)| (a.into(), b.into()));
        ByteLevel {
            tokens: tokens.map(String::from).into(),
            merges: merges.into(),
            by_id: false,
            added: vec![11],
            special: vec![9, 10],
            cut,
            whole: false,
            before: Some(9),
            after: None,
            ends: vec![10],
        }
    }

    #[test]
    fn added_tokens_are_found_before_the_text_is_cut() {
        let tokenizer = parts(Cut::Llama3).build("test").unwrap();
        let ids = tokenizer.encode("ab<user> a<|end|>").unwrap();
        assert_eq!(ids, [9, 6, 11, 3, 0, 10]);
        assert_eq!(decode(&tokenizer, &ids), "ab<user> a");
        assert_eq!((tokenizer.bos(), tokenizer.vocab_size(), tokenizer.ends()), (Some(9), 12, vec![10]));
    }

    #[test]
    fn a_whole_piece_that_is_a_token_is_not_merged() {
        let ids =
            |whole| ByteLevel { whole, ..parts(Cut::Llama3) }.build("test").unwrap().encode("aba").unwrap();
        assert_eq!(ids(false), [9, 6, 0]);
        assert_eq!(ids(true), [9, 8]);
    }

    #[test]
    fn numbers_are_cut_by_their_own_rule() {
        let ids = |cut, text| parts(cut).build("test").unwrap().encode(text).unwrap();
        assert_eq!(ids(Cut::Gpt2, "1111"), [9, 7, 7]);
        assert_eq!(ids(Cut::Llama3, "1111"), [9, 7, 2, 2]);
        assert_eq!(ids(Cut::Qwen2, "11"), [9, 2, 2]);
        assert_eq!(ids(Cut::SmolLm, "11"), [9, 2, 2]);
    }

    #[test]
    fn tokens_that_are_not_there_are_errors() {
        let broken = |change: &dyn Fn(&mut ByteLevel)| {
            let mut parts = parts(Cut::Gpt2);
            change(&mut parts);
            parts.build("test").err().unwrap().to_string()
        };
        assert!(broken(&|parts| parts.before = Some(99)).contains("outside the vocabulary"));
        assert!(broken(&|parts| parts.special.push(99)).contains("outside the vocabulary"));
        assert!(broken(&|parts| parts.merges.push(("a".into(), "x".into()))).contains('x'));
    }
}
