//! The draw of a token from a pass's logits, and the draw with other settings. A source answers queries with these
//! types. The logits are those of the run; the model is not run again.

use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

use super::site::Site;

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
    /// The seed of the random numbers. The same seed draws the same text.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 }
    }
}

/// Asks for the draw after a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DrawAt {
    /// `sampled` of the pass.
    pub site: Site,
    /// The settings to try; `None` for the run's own.
    pub setting: Option<Sampling>,
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
    /// The tokens among `after_k` that top-p keeps. One of these is drawn.
    pub after_p: Kept,
    /// The drawn token.
    pub drawn: u32,
    /// The random number of the draw, from 0 to 1; `None` at temperature 0.
    pub random: Option<f64>,
}

/// A token with its logit and probabilities.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weighed {
    /// Its id.
    pub id: u32,
    /// Its logit.
    pub logit: f32,
    /// Its entry of `probs`: softmax(logits / temperature), or softmax(logits) at temperature 0.
    pub prob: f32,
    /// Whether top-k keeps it.
    pub in_k: bool,
    /// The probability of drawing it, its entry of `nucleus`. 0 if it was removed.
    pub share: f32,
}

/// The tokens that a filter keeps.
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

    /// The entry of a token, if it is listed.
    pub fn of(&self, id: u32) -> Option<&Weighed> {
        self.tokens.iter().find(|token| token.id == id)
    }
}

impl Sampling {
    fn bits(self) -> (u32, usize, u32, u64) {
        (self.temperature.to_bits(), self.top_k, self.top_p.to_bits(), self.seed)
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
