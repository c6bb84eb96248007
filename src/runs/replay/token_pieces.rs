//! The pieces of tokens, from the tokenizer.

use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::token_logprobs::{Joined, TokenPieces};
use llama_trace_formats::tokenizer::{Priority, Stretch, Tokenizer};

/// The pieces of `ids`, which are all tokens of a pass: the bytes of each token, and also its merges if merging the
/// text gives exactly these ids.
pub(super) fn token_pieces(tokenizer: Option<&dyn Tokenizer>, ids: &[u32]) -> Result<Vec<TokenPieces>> {
    let tokenizer = tokenizer.ok_or_else(|| {
        Error::usage("there is no tokenizer, so the ids are known but not the texts of the tokens")
            .next("give --tokenizer, or a model with one")
    })?;
    let mut stream = tokenizer.stream();
    let mut pieces: Vec<TokenPieces> = ids
        .iter()
        .map(|&id| TokenPieces { bytes: stream.piece(id).bytes, ..TokenPieces::default() })
        .collect();
    let merged = merged(tokenizer, ids, &pieces).unwrap_or_default();
    for (token, joined) in pieces.iter_mut().zip(merged) {
        (token.parts, token.merges) = joined;
    }
    Ok(pieces)
}

type Parts = (Vec<String>, Vec<Joined>);

/// The parts and merges of each token; `None` if merging their text gives other tokens.
fn merged(tokenizer: &dyn Tokenizer, ids: &[u32], pieces: &[TokenPieces]) -> Option<Vec<Parts>> {
    let begins = usize::from(tokenizer.bos().is_some() && ids.first().copied() == tokenizer.bos());
    let mut text = Vec::new();
    for (id, token) in ids.iter().zip(pieces).skip(begins) {
        match token.bytes.is_empty() {
            // A special token is represented by its name.
            true => text.extend(tokenizer.label(*id).into_bytes()),
            false => text.extend(&token.bytes),
        }
    }
    let stretches = tokenizer.merges(&String::from_utf8(text).ok()?, false).ok()??;
    if !stretches.iter().flat_map(|stretch| &stretch.ids).eq(ids) {
        return None;
    }
    Some(stretches.iter().flat_map(of_stretch).collect())
}

/// The parts and merges of each token of a stretch.
fn of_stretch(stretch: &Stretch) -> Vec<Parts> {
    let mut trees: Vec<Option<(String, Parts)>> =
        stretch.parts.iter().map(|part| Some((part.clone(), (vec![part.clone()], Vec::new())))).collect();
    for merge in &stretch.merges {
        let taken = [merge.left, merge.right].map(|at| trees.get_mut(at).and_then(Option::take));
        let [Some((left, mut parts)), Some((right, others))] = taken else { continue };
        parts.0.extend(others.0);
        parts.1.extend(others.1);
        let by = match merge.priority {
            Priority::Rank(rank) => format!("rank {rank}"),
            Priority::Score(score) => format!("score {score}"),
        };
        parts.1.push(Joined { left, right, by });
        trees[merge.left] = Some((merge.text.clone(), parts));
    }
    let trees: Vec<Parts> = trees.into_iter().flatten().map(|(_, parts)| parts).collect();
    // If a piece is not in the vocabulary, it becomes several byte tokens. The parts then cannot be assigned to tokens.
    if trees.len() == stretch.ids.len() { trees } else { vec![Parts::default(); stretch.ids.len()] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llama_trace_formats::tokenizer::{Merge, Way};

    #[test]
    fn a_token_has_its_own_merges() {
        let merge = |left, right, text: &str, rank| Merge {
            left,
            right,
            text: text.into(),
            priority: Priority::Rank(rank),
        };
        let stretch = Stretch {
            parts: ["a", "b", "c", "d"].map(String::from).into(),
            way: Way::Merged,
            merges: vec![merge(2, 3, "cd", 1), merge(0, 1, "ab", 5)],
            ids: vec![7, 8],
        };
        let joined = |left: &str, right: &str, by: &str| Joined {
            left: left.into(),
            right: right.into(),
            by: by.into(),
        };
        let parts = |parts: [&str; 2]| parts.map(String::from).to_vec();
        let expected = [
            (parts(["a", "b"]), vec![joined("a", "b", "rank 5")]),
            (parts(["c", "d"]), vec![joined("c", "d", "rank 1")]),
        ];
        assert_eq!(of_stretch(&stretch), expected);
        let bytes = Stretch { ids: vec![1, 2, 3], ..stretch };
        assert_eq!(of_stretch(&bytes), vec![Parts::default(); 3]);
    }
}
