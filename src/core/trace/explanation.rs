//! Where one number comes from: the operands that it was folded from, with their values, and what they give again.

use super::address::Address;
use super::site::{Run, Site};

/// Asks where a number of a stage comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExplanationAt {
    /// The stage.
    pub site: Site,
    /// Which of its values, counted row-major.
    pub at: usize,
    /// How many terms are told one by one, the largest first; 0 for all.
    pub terms: usize,
}

/// A number, taken apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The number's complete address.
    pub address: Address,
    /// The number.
    pub value: f64,
    /// Whether the run has it; otherwise the trace does not, and it was computed again.
    pub recorded: bool,
    /// What the operands give in float32, in the order of `ops`; none of what is given, not computed.
    pub result: Option<f64>,
    /// The formula with the model's numbers.
    pub formula: String,
    /// What is to be known beside the numbers, a sentence each: why a key is hidden, which pass wrote a row.
    pub notes: Vec<String>,
    /// Whether the terms are what is added up. Otherwise each has what stands once its operand was applied.
    pub is_sum: bool,
    /// The terms, the largest first.
    pub terms: Vec<Term>,
    /// From which term on nothing is applied any more, and what these terms are: those that a sum or a largest value
    /// among the ones before is of. None where all of them are applied, or added up.
    pub others: Option<(usize, &'static str)>,
    /// The terms that are not told one by one.
    pub rest: Rest,
    /// The same number split in other ways; none where there is no other.
    pub splits: Vec<Split>,
    /// What can be drawn of the rule; none where numbers say it all.
    pub figure: Option<Figure>,
}

/// What can be drawn of a rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Figure {
    /// A pair of components is turned in its plane.
    Rotation {
        /// The pair before.
        before: [f64; 2],
        /// The pair after.
        after: [f64; 2],
        /// By how many radians, between −π and π.
        angle: f64,
    },
    /// A point on the curve of SiLU, gate and result.
    Silu {
        /// The gate.
        x: f64,
        /// SiLU of it.
        y: f64,
    },
}

/// A number split into named parts, which sum to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    /// By what.
    pub by: &'static str,
    /// The parts, each with its name.
    pub parts: Vec<(String, f64)>,
}

/// One term, or one operand of a rule that is no sum.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    /// What it is made of.
    pub operands: Vec<Operand>,
    /// Their product, or what stands once the operand was applied.
    pub product: f64,
}

/// A number that goes in.
#[derive(Clone, Debug, PartialEq)]
pub struct Operand {
    /// Where it is from.
    pub from: From,
    /// The number.
    pub value: f64,
}

/// Where an operand is from.
#[derive(Clone, Debug, PartialEq)]
pub enum From {
    /// A value of a stage.
    Stage(Address),
    /// A weight.
    Weight(Address),
    /// Neither: ε, √C, a position. The text is its name.
    Constant(&'static str),
}

/// Some terms together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rest {
    /// How many.
    pub count: usize,
    /// What they come to.
    pub together: Together,
    /// The sum of their products' sizes.
    pub size: f64,
}

/// What terms come to that are not told one by one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Together {
    /// The sum of their products.
    Sum(f64),
    /// The largest of their products, where the rule takes the largest.
    Largest(f64),
}

impl Default for Together {
    fn default() -> Self {
        Self::Sum(0.0)
    }
}

impl Explanation {
    /// The same for who looks at it in `run`, which has what it tells of, or shares it.
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

    /// What the value is called beside what its operands give.
    pub fn value_name(&self) -> &'static str {
        if self.recorded { "recorded" } else { "computed again" }
    }

    /// What the operands give less what was recorded; 0 where both are the same infinity or neither is a number.
    pub fn difference(&self) -> f64 {
        match self.result {
            Some(result) if result == self.value || (result.is_nan() && self.value.is_nan()) => 0.0,
            Some(result) => result - self.value,
            None => 0.0,
        }
    }
}
