//! What a rule is made of.

use std::fmt;

use super::Frequency;
use crate::config::CacheDtype;
use crate::trace::stage::Rounded;
use crate::trace::{Site, Weight};

/// Where numbers are: a stage of a pass, or a weight with the number of its layer, where each has one of its own.
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
    /// Where it is.
    pub place: Place,
    /// Which value it is there, counted row-major. [`super::Rules::address`] has its indices.
    pub at: usize,
}

/// Numbers of one place at regular distances: part of a row, or of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Line {
    /// Where they are.
    pub place: Place,
    /// The first of them, counted as [`Cell::at`].
    pub first: usize,
    /// From one to the next.
    pub step: usize,
    /// How many there are.
    pub count: usize,
}

impl Line {
    /// Number `i` of them.
    pub fn cell(&self, i: usize) -> Cell {
        Cell { place: self.place, at: self.first + i * self.step }
    }

    /// All of them.
    pub fn cells(self) -> impl ExactSizeIterator<Item = Cell> {
        (0..self.count).map(move |i| self.cell(i))
    }
}

/// By which rule a cell follows from its operands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// The operands, and how they fold.
    pub fold: Fold,
    /// Where results are rounded to bfloat16: [`Rounded::Never`] in other precisions.
    pub rounded: Rounded,
}

/// Operands, and how they fold. `at` is the operand, of those in a line, that stands where the cell does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fold {
    /// An id that is given, not computed.
    Given,
    /// table\[id, at\]: component `at` of the row of `width` values that the id names.
    Lookup {
        /// The id.
        id: Cell,
        /// The embedding table.
        table: Place,
        /// Values in a row of it.
        width: usize,
        /// The component.
        at: usize,
    },
    /// cos or sin of position · frequency, a float32 product.
    Angle {
        /// The token's position.
        position: usize,
        /// Number of the pair.
        pair: usize,
        /// θ^(−2i/C) after scaling.
        frequency: Frequency,
        /// Whether it is the sine.
        sine: bool,
    },
    /// 0 where the token sees the key, else −∞.
    Hide {
        /// Whether it does.
        seen: bool,
    },
    /// x\[at\] / √(mean x² + ε) · weight.
    Norm {
        /// The row that is normalised.
        x: Line,
        /// The component.
        at: usize,
        /// Its weight.
        weight: Cell,
        /// ε.
        eps: f32,
    },
    /// Σ a · b (+ bias): a row of a matrix, a query with a key, weights of attention with values.
    Product {
        /// The first factors.
        a: Line,
        /// The second factors, as many.
        b: Line,
        /// What is added to the sum.
        bias: Option<Cell>,
    },
    /// The same in int8: Σ over runs of (Σ x · w) · scale of x · scale of w (+ bias). A run ends where a group of either
    /// side does; those of the weight are the matrix's own ([`crate::ops::quantize::Quantized`]).
    Int8 {
        /// The int8 values of a row of activations.
        x: Line,
        /// The scales of its groups.
        scales: Line,
        /// Activations that share a scale.
        group: usize,
        /// A row of int8 weights.
        w: Line,
        /// What is added to the sum.
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
        /// Whether it is the second.
        second: bool,
    },
    /// A row that was written into the cache, by this pass or an earlier one, in the cache's number type.
    Cached {
        /// What was written.
        from: Cell,
        /// What it was rounded to.
        dtype: CacheDtype,
    },
    /// The same number: repeat-KV.
    Same {
        /// The number.
        from: Cell,
    },
    /// x / √C.
    Scale {
        /// x.
        x: Cell,
        /// C.
        head_dim: usize,
    },
    /// x + mask: −∞ where the key is hidden.
    Mask {
        /// x.
        x: Cell,
        /// Whether it is seen.
        seen: bool,
    },
    /// e^(x\[at\]/τ − max) / Σ e^(x/τ − max).
    Softmax {
        /// What it goes over: the keys that are seen, or a row of logits.
        x: Line,
        /// Which of them it is; none for a key that is hidden, whose share is 0.
        at: Option<usize>,
        /// τ, by which logits are divided first; 1 in attention.
        temperature: f32,
    },
    /// a + b.
    Add {
        /// a.
        a: Cell,
        /// b.
        b: Cell,
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
    /// x / scale, a float32 quotient, rounded to a whole number, halves away from zero.
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
    /// probs\[at\] after top-k, renormalised, then top-p, renormalised; 0 outside.
    Nucleus {
        /// The probabilities.
        probs: Line,
        /// The id.
        at: usize,
        /// How many ids may stay; 0 for all.
        top_k: usize,
        /// Which share of what is left the shortest run of likely ids must reach.
        top_p: f32,
    },
    /// 1 where x\[at\] is the largest, the first of equals, else 0: the nucleus at temperature 0.
    Largest {
        /// The logits.
        x: Line,
        /// The id.
        at: usize,
    },
    /// The id at which the running sum of the shares, the likeliest first and of equals the lower ids, passes a random
    /// number.
    Draw {
        /// The nucleus.
        nucleus: Line,
        /// The number, from 0 to 1; none at temperature 0, where one id has it all.
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
