//! The judge of a stage: the table of tolerances, or a model ([`super::injection`]).

use super::difference::{Apart, Pair};
use super::report::{Diagnosis, Line};
use super::streamed::Streamed;
use super::{sixteen, tolerance};
use llama_trace_core::config::{CacheDtype, Precision};
use llama_trace_core::error::Result;
use llama_trace_core::trace::{Frame, PassDims, Site, Stage};

/// Called with the number of mistakes tried so far, and their total number.
pub(super) type Tried<'a> = &'a dyn Fn(usize, usize);

/// Judges the stages of a comparison.
pub(super) trait Judge {
    /// Starts a pass.
    fn begin(&mut self, dims: PassDims);

    /// Judges a stage that both runs have.
    fn see(&mut self, pair: &Pair) -> Result<Judged>;

    /// Judges a stage from a comparison part by part; `None` if the judge needs all values at once.
    fn see_streamed(&mut self, _site: Site, _seen: &Streamed) -> Option<Judged> {
        None
    }

    /// Returns whether stages may be compared part by part.
    fn streams(&self) -> bool {
        false
    }

    /// Stores a stage that only A has.
    fn only_a(&mut self, _frame: Frame) {}

    /// The mistakes that would give B's values of a stage. The stage is in the part of the pass that was judged last.
    fn diagnose(&mut self, _site: Site, _tried: Tried<'_>) -> Result<Vec<Diagnosis>> {
        Ok(Vec::new())
    }

    /// Called after the last stage of a layer, or of the part before or after the layers.
    ///
    /// # Errors
    /// The errors of the backend, and a stop request.
    fn part_done(&mut self, _last: Site) -> Result<()> {
        Ok(())
    }

    /// Returns whether some rows of a matrix were not computed.
    fn samples(&self) -> bool {
        false
    }

    /// Returns whether tolerances are measured on the inputs.
    fn measures(&self) -> bool {
        false
    }
}

/// The verdict on a stage.
pub(super) struct Judged {
    pub(super) line: Line,
    /// The cell of the largest error, if something differs.
    pub(super) at: Option<usize>,
    /// A further note.
    pub(super) note: Option<String>,
}

/// The judge that uses the table of tolerances.
pub(super) struct Table {
    pub(super) layers: usize,
    pub(super) precision: Precision,
    /// Whether the cache of A and of B may have fewer bits than float32.
    pub(super) caches_fewer: [bool; 2],
}

impl Judge for Table {
    fn begin(&mut self, _: PassDims) {}

    fn see(&mut self, pair: &Pair) -> Result<Judged> {
        Ok(self.judge(pair.site, &pair.apart(), [sixteen::dtype(&pair.a), sixteen::dtype(&pair.b)]))
    }

    fn see_streamed(&mut self, site: Site, seen: &Streamed) -> Option<Judged> {
        Some(self.judge(site, &seen.apart, seen.sixteen))
    }

    fn streams(&self) -> bool {
        true
    }
}

impl Table {
    pub(super) fn judge(&mut self, site: Site, apart: &Apart, kept: [Option<CacheDtype>; 2]) -> Judged {
        // Values read from a 16-bit cache are as inexact as bfloat16, and so are all later values.
        let reads = site.layer.is_some() && site.stage >= Stage::CacheK;
        if self.precision == Precision::F32 && reads && self.caches_fewer.contains(&true) {
            self.precision = Precision::Bf16;
        }
        let (error, at) = (apart.error(), apart.cell());
        let tolerance = tolerance::of(site, self.layers, self.precision);
        let line = Line { site, apart: error, error, tolerance, inherited: None };
        let unsaid = kept[1].filter(|_| line.differs() && !self.caches_fewer[1]);
        let note = unsaid.map(|dtype| sixteen::note(site, dtype)).or_else(|| apart.note(site));
        Judged { line, at, note }
    }
}
