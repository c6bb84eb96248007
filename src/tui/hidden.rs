//! Stages whose values are hidden while a question is open.

use llama_trace_core::trace::{Run, Site};

/// The message for a key that would show hidden values.
pub(super) const HIDDEN: &str = "the values are hidden until the question is answered; x shows the answer";

/// The hidden stages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hidden {
    /// Whether all values are hidden, because the stages that the answer reads are not known yet.
    pub(super) all: bool,
    /// The stages, in any run.
    pub(super) sites: Vec<Site>,
}

impl Hidden {
    pub(super) fn has(&self, site: Site) -> bool {
        let site = Site { run: Run::ITSELF, ..site };
        self.all || self.sites.contains(&site)
    }
}
