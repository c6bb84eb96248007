//! Who judges a stage: by the table of tolerances, or with a model ([`super::injection`]).

use super::difference::{Apart, Pair};
use super::report::{Diagnosis, Line};
use super::streamed::Streamed;
use super::{sixteen, tolerance};
use llama_trace_core::config::{CacheDtype, Precision};
use llama_trace_core::error::Result;
use llama_trace_core::trace::{Frame, PassDims, Site, Stage};

/// Told how many known mistakes of how many were tried.
pub(super) type Tried<'a> = &'a dyn Fn(usize, usize);

/// What judges a stage.
pub(super) trait Judge {
    /// A pass begins.
    fn begin(&mut self, dims: PassDims);

    /// Judges a stage that both have.
    fn see(&mut self, pair: &Pair) -> Result<Judged>;

    /// Judges a stage by what was seen of it part by part; none for who needs all of it.
    fn see_streamed(&mut self, _site: Site, _seen: &Streamed) -> Option<Judged> {
        None
    }

    /// Whether stages may come part by part.
    fn streams(&self) -> bool {
        false
    }

    /// Takes note of a stage that A alone has.
    fn alone(&mut self, _frame: Frame) {}

    /// The mistakes that would give what B has of a stage of the part of the pass that was seen last.
    fn diagnose(&mut self, _site: Site, _tried: Tried<'_>) -> Result<Vec<Diagnosis>> {
        Ok(Vec::new())
    }

    /// What was seen of the layer, or before or after the layers, is over.
    ///
    /// # Errors
    /// Where the backend fails or was asked to stop.
    fn part_done(&mut self, _last: Site) -> Result<()> {
        Ok(())
    }

    /// Whether some rows of a matrix were not looked at.
    fn samples(&self) -> bool {
        false
    }

    /// Whether tolerances are measured.
    fn measures(&self) -> bool {
        false
    }
}

/// What a judge says of a stage.
pub(super) struct Judged {
    pub(super) line: Line,
    /// The cell of largest error, where something differs.
    pub(super) at: Option<usize>,
    /// What else is to be said.
    pub(super) note: Option<String>,
}

/// Judges by the table.
pub(super) struct Table {
    pub(super) layers: usize,
    pub(super) precision: Precision,
    /// Whether the cache may keep fewer bits than float32 has: A's, and B's.
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
        // What is read from a cache of 16 bits is as far off as bfloat16 is, and all after it.
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
