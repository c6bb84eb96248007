//! The explanation of one number: its operands with their values, and the result recomputed from them.

use super::address::Address;
use super::site::{Run, Site};

/// Asks for the explanation of a number of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExplanationAt {
    /// The stage.
    pub site: Site,
    /// The row-major index of the value.
    pub at: usize,
    /// The number of terms shown one by one, the largest first; 0 for all.
    pub terms: usize,
}

/// The explanation of a number.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The number's complete address.
    pub address: Address,
    /// The number.
    pub value: f64,
    /// Whether the value is from the trace. Otherwise the trace lacks it, and it was computed again.
    pub recorded: bool,
    /// The float32 result computed from the operands, in the order of [`crate::ops`]; `None` for an input, which is not
    /// computed.
    pub result: Option<f64>,
    /// The formula with the model's numbers.
    pub formula: String,
    /// Notes of one or two sentences: why a key is hidden, which pass wrote a row.
    pub notes: Vec<String>,
    /// Whether the terms are summed. Otherwise each holds the value after its operand was applied.
    pub is_sum: bool,
    /// The terms: the largest first if they are summed, otherwise in the order of their use.
    pub terms: Vec<Term>,
    /// The index of the first term that is not a step of the computation, and a description of the terms from there on.
    /// An earlier term is their sum or maximum. `None` if every term is a step or is summed.
    pub others: Option<(usize, &'static str)>,
    /// The terms not shown one by one.
    pub rest: Rest,
    /// Other ways to split the same number; may be empty.
    pub splits: Vec<Split>,
    /// A drawing of the rule; `None` if the numbers are enough.
    pub figure: Option<Figure>,
}

/// A drawing of a rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Figure {
    /// A pair of components, rotated in its plane.
    Rotation {
        /// The pair before.
        before: [f64; 2],
        /// The pair after.
        after: [f64; 2],
        /// The angle in radians, between −π and π.
        angle: f64,
    },
    /// A point on the curve of SiLU, gate and result.
    Silu {
        /// The gate.
        x: f64,
        /// SiLU of the gate.
        y: f64,
    },
}

/// A number as a sum of named parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    /// The name of the split.
    pub by: &'static str,
    /// The parts with their names.
    pub parts: Vec<(String, f64)>,
}

/// One term of a sum, or one operand of a rule that is not a sum.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    /// Its factors.
    pub operands: Vec<Operand>,
    /// Their product, or the value after the operand was applied.
    pub product: f64,
}

/// A number that an operation reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Operand {
    /// Its origin.
    pub from: From,
    /// The number.
    pub value: f64,
}

/// The origin of an operand.
#[derive(Clone, Debug, PartialEq)]
pub enum From {
    /// A value of a stage.
    Stage(Address),
    /// A weight.
    Weight(Address),
    /// A constant: ε, √C, a position. The text is its name.
    Constant(&'static str),
}

/// Several terms together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rest {
    /// The number of terms.
    pub count: usize,
    /// Their combined value.
    pub together: Together,
    /// The sum of the magnitudes of their products.
    pub size: f64,
}

/// The combined value of terms that are not shown one by one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Together {
    /// The sum of their products.
    Sum(f64),
    /// The largest of their products, if the rule takes the largest.
    Largest(f64),
}

impl Default for Together {
    fn default() -> Self {
        Self::Sum(0.0)
    }
}

impl Explanation {
    /// The same explanation with addresses in `run`, which has or shares these values.
    #[must_use]
    pub fn seen_from(mut self, run: Run) -> Self {
        let name = |address: &mut Address| address.run = (run != Run::ITSELF).then(|| run.to_string());
        name(&mut self.address);
        for operand in self.terms.iter_mut().flat_map(|term| &mut term.operands) {
            if let From::Stage(address) = &mut operand.from {
                name(address);
            }
        }
        self
    }

    /// A label for the value: recorded or computed again.
    pub fn value_name(&self) -> &'static str {
        if self.recorded { "recorded" } else { "computed again" }
    }

    /// Result minus value; 0 if both are the same infinity or both are NaN.
    pub fn difference(&self) -> f64 {
        match self.result {
            Some(result) if result == self.value || (result.is_nan() && self.value.is_nan()) => 0.0,
            Some(result) => result - self.value,
            None => 0.0,
        }
    }
}
