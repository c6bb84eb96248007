//! A recorded run, stored either in a trace or in a folder of files.

use std::ops::Range;

use super::about::Keep;
use super::branch::Branch;
use super::read::{Pass, Trace};
use llama_trace_core::config::CacheDtype;
use llama_trace_core::error::Result;
use llama_trace_core::trace::manifest::Drawing;
use llama_trace_core::trace::{FrameData, ModelCard, PassDims, Run, Site, Stats};

/// The description of a recorded run, and its kept values. Each sequence counts its own passes.
pub trait Kept: Send + Sync {
    /// The model.
    fn card(&self) -> &ModelCard;

    /// The number type of the KV cache, if it is known.
    fn cache(&self) -> Option<CacheDtype>;

    /// The sampler settings, if they are known.
    fn sampling(&self) -> Option<Drawing>;

    /// The path it was opened from.
    fn place(&self) -> &str;

    /// The number of sequences.
    fn sequences(&self) -> usize;

    /// The branches; the first is `r1`.
    fn branches(&self) -> &[Branch];

    /// The passes of a sequence of a run; those of a branch include the shared ones. Empty if there is no such
    /// sequence.
    fn passes(&self, run: Run, sequence: usize) -> &[Pass];

    /// The prompt of a sequence, if it was a text.
    fn prompt(&self, sequence: usize) -> Option<String>;

    /// The label of a token of the vocabulary, if it is known.
    fn label(&self, id: u32) -> Option<String>;

    /// Whether the values of `site` are kept.
    fn holds(&self, site: Site) -> bool;

    /// Whether the recording has the values of `site`. Every recording has the ids.
    fn tells(&self, site: Site) -> bool {
        site.stage.is_ids() || self.holds(site)
    }

    /// Rows of the values of `site`, (rows, width); a row is everything along the last axis. `None` if they are not
    /// kept.
    ///
    /// # Errors
    /// [`llama_trace_core::error::Error::Model`] if they are damaged.
    fn rows(&self, site: Site, rows: Range<usize>) -> Result<Option<FrameData>>;

    /// The statistics of `site`, if there are any.
    fn stats(&self, site: Site) -> Option<Stats>;

    /// Whether the recording keeps values, not only statistics.
    fn keeps_values(&self) -> bool {
        true
    }

    /// The reason why the values of `site` are neither kept nor derivable.
    fn why_not(&self, site: Site) -> String;

    /// The sizes of the pass of `site`; `None` if the run has no such site.
    fn dims(&self, site: Site) -> Option<PassDims> {
        let sizes = self.card().sizes();
        let dims = self.passes(site.run, site.sequence).get(site.pass)?.dims;
        let there = site.present(&sizes, dims)
            && site.stage.in_layer() == site.layer.is_some()
            && site.layer.is_none_or(|layer| layer < sizes.layers);
        there.then_some(dims)
    }
}

impl Kept for Trace {
    fn card(&self) -> &ModelCard {
        &self.about().card
    }

    fn cache(&self) -> Option<CacheDtype> {
        self.about().cache()
    }

    fn sampling(&self) -> Option<Drawing> {
        Some(self.about().sampling)
    }

    fn place(&self) -> &str {
        self.place()
    }

    fn sequences(&self) -> usize {
        self.sequences()
    }

    fn branches(&self) -> &[Branch] {
        self.branches()
    }

    fn passes(&self, run: Run, sequence: usize) -> &[Pass] {
        self.passes(run, sequence)
    }

    fn prompt(&self, sequence: usize) -> Option<String> {
        self.prompt(sequence)
    }

    fn label(&self, id: u32) -> Option<String> {
        self.label(id)
    }

    fn holds(&self, site: Site) -> bool {
        self.holds(site)
    }

    fn rows(&self, site: Site, rows: Range<usize>) -> Result<Option<FrameData>> {
        self.rows(site, rows)
    }

    fn stats(&self, site: Site) -> Option<Stats> {
        self.stats(site)
    }

    fn keeps_values(&self) -> bool {
        self.about().keep != Keep::Stats
    }

    fn why_not(&self, site: Site) -> String {
        self.why_not(site)
    }
}
