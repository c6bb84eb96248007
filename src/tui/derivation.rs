//! State of the derivation: the explained number, the chosen operand, and the trail of numbers that Enter
//! went through.

use llama_trace_core::trace::Address;
use llama_trace_core::trace::explanation::ExplanationAt;

/// The open derivation.
#[derive(Clone, Debug, Default)]
pub struct Derivation {
    /// The numbers that Enter went through, the first one first.
    pub trail: Vec<TrailEntry>,
    /// The weight that Enter went to; none while the derivation explains the number under the cursor.
    pub weight: Option<Address>,
    /// The chosen term and its operand; none for the default operand.
    pub chosen: Option<(usize, usize)>,
    /// The first line on the screen.
    pub line: usize,
    /// Whether the chosen operand must be scrolled into sight.
    pub follows: bool,
    /// The explained number.
    pub of: Option<ExplanationAt>,
}

/// A number of the trail.
#[derive(Clone, Debug, PartialEq)]
pub struct TrailEntry {
    /// The number.
    pub address: Address,
    /// The term and operand that were chosen in the derivation of this number.
    pub chosen: Option<(usize, usize)>,
}

impl Derivation {
    /// Starts the derivation of another number, the one that the trail now leads to. Nothing is chosen yet, and the
    /// default operand is scrolled into sight.
    pub fn restart(&mut self, of: Option<ExplanationAt>) {
        *self = Self { trail: std::mem::take(&mut self.trail), of, follows: true, ..Self::default() };
    }
}
