//! What the model would answer after each layer, and what each part of it added to the answer: the data that a source
//! answers with. What a head makes of an unfinished residual is the logit lens (nostalgebraist, "interpreting GPT: the
//! logit lens", 2020); splitting a difference of logits into what each head and each FFN wrote into the residual stream
//! is direct logit attribution (Elhage et al., "A Mathematical Framework for Transformer Circuits", 2021).

use std::fmt;
use std::ops::Range;

use super::site::Site;

/// Asks what the final norm and the head make of a layer's residual.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LensAt {
    /// The residual: `ffn_residual` of the layer.
    pub site: Site,
    /// Tokens of the pass.
    pub tokens: Range<usize>,
    /// How many of the likeliest tokens are told.
    pub top: usize,
}

/// A token of the vocabulary, as a row of logits has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Its id.
    pub id: u32,
    /// Its logit.
    pub logit: f32,
    /// Its share of 1, at temperature 1.
    pub prob: f32,
    /// Its place among all tokens, from 1, the likeliest; of equals the lower id comes first.
    pub rank: usize,
}

/// What a residual says about the token that comes next.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// The likeliest tokens, the likeliest first.
    pub top: Vec<Candidate>,
    /// The token that is the likeliest after the last layer.
    pub answer: Candidate,
}

/// Asks what each part of the model added to the logit of one token more than to that of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttributionAt {
    /// The logits.
    pub site: Site,
    /// Token of the pass, T.
    pub token: usize,
    /// The id whose logit it is; none for the likeliest.
    pub id: Option<u32>,
    /// The id that it is compared with; none for the likeliest of the others.
    pub against: Option<u32>,
}

/// A difference of two logits, as the sum of what was added to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Attribution {
    /// The id whose logit it is.
    pub id: u32,
    /// The id that it is compared with.
    pub against: u32,
    /// Logit of the one − logit of the other, as they were recorded.
    pub difference: f64,
    /// The parts, in the order of the pass; they sum to the difference.
    pub parts: Vec<Share>,
}

/// What one part added.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Which part.
    pub part: Contributor,
    /// Added to the difference, in units of logits.
    pub value: f64,
}

/// What writes into the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Contributor {
    /// The row of the embedding table.
    Embedding,
    /// A head: its columns of wo times its attn_heads.
    Head {
        /// Number of the layer.
        layer: usize,
        /// Number of the query head.
        head: usize,
    },
    /// The bias of wo, where the model has one.
    Bias {
        /// Number of the layer.
        layer: usize,
    },
    /// The feed-forward network, with its bias.
    Ffn {
        /// Number of the layer.
        layer: usize,
    },
    /// What numbers of finite length lost or added on the way, and in int8 what quantising did.
    Rounding,
}

impl Attribution {
    /// The sum of all parts. It is the difference but for what float64 rounds: 1e-9 of the parts' sizes together.
    pub fn sum(&self) -> f64 {
        self.parts.iter().map(|share| share.value).sum()
    }
}

impl fmt::Display for Contributor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedding => f.pad("embedding"),
            Self::Head { layer, head } => f.pad(&format!("L{layer}/h{head}")),
            Self::Bias { layer } => f.pad(&format!("L{layer}/bias")),
            Self::Ffn { layer } => f.pad(&format!("L{layer}/ffn")),
            Self::Rounding => f.pad("rounding"),
        }
    }
}
