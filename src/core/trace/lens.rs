//! The model's prediction after each layer, and the contribution of each part of the model to the prediction. A source
//! answers queries with these types. The logit lens applies the output head to the residual stream after an earlier
//! layer (nostalgebraist, "interpreting GPT: the logit lens", 2020). Direct logit attribution splits a difference of
//! logits into the contributions that each head and each FFN added to the residual stream (Elhage et al., "A
//! Mathematical Framework for Transformer Circuits", 2021).

use std::fmt;
use std::ops::Range;

use super::site::Site;

/// Asks for the logits that the final norm and the output head compute from a layer's residual.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LensAt {
    /// The residual: `ffn_residual` of the layer.
    pub site: Site,
    /// Tokens of the pass.
    pub tokens: Range<usize>,
    /// The number of most likely tokens to list.
    pub top: usize,
}

/// A token of the vocabulary with its entry in a row of logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Its id.
    pub id: u32,
    /// Its logit.
    pub logit: f32,
    /// Its probability, at temperature 1.
    pub prob: f32,
    /// Its rank among all tokens; 1 is the most likely. Equal ones are ordered by id.
    pub rank: usize,
}

/// The prediction of the next token from a residual.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// The most likely tokens, most likely first.
    pub top: Vec<Candidate>,
    /// The entry of the token that is most likely after the last layer.
    pub answer: Candidate,
}

/// Asks for the contribution of each part of the model to the difference of two logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttributionAt {
    /// The logits.
    pub site: Site,
    /// Token of the pass, T.
    pub token: usize,
    /// The first id; `None` for the most likely token.
    pub id: Option<u32>,
    /// The id to compare with; `None` for the most likely other token.
    pub against: Option<u32>,
}

/// A difference of two logits as a sum of contributions.
#[derive(Clone, Debug, PartialEq)]
pub struct Attribution {
    /// The first id.
    pub id: u32,
    /// The id to compare with.
    pub against: u32,
    /// Logit of `id` minus logit of `against`, as recorded.
    pub difference: f64,
    /// The parts, in the order of the pass; they sum to the difference.
    pub parts: Vec<Share>,
}

/// The contribution of one part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// The part.
    pub part: Contributor,
    /// Its contribution to the difference, in logits.
    pub value: f64,
}

/// A part that writes into the residual stream.
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
    /// The bias of wo, if the model has one.
    Bias {
        /// Number of the layer.
        layer: usize,
    },
    /// The feed-forward network, with its bias.
    Ffn {
        /// Number of the layer.
        layer: usize,
    },
    /// The effects of floating-point rounding, and in int8 of quantisation.
    Rounding,
}

impl Attribution {
    /// The sum of all parts. It equals the difference up to float64 rounding: 1e-9 of the sum of the parts' magnitudes.
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
