//! The units of a feed-forward network: the strongest for a token, and the contribution of each to the logits. The
//! network is a sum over its units: unit f adds its `ffn_hidden` times its column of w2 (Geva et al., "Transformer
//! Feed-Forward Layers Build Predictions by Promoting Concepts in the Vocabulary Space", 2022).

use super::site::Site;

/// The order of the units of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum UnitOrder {
    /// By the magnitude of `ffn_hidden`.
    #[default]
    Hidden,
    /// By the magnitude of the direct contribution to the logit of the predicted token, defined at [`Writing`]. The
    /// predicted token is the one with the largest logit.
    Effect,
}

/// Asks for the units of a layer, ordered by strength for one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UnitsAt {
    /// `ffn_hidden` of the layer.
    pub site: Site,
    /// Token of the pass.
    pub token: usize,
    /// The measure of strength.
    pub order: UnitOrder,
}

/// The units of a layer, the strongest first.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranking {
    /// The numbers of all units. Equal units are in the order of their numbers, and NaN comes last.
    pub units: Vec<u32>,
    /// The contributions that the units are sorted by. `None` for [`UnitOrder::Hidden`].
    pub effects: Option<Effects>,
}

/// The direct contribution of each unit of a layer to the logit of the predicted token.
#[derive(Clone, Debug, PartialEq)]
pub struct Effects {
    /// The predicted token.
    pub id: u32,
    /// The contribution of each unit, in logits, by the number of the unit.
    pub added: Vec<f64>,
}

/// Asks for the contribution of some units to the logits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WritesAt {
    /// `ffn_hidden` of the layer.
    pub site: Site,
    /// Token of the pass.
    pub token: usize,
    /// The units.
    pub units: Vec<u32>,
    /// The number of tokens listed at either end.
    pub top: usize,
}

/// The direct contribution of a unit to the logits. For token v of the vocabulary it is
///
/// ```text
/// Σ_d ffn_hidden[t, f] · w2[d, f] · norm[d] · output[v, d] / √(mean x² + ε)   x = the last layer's ffn_residual[t, :]
/// ```
///
/// The final norm's denominator is that of this token. Effects through later layers are not included.
#[derive(Clone, Debug, PartialEq)]
pub struct Writing {
    /// Number of the unit.
    pub unit: u32,
    /// The tokens whose logits it raises most, the largest first.
    pub most: Vec<Promoted>,
    /// The tokens whose logits it lowers most, the largest first.
    pub least: Vec<Promoted>,
}

/// A token of the vocabulary, and the contribution to its logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Promoted {
    /// Its id.
    pub id: u32,
    /// The contribution, in logits.
    pub added: f64,
}
