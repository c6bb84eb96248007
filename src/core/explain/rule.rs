//! The parts of a rule.

use std::fmt;

use super::Frequency;
use crate::config::{Activation, CacheDtype};
use crate::trace::stage::Rounded;
use crate::trace::{Sampling, Site, Weight};

/// The origin of numbers: a stage of a pass, or a weight, with its layer if each layer has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// All values of a stage, row-major.
    Stage(Site),
    /// All values of a weight, row-major: outputs × inputs.
    Weight(Option<usize>, Weight),
}

/// One number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cell {
    /// Its place.
    pub place: Place,
    /// Its row-major index in that place. [`super::Rules::address`] turns it into indices.
    pub at: usize,
}

/// Evenly spaced numbers of one place: part of a row, or of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Line {
    /// Their place.
    pub place: Place,
    /// The index of the first number, as in [`Cell::at`].
    pub first: usize,
    /// The step from the index of one number to the next.
    pub step: usize,
    /// The number of cells.
    pub count: usize,
}

impl Line {
    /// Cell `i` of the line.
    pub fn cell(&self, i: usize) -> Cell {
        Cell { place: self.place, at: self.first + i * self.step }
    }

    /// All cells of the line.
    pub fn cells(self) -> impl ExactSizeIterator<Item = Cell> {
        (0..self.count).map(move |i| self.cell(i))
    }
}

/// The rule by which a cell is computed from its operands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// The operands and the operation.
    pub fold: Fold,
    /// The results that are rounded to bfloat16; [`Rounded::Never`] in f32 and q8.
    pub rounded: Rounded,
    /// The factor of the result, which is rounded again after it: 1 in most families.
    pub by: f32,
}

/// An operation with its operands. `at` is the index of the computed cell in its row. If the operands are a line, `at`
/// is the index of the cell's own operand in this line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fold {
    /// An id that is an input, not computed.
    Given,
    /// table\[id, at\]: component `at` of the row of `width` values that the id names.
    Lookup {
        /// The id.
        id: Cell,
        /// The embedding table.
        table: Place,
        /// Values in a row of the table.
        width: usize,
        /// The component.
        at: usize,
    },
    /// cos or sin of position · frequency, a float32 product.
    Angle {
        /// The token's position.
        position: usize,
        /// The number of the pair.
        pair: usize,
        /// θ^(−2i/C) after scaling.
        frequency: Frequency,
        /// Whether it is the sine.
        sine: bool,
        /// The factor of all cosines and sines of the scaling.
        factor: f32,
    },
    /// 0 if the token sees the key, else −∞.
    Hide {
        /// Whether the token sees the key.
        seen: bool,
    },
    /// x\[at\] / √(mean x² + ε) · weight + bias; in a LayerNorm, x minus its mean in place of x.
    Norm {
        /// The row that is normalised.
        x: Line,
        /// The component.
        at: usize,
        /// Its weight, if there is one.
        weight: Option<Cell>,
        /// Its bias, if there is one.
        bias: Option<Cell>,
        /// Whether the mean is subtracted first.
        centred: bool,
        /// ε.
        eps: f32,
    },
    /// Σ a · b (+ bias): a row of a matrix with its input, a query with a key, attention weights with values.
    Product {
        /// The first factors.
        a: Line,
        /// The second factors, one for each first factor.
        b: Line,
        /// The bias, added to the sum.
        bias: Option<Cell>,
    },
    /// A product in int8: Σ over runs of (Σ x · w) · scale of x · scale of w (+ bias). A run ends wherever a group of x
    /// or of w ends. The groups of w are those of its matrix ([`crate::ops::quantize::Quantized`]).
    Int8 {
        /// The int8 values of a row of activations.
        x: Line,
        /// The scales of its groups.
        scales: Line,
        /// Activations that share a scale.
        group: usize,
        /// A row of int8 weights.
        w: Line,
        /// The bias, added to the sum.
        bias: Option<Cell>,
    },
    /// a · cos − b · sin for the first of a pair, a · sin + b · cos for the second.
    Rotate {
        /// a and b.
        pair: [Cell; 2],
        /// The cosine of their angle.
        cos: Cell,
        /// The sine.
        sin: Cell,
        /// Whether the cell is the second of the pair.
        second: bool,
    },
    /// A row of the KV cache, written by this pass or an earlier one, in the cache's number type.
    Cached {
        /// The value before it was stored.
        from: Cell,
        /// The number type of the cache.
        dtype: CacheDtype,
    },
    /// A copy: repeat-KV.
    Same {
        /// The source.
        from: Cell,
    },
    /// x / √C, or x · scale.
    Scale {
        /// x.
        x: Cell,
        /// C.
        head_dim: usize,
        /// The factor, in families with one of their own.
        scale: Option<f32>,
    },
    /// cap · tanh(x / cap).
    Cap {
        /// x.
        x: Cell,
        /// The cap.
        cap: f32,
    },
    /// x + mask: −∞ if the key is hidden.
    Mask {
        /// x.
        x: Cell,
        /// Whether the token sees the key.
        seen: bool,
    },
    /// x / penalty, or x · penalty if x is negative; x itself if the text does not have the token.
    Penalize {
        /// The logit.
        x: Cell,
        /// The last place in the text that has the token; `None` if the text does not have it.
        repeats: Option<Cell>,
        /// The options.
        sampling: Sampling,
    },
    /// e^(x\[at\]/τ − max) / Σ e^(x/τ − max).
    Softmax {
        /// The row: the visible keys, or the logits.
        x: Line,
        /// The cell's index in the row; `None` for a hidden key, whose weight is 0.
        at: Option<usize>,
        /// τ, the divisor of the logits; 1 in attention.
        temperature: f32,
    },
    /// a + b, or a + b · by.
    Add {
        /// a.
        a: Cell,
        /// b.
        b: Cell,
        /// The factor of b; 1 in most families.
        by: f32,
    },
    /// a · b.
    Mul {
        /// a.
        a: Cell,
        /// b.
        b: Cell,
    },
    /// g / (1 + e^−g).
    Silu {
        /// g.
        gate: Cell,
    },
    /// Another activation of x.
    Activation {
        /// x.
        x: Cell,
        /// The activation.
        activation: Activation,
        /// The learned numbers, if it has them.
        numbers: Option<Place>,
    },
    /// x / scale, a float32 quotient, rounded to an integer, halves away from zero.
    Steps {
        /// x.
        x: Cell,
        /// The scale of its group.
        scale: Cell,
    },
    /// max |x| / 127.
    Step {
        /// The group.
        x: Line,
    },
    /// probs\[at\] after the filters of the sampler, renormalised; 0 if the id is removed.
    Nucleus {
        /// The probabilities.
        probs: Line,
        /// The id.
        at: usize,
        /// The filters. An option that another stage applies has no effect here.
        limits: Sampling,
    },
    /// The nucleus at temperature 0: 1 if `at` is the index of the largest value (the first of equal ones), else 0.
    Largest {
        /// The logits.
        x: Line,
        /// The id.
        at: usize,
    },
    /// The id at which the running sum of the probabilities exceeds a random number. The ids are sorted: most likely
    /// first, equal ones by id.
    Draw {
        /// The nucleus.
        nucleus: Line,
        /// The random number, from 0 to 1; `None` at temperature 0, which leaves one id.
        random: Option<f64>,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stage(site) => site.fmt(f),
            Self::Weight(Some(layer), weight) => write!(f, "L{layer}/{weight}"),
            Self::Weight(None, weight) => weight.fmt(f),
        }
    }
}
