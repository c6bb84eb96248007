//! The pieces of a token, and the probability that the model gave it before reading it. A source answers queries with
//! these types.

use std::ops::Range;

use super::site::Site;

/// Asks for the probabilities that the model gave the tokens of a pass before reading them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TokenLogprobsAt {
    /// `logits` of the pass that reads the tokens.
    pub site: Site,
    /// The tokens of the pass.
    pub tokens: Range<usize>,
}

/// The model's probability of a token, from the logits at the previous position.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// log_softmax(logits)\[id\], at temperature 1: 0 means certain.
    pub log_prob: f32,
    /// Its rank among all tokens; 1 is the most likely. Equal ones are ordered by id.
    pub rank: usize,
    /// The most likely ids at that position, at most [`LIKELIEST`], each with its log_softmax(logits)\[id\].
    pub likeliest: Vec<(u32, f32)>,
}

/// The number of most likely tokens listed in addition to the one that was read.
pub const LIKELIEST: usize = 8;

/// The pieces of a token of a pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenPieces {
    /// The bytes that it adds to the text; empty for a special token.
    pub bytes: Vec<u8>,
    /// The pieces it was merged from: characters or bytes, as labels; empty if they are unknown.
    pub parts: Vec<String>,
    /// The merges that formed it, in order.
    pub merges: Vec<Joined>,
}

/// A merge of two neighbours.
#[derive(Clone, Debug, PartialEq)]
pub struct Joined {
    /// The left one.
    pub left: String,
    /// The right one.
    pub right: String,
    /// The reason for its order: "rank 12" or "score -3", from the tokenizer's file.
    pub by: String,
}

impl TokenLogprob {
    /// The entry of the token `id` in `logits` (V); `None` if there is no such id.
    pub fn of(logits: &[f32], id: u32) -> Option<Self> {
        let own = *logits.get(id as usize)?;
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - f64::from(max)).exp()).sum();
        let before = |(other, logit): &(u32, &f32)| **logit > own || **logit == own && *other < id;
        let log_prob = |logit: f32| (f64::from(logit) - f64::from(max) - sum.ln()) as f32;
        let mut likeliest: Vec<(u32, f32)> = Vec::with_capacity(LIKELIEST + 1);
        for (id, &logit) in (0..).zip(logits) {
            if likeliest.len() < LIKELIEST || likeliest.last().is_some_and(|last| logit > last.1) {
                let at = likeliest.partition_point(|other| other.1 >= logit);
                likeliest.insert(at, (id, logit));
                likeliest.truncate(LIKELIEST);
            }
        }
        let likeliest = likeliest.into_iter().map(|(id, logit)| (id, log_prob(logit))).collect();
        let rank = (0..).zip(logits).filter(before).count() + 1;
        Some(Self { log_prob: log_prob(own), rank, likeliest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_probability_is_that_of_the_softmax() {
        let logits: Vec<f32> = [0.5_f32, 0.25, 0.125, 0.125].iter().map(|p| p.ln() + 7.0).collect();
        for (id, prob, rank) in [(0, 0.5_f32, 1), (1, 0.25, 2), (2, 0.125, 3), (3, 0.125, 4)] {
            let found = TokenLogprob::of(&logits, id).unwrap();
            assert!((found.log_prob - prob.ln()).abs() < 1e-6, "{id}: {found:?}");
            assert_eq!(found.rank, rank, "of equals the lower id comes first");
            assert_eq!(found.likeliest.iter().map(|likely| likely.0).collect::<Vec<_>>(), [0, 1, 2, 3]);
            assert_eq!(found.likeliest[id as usize].1, found.log_prob);
        }
        // The logarithm is correct even if the probability itself is too small for float32.
        assert_eq!(TokenLogprob::of(&[0.0, -500.0], 1).unwrap().log_prob, -500.0);
        assert_eq!(TokenLogprob::of(&logits, 4), None);
        let rising: Vec<f32> = (0..20).map(|id| id as f32).collect();
        let ids: Vec<u32> =
            TokenLogprob::of(&rising, 3).unwrap().likeliest.iter().map(|likely| likely.0).collect();
        assert_eq!(ids, [19, 18, 17, 16, 15, 14, 13, 12]);
    }
}
