//! The way that led to the number which is taken apart, and what of its derivation is chosen.

use llama_trace_core::trace::Address;
use llama_trace_core::trace::explanation::ExplanationAt;

/// Where the number under the cursor comes from, as it is looked at.
#[derive(Clone, Debug, Default)]
pub struct Derivation {
    /// The numbers that Enter came from, the first one first.
    pub trail: Vec<Left>,
    /// The weight that Enter went to last; none while the number under the cursor is taken apart.
    pub weight: Option<Address>,
    /// The term that is chosen, and which operand of it; none for the one that leads back the furthest.
    pub chosen: Option<(usize, usize)>,
    /// The first line on the screen.
    pub line: usize,
    /// Whether what is chosen is to be brought into sight.
    pub follows: bool,
    /// The number that all this is about.
    pub of: Option<ExplanationAt>,
}

/// A number that was left for one of its operands.
#[derive(Clone, Debug, PartialEq)]
pub struct Left {
    /// The number.
    pub address: Address,
    /// What was chosen there.
    pub chosen: Option<(usize, usize)>,
}

impl Derivation {
    /// It is about another number now, to which the trail leads, and of which nothing is chosen yet. What Enter would go to
    /// is brought into sight.
    pub fn turn_to(&mut self, of: Option<ExplanationAt>) {
        *self = Self { trail: std::mem::take(&mut self.trail), of, follows: true, ..Self::default() };
    }
}
