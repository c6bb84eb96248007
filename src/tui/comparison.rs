//! State of the comparison of two tensors or two runs.

use llama_trace_core::trace::{Axis, Step};

use super::verdict::Verdict;

/// The second tensor of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ComparedWith {
    /// The sequence or the run that was shown before.
    Previous,
    /// Another part of the same run and sequence: the same place except for the pinned coordinates.
    Pinned(Pinned),
}

/// Coordinates that stay fixed in the second tensor while the others follow the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pinned {
    pub(super) pass: Option<usize>,
    pub(super) layer: Option<usize>,
    pub(super) step: Option<Step>,
    pub(super) index: Vec<(Axis, usize)>,
}

impl Pinned {
    /// The pinned coordinates as an address to compare with: "L1/xq[h=3]", or "h=3" alone.
    #[cfg(feature = "native")]
    pub(super) fn option(&self) -> String {
        let pass = self.pass.map(|pass| format!("p{pass}"));
        let layer = self.layer.map(|layer| format!("L{layer}"));
        let step = self.step.map(|step| step.name().to_owned());
        let path: Vec<String> = [pass, layer, step].into_iter().flatten().collect();
        let index: Vec<String> =
            self.index.iter().map(|(axis, at)| format!("{}={at}", axis.index())).collect();
        match (path.is_empty(), index.is_empty()) {
            (true, _) => index.join(","),
            (false, true) => path.join("/"),
            (false, false) => format!("{}[{}]", path.join("/"), index.join(",")),
        }
    }

    /// The pinned coordinates as in an address: "L1 h=3".
    pub(super) fn name(&self) -> String {
        let pass = self.pass.map(|pass| format!("p{pass}"));
        let layer = self.layer.map(|layer| format!("L{layer}"));
        let step = self.step.map(|step| step.name().to_owned());
        let index = self.index.iter().map(|(axis, at)| format!("{}={at}", axis.index()));
        let parts: Vec<String> = [pass, layer, step].into_iter().flatten().chain(index).collect();
        parts.join(" ")
    }
}

/// State of the comparison. The second tensor has its own viewer, `App::other`, which has its own
/// `Comparison`.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    pub(super) with: Option<ComparedWith>,
    /// Whether the difference is shown in place of the second tensor.
    pub(super) subtracts: bool,
    /// In the second viewer: whether its tensor has no value at the index of the first tensor.
    pub(super) out_of_range: bool,
    /// In the second viewer: the pass number of the first viewer, if the second run has no such pass.
    pub(super) missing_pass: Option<usize>,
    /// The common colour span of both tensors, as `App::span_of_both` returns it.
    pub(super) shared_span: Option<(bool, f64)>,
    /// The verdict of `diff` on the two runs.
    pub(super) verdict: Option<Verdict>,
    /// Whether the run without the edits must be opened beside this run.
    pub(super) wants_plain: bool,
    /// Whether another run or sequence was shown before. If the current one has no pass yet, Esc goes back to
    /// the previous one.
    pub(super) has_previous: bool,
}

impl Comparison {
    /// Ends the comparison of two tensors.
    pub(super) fn end(&mut self) {
        (self.with, self.subtracts) = (None, false);
    }
}

/// `one` − `other`; 0 for equal values, also for two masked ones (−inf).
pub(super) fn difference(one: f64, other: f64) -> f64 {
    if one == other { 0.0 } else { one - other }
}
