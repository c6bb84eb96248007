//! What is compared with what is shown.

use llama_trace_core::trace::{Axis, Step};

/// What stands beside what is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Beside {
    /// The sequence or the run that was shown before.
    Before,
    /// The same one, at the same place but for this.
    Held(Held),
}

/// What stays where it is while everything else goes along.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) pass: Option<usize>,
    pub(super) layer: Option<usize>,
    pub(super) step: Option<Step>,
    pub(super) index: Vec<(Axis, usize)>,
}

impl Held {
    /// What of it there is, as an address has it: "L1 h=3".
    pub(super) fn name(&self) -> String {
        let pass = self.pass.map(|pass| format!("p{pass}"));
        let layer = self.layer.map(|layer| format!("L{layer}"));
        let step = self.step.map(|step| step.name().to_owned());
        let index = self.index.iter().map(|(axis, at)| format!("{}={at}", axis.index()));
        let parts: Vec<String> = [pass, layer, step].into_iter().flatten().chain(index).collect();
        parts.join(" ")
    }
}

/// A value less another. Two that are equal differ by 0, also where they are masked.
pub(super) fn less(one: f64, other: f64) -> f64 {
    if one == other { 0.0 } else { one - other }
}
