//! The draw of a token from a pass's logits, and the draw with other settings. A source answers queries with these
//! types. The logits are those of the run; the model is not run again.

use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

use super::site::Site;
use super::sizes::Filters;

/// The options of the sampler. Two values are equal if all their bits are equal.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Sampling {
    /// Divisor of the logits before softmax; 0 selects the most likely token.
    pub temperature: f32,
    /// Only the `top_k` most likely tokens may be drawn; 0 for no limit.
    pub top_k: usize,
    /// Of those tokens, only the most likely ones may be drawn: as few as are needed for their probabilities to add up
    /// to this share. 1 for no limit.
    pub top_p: f32,
    /// Of those tokens, only those may be drawn whose probability is at least this share of the largest one. 0 for no
    /// limit.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub min_p: f32,
    /// Of those tokens, only the most typical ones may be drawn: as few as are needed for their probabilities to add up
    /// to this share. A token is typical if its surprise, −ln p, is near the entropy. 1 for no limit.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub typical_p: f32,
    /// Divisor of the positive logits of all tokens that the text has already, and factor of their negative logits. 1
    /// for no change.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub repetition_penalty: f32,
    /// The seed of the random numbers. The same seed draws the same text.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self::GREEDY
    }
}

fn is_zero(number: &f32) -> bool {
    *number == 0.0
}

fn one() -> f32 {
    1.0
}

fn is_one(number: &f32) -> bool {
    *number == 1.0
}

/// Asks for the draw after a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DrawAt {
    /// `sampled` of the pass.
    pub site: Site,
    /// The settings to try; `None` for the run's own.
    pub setting: Option<Sampling>,
    /// The number of draws to count. The first one is the draw itself; the others use the random numbers after it.
    pub times: usize,
}

/// A draw, with the tokens that it chose from.
#[derive(Clone, Debug, PartialEq)]
pub struct Draw {
    /// The settings.
    pub setting: Sampling,
    /// V: the number of tokens.
    pub vocab: usize,
    /// The most likely tokens, at most [`Draw::MOST`]. The tokens that may be drawn come first.
    pub tokens: Vec<Weighed>,
    /// The tokens that top-k keeps.
    pub after_k: Kept,
    /// The tokens among `after_k` that top-p keeps.
    pub after_p: Kept,
    /// The tokens among `after_p` that min-p keeps.
    pub after_min_p: Kept,
    /// The tokens among `after_min_p` that typical-p keeps. One of these is drawn.
    pub after_typical_p: Kept,
    /// The drawn token.
    pub drawn: u32,
    /// The random number of the draw, from 0 to 1; `None` at temperature 0.
    pub random: Option<f64>,
    /// The number of draws that were counted.
    pub times: usize,
}

/// A filter of the sampler, in the order of application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Filter {
    /// top-k.
    TopK,
    /// top-p.
    TopP,
    /// min-p.
    MinP,
    /// typical-p.
    TypicalP,
}

/// A token with its logit and probabilities.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weighed {
    /// Its id.
    pub id: u32,
    /// Its logit, after the repetition penalty if there is one.
    pub logit: f32,
    /// Its entry of `probs`: softmax(logits / temperature), or softmax(logits) at temperature 0.
    pub prob: f32,
    /// The filter that removes it. Probabilities that are 0 in float32 count as removed by top-k.
    pub removed_by: Option<Filter>,
    /// The probability of drawing it, its entry of `nucleus`. 0 if it was removed.
    pub share: f32,
    /// How often the counted draws drew it.
    pub count: u32,
}

/// The tokens that are left after a filter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kept {
    /// Their number.
    pub count: usize,
    /// The sum of their probabilities.
    pub sum: f64,
}

impl Draw {
    /// The largest number of tokens in an answer.
    pub const MOST: usize = 1024;

    /// The number of tokens with a probability above 0 in float32, if top-k would keep more tokens than that; then
    /// top-k itself removes none. Otherwise `None`.
    pub fn above_0(&self) -> Option<usize> {
        let most = if self.setting.top_k == 0 { self.vocab } else { self.setting.top_k.min(self.vocab) };
        (self.setting.temperature > 0.0 && self.after_k.count < most).then_some(self.after_k.count)
    }

    /// The tokens that are left after all filters.
    pub fn kept(&self) -> Kept {
        self.after_typical_p
    }

    /// The entry of a token, if it is listed.
    pub fn of(&self, id: u32) -> Option<&Weighed> {
        self.tokens.iter().find(|token| token.id == id)
    }
}

impl Sampling {
    /// The most likely token, without any other option.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        typical_p: 1.0,
        repetition_penalty: 1.0,
        seed: 0,
    };

    /// The stages that the options add to the sampler. At temperature 0 only the repetition penalty has an effect.
    pub fn filters(self) -> Filters {
        let draws = self.temperature != 0.0;
        Filters {
            penalty: self.repetition_penalty != 1.0,
            min_p: draws && self.min_p > 0.0,
            typical_p: draws && self.typical_p < 1.0,
        }
    }

    /// The logit of a token that the text has already, after the repetition penalty.
    pub fn penalized(self, logit: f32) -> f32 {
        if logit < 0.0 { logit * self.repetition_penalty } else { logit / self.repetition_penalty }
    }

    fn bits(self) -> (usize, u64, [u32; 5]) {
        let Self { temperature, top_k, top_p, min_p, typical_p, repetition_penalty, seed } = self;
        (top_k, seed, [temperature, top_p, min_p, typical_p, repetition_penalty].map(f32::to_bits))
    }
}

impl PartialEq for Sampling {
    fn eq(&self, other: &Self) -> bool {
        self.bits() == other.bits()
    }
}

impl Eq for Sampling {}

impl Hash for Sampling {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bits().hash(state);
    }
}
