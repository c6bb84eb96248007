//! What a sampler draws from a pass's logits, and what it would draw in another setting: the data that a source answers
//! with. The logits are those of the run; the model is not run again.

use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

use super::site::Site;

/// How a token is drawn, under the names of the options. Two are equal where their bits are.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Sampling {
    /// Logits are divided by this before softmax; 0 means always the most likely token.
    pub temperature: f32,
    /// Only the `top_k` most likely tokens may be drawn; 0 for no limit.
    pub top_k: usize,
    /// Of those, only the shortest run of most likely tokens that has this share of their probability; 1 for no limit.
    pub top_p: f32,
    /// Where the random numbers start. The same seed draws the same text.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 }
    }
}

/// Asks what is drawn after a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DrawAt {
    /// `sampled` of the pass.
    pub site: Site,
    /// The setting that is tried; none for the run's own.
    pub setting: Option<Sampling>,
}

/// What is drawn after a pass, and from what.
#[derive(Clone, Debug, PartialEq)]
pub struct Draw {
    /// The setting.
    pub setting: Sampling,
    /// V: how many tokens there are.
    pub vocab: usize,
    /// The likeliest tokens, those first that may be drawn; at most [`Draw::MOST`].
    pub tokens: Vec<Weighed>,
    /// What top-k leaves.
    pub after_k: Kept,
    /// What top-p leaves of that: the tokens that may be drawn.
    pub after_p: Kept,
    /// The token that is drawn.
    pub drawn: u32,
    /// The random number, from 0 to 1, that it is drawn by; none at temperature 0.
    pub random: Option<f64>,
}

/// A token and what the sampler makes of its logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weighed {
    /// Its id.
    pub id: u32,
    /// Its logit.
    pub logit: f32,
    /// softmax(logits / temperature), at temperature 0 softmax(logits): its part of `probs`.
    pub prob: f32,
    /// Whether top-k leaves it.
    pub in_k: bool,
    /// With what probability it is drawn: its part of `nucleus`. 0 where it was cut.
    pub share: f32,
}

/// Tokens that stay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kept {
    /// How many.
    pub count: usize,
    /// The sum of their probabilities.
    pub sum: f64,
}

impl Draw {
    /// Tokens that are told at most.
    pub const MOST: usize = 1024;

    /// How many tokens have a probability above 0 in float32, where these are fewer than top-k has room for: it is not
    /// top-k that leaves the others out.
    pub fn above_0(&self) -> Option<usize> {
        let most = if self.setting.top_k == 0 { self.vocab } else { self.setting.top_k.min(self.vocab) };
        (self.setting.temperature > 0.0 && self.after_k.count < most).then_some(self.after_k.count)
    }

    /// What is told of a token.
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
