//! The merges of a tokenizer.json, one by one. The `tokenizers` crate returns only the results, so the merges are
//! repeated here from the same vocabulary and list. Tests compare the two.

use std::cmp::Reverse;
use std::collections::HashMap;

use serde::Deserialize;
use tokenizers::models::bpe::BPE;
use tokenizers::{
    Model, ModelWrapper, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Tokenizer as Inner,
};

use super::{HfTokenizer, guarded};
use crate::files::printable;
use crate::tokenizer::merges::{Merge, Priority, Stretch, Way};
use crate::tokenizer::{Tokenizer, bpe};
use llama_trace_core::error::{Error, Result};

/// How `text` is turned into tokens. `None` if the model does not merge.
pub(super) fn stretches(tokenizer: &HfTokenizer, text: &str, plain: bool) -> Result<Option<Vec<Stretch>>> {
    let inner = tokenizer.inner(plain);
    let ModelWrapper::BPE(model) = inner.get_model() else { return Ok(None) };
    let all = tokenizer.ids(text, plain, !plain)?;
    let wrong = |error: String| {
        Error::prompt("the text cannot be split into tokens")
            .expected("text that the model's vocabulary covers")
            .found(printable(&error))
            .next("leave out --merges")
    };
    let rules = match tokenizer.rules.get() {
        Some(rules) => rules,
        None => {
            let rules = guarded(|| Rules::new(model, tokenizer.by_id)).map_err(wrong)?;
            tokenizer.rules.get_or_init(|| rules)
        }
    };
    let pieces = guarded(|| pieces(inner, text)).map_err(wrong)?;
    let mut stretches = Vec::new();
    for (piece, special) in pieces {
        match special {
            Some(id) => stretches.push(Stretch::token(Way::Special, id, tokenizer.label(id))),
            None => stretches.extend(rules.stretch(&piece, model, tokenizer)),
        }
    }
    let ids: Vec<u32> = stretches.iter().flat_map(|stretch| &stretch.ids).copied().collect();
    // The post-processor's tokens come before and after.
    let before =
        (0..=all.len().saturating_sub(ids.len())).find(|&at| all[at..].starts_with(&ids)).unwrap_or(0);
    let added = |ids: &[u32]| -> Vec<Stretch> {
        ids.iter().map(|&id| Stretch::token(Way::Special, id, tokenizer.label(id))).collect()
    };
    let after = all.get(before + ids.len()..).map(added).unwrap_or_default();
    Ok(Some([added(&all[..before]), stretches, after].concat()))
}

/// The stretches that the model receives, and the added tokens between them.
fn pieces(inner: &Inner, text: &str) -> tokenizers::Result<Vec<(String, Option<u32>)>> {
    let mut cut: PreTokenizedString =
        inner.get_added_vocabulary().extract_and_normalize(inner.get_normalizer(), text);
    if let Some(pre_tokenizer) = inner.get_pre_tokenizer() {
        pre_tokenizer.pre_tokenize(&mut cut)?;
    }
    let splits = cut.get_splits(OffsetReferential::Normalized, OffsetType::Byte);
    let piece = |(piece, _, tokens): (&str, _, &Option<Vec<tokenizers::Token>>)| {
        let special = tokens.as_ref().and_then(|tokens| Some(tokens.first()?.id));
        (piece.to_owned(), special)
    };
    Ok(splits.into_iter().map(piece).collect())
}

/// The merge rules of the crate's model: for a pair of tokens, the rank of its merge and the merged token.
pub(super) struct Rules(HashMap<(u32, u32), (u32, u32)>);

/// The list of merges in a serialised model; the crate does not expose it otherwise.
#[derive(Deserialize)]
struct Serialised {
    merges: Vec<(String, String)>,
}

impl Rules {
    /// The rules of `model`. The rank of a merge is the id of its result if `by_id` is set, or else its position in the
    /// list.
    fn new(model: &BPE, by_id: bool) -> tokenizers::Result<Self> {
        let list: Serialised = serde_json::from_str(&serde_json::to_string(model)?)?;
        let mut merges = HashMap::new();
        for (rank, (left, right)) in (0..).zip(&list.merges) {
            let ids = [left, right, &format!("{left}{right}")].map(|token| model.token_to_id(token));
            if let [Some(left), Some(right), Some(joined)] = ids {
                merges.insert((left, right), (if by_id { joined } else { rank }, joined));
            }
        }
        Ok(Self(merges))
    }

    /// The stretch of one piece. `None` if no part of it is in the vocabulary.
    fn stretch(&self, piece: &str, model: &BPE, tokenizer: &HfTokenizer) -> Option<Stretch> {
        if model.ignore_merges
            && let Some(id) = model.token_to_id(piece)
        {
            return Some(Stretch::token(Way::Whole, id, tokenizer.label(id)));
        }
        let parts = parts(piece, model);
        if parts.is_empty() {
            return None;
        }
        let labels = parts.iter().map(|&id| tokenizer.label(id)).collect();
        let join =
            |left: u32, right: u32| self.0.get(&(left, right)).map(|&(rank, joined)| (Reverse(rank), joined));
        let mut merges = Vec::new();
        let ids = bpe::merge(parts, join, |step| {
            let text = tokenizer.label(step.symbol);
            let priority = Priority::Rank(step.priority.0);
            merges.push(Merge { left: step.left, right: step.right, text, priority });
        });
        Some(Stretch { parts: labels, way: Way::Merged, merges, ids })
    }
}

/// The initial parts: the token of each character, the tokens of its bytes, or the unknown token.
fn parts(piece: &str, model: &BPE) -> Vec<u32> {
    let unknown = model.unk_token.as_ref().and_then(|token| model.token_to_id(token));
    let mut parts = Vec::new();
    // Whether the last part represents unknown characters. The next unknown character may then be added to it.
    let mut fusing = false;
    for character in piece.chars() {
        if let Some(id) = model.token_to_id(character.encode_utf8(&mut [0; 4])) {
            parts.push(id);
            fusing = false;
            continue;
        }
        let bytes = character.to_string();
        let bytes = bytes.bytes().map(|byte| model.token_to_id(&format!("<0x{byte:02X}>")));
        if let Some(bytes) = bytes.collect::<Option<Vec<_>>>().filter(|_| model.byte_fallback) {
            parts.extend(bytes);
            fusing = false;
        } else if let Some(id) = unknown
            && !(fusing && model.fuse_unk)
        {
            parts.push(id);
            fusing = true;
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::merged;
    use super::super::tests::{byte_level, load, pieces};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn merges_are_told_with_their_ranks() {
        let tokenizer = load(&byte_level());
        let stretches = tokenizer.merges("ab a", false).unwrap().unwrap();
        assert_eq!((stretches[0].way, &stretches[0].ids[..]), (Way::Special, &[10][..]));
        assert_eq!(
            (&stretches[1].parts[..], &stretches[1].ids[..]),
            (&["a".to_string(), "b".into()][..], &[9][..])
        );
        assert_eq!(stretches[1].merges[0].priority, Priority::Rank(2));
        assert_eq!((stretches[2].after(1), stretches[2].merges[0].priority), (vec![" a"], Priority::Rank(0)));
    }

    #[test]
    fn a_piece_that_is_a_token_may_be_left_whole() {
        let mut file = byte_level();
        file["model"]["ignore_merges"] = true.into();
        let tokenizer = load(&file);
        let stretches = tokenizer.merges("ab", true).unwrap().unwrap();
        assert_eq!((stretches.len(), stretches[0].way, &stretches[0].ids[..]), (1, Way::Whole, &[9][..]));
    }

    #[test]
    fn special_tokens_as_text() {
        let mut file = byte_level();
        for (id, letter) in (10..).zip(["<", "|", "e", "n", "d", ">"]) {
            file["model"]["vocab"][letter] = id.into();
        }
        file["added_tokens"][0]["id"] = 16.into();
        file["added_tokens"][1]["id"] = 17.into();
        file["post_processor"] = super::super::tests::template("<|begin|>", 16);
        let tokenizer = load(&file);
        assert_eq!(tokenizer.encode("a<|end|>").unwrap(), [16, 1, 17]);
        assert_eq!(tokenizer.encode_plain("a<|end|>").unwrap(), [1, 10, 11, 12, 13, 14, 11, 15]);
        assert_eq!(merged(&tokenizer, "a<|end|>", true), [1, 10, 11, 12, 13, 14, 11, 15]);
        assert_eq!(merged(&tokenizer, "a<|end|>", false), [16, 1, 17]);
    }

    proptest! {
        #[test]
        fn merging_ends_where_the_crate_does(text in "[ab é€🦙<s>/]{0,12}", plain: bool) {
            let known: String = text.chars().filter(|c| "ab €".contains(*c)).collect();
            for (file, text) in [(pieces(), &text), (byte_level(), &known)] {
                let tokenizer = load(&file);
                let expected = if plain { tokenizer.encode_plain(text) } else { tokenizer.encode(text) };
                prop_assert_eq!(merged(&tokenizer, text, plain), expected.unwrap());
            }
        }
    }
}
