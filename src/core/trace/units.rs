//! The units of a feed-forward network: which are the strongest for a token, and what each of them writes towards the
//! vocabulary. A network is a sum over its units: unit f writes its `ffn_hidden` times its column of w2 (Geva et al.,
//! "Transformer Feed-Forward Layers Build Predictions by Promoting Concepts in the Vocabulary Space", 2022).

use super::site::Site;

/// Asks for the units of a layer in the order of their strength for one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UnitsAt {
    /// `ffn_hidden` of the layer.
    pub site: Site,
    /// Token of the pass.
    pub token: usize,
}

/// Asks what some units add to the logits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WritesAt {
    /// `ffn_hidden` of the layer.
    pub site: Site,
    /// Token of the pass.
    pub token: usize,
    /// The units.
    pub units: Vec<u32>,
    /// How many tokens of the vocabulary are told at either end.
    pub top: usize,
}

/// What a unit adds to the logits directly: for token v of the vocabulary
///
/// ```text
/// Σ_d ffn_hidden[t, f] · w2[d, f] · norm[d] · output[v, d] / √(mean x² + ε)   x = the last layer's ffn_residual[t, :]
/// ```
///
/// The final norm's denominator is what it was for this token; what later layers make of the unit's writing is left out.
#[derive(Clone, Debug, PartialEq)]
pub struct Writing {
    /// Number of the unit.
    pub unit: u32,
    /// Those whose logits it raises most, the most first.
    pub most: Vec<Promoted>,
    /// Those whose logits it lowers most, the most first.
    pub least: Vec<Promoted>,
}

/// A token of the vocabulary, and what is added to its logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Promoted {
    /// Its id.
    pub id: u32,
    /// What is added, in units of logits.
    pub added: f64,
}
