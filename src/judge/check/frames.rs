//! The recorded run, and the recomputation of its stages, layer by layer: only one layer is in memory.

use std::cell::RefCell;
use std::sync::Arc;

use super::cells::number;
use super::distance::Verdict;
use super::kernels::Kernels;
use super::row_hashes::RowHashes;
use super::sample::Sample;
use super::stages::{self, Frames};
use super::{AGAIN, Check, Runs, SAMPLING};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::explain::{Cell, Place, Rules};
use llama_trace_core::trace::stage::{Input, Section};
use llama_trace_core::trace::{Frame, PassDims, Recorder, Select, Site, Stage, Values};
use llama_trace_engine::model::Model;
use llama_trace_runs::replay::derive::{derive, is_derived};

/// The recorded run's results and the checks of its stages.
pub(super) struct Found {
    /// The bits of the last logits of each pass.
    pub(super) logits: Vec<Vec<u32>>,
    pub(super) hashes: RowHashes,
    pub(super) derived: Check,
    pub(super) float64: Check,
    pub(super) kernels: Vec<Check>,
    /// The number of recomputed matrix rows, and the number of all matrix rows.
    pub(super) rows: (usize, usize),
    pub(super) passes: Vec<PassDims>,
}

/// Receives the frames as they arrive.
struct FrameChecker<'a, 'm> {
    runs: &'a Runs<'m>,
    rules: Rules,
    dims: PassDims,
    frames: Frames,
    hashes: RowHashes,
    derived: Check,
    float64: Verdict,
    kernels: Kernels<'m>,
    sample: Sample,
    rows: (usize, usize),
    /// The error after which frames are ignored.
    failed: Option<Error>,
}

/// Runs the passes with a recorder, and recomputes every stage.
pub(super) fn record<'m>(runs: &Runs<'m>, sample: &Sample) -> Result<Found> {
    let model: &'m Model = runs.model;
    let checker = RefCell::new(FrameChecker {
        runs,
        rules: Rules::new(model.card(), model.backend.cache_dtype(), SAMPLING),
        dims: PassDims::default(),
        frames: Frames::new(),
        hashes: RowHashes::default(),
        derived: Check::new("derived", 0.0),
        float64: Verdict::new("float64", &*model.backend),
        kernels: Kernels::new(model, *sample),
        sample: *sample,
        rows: (0, 0),
        failed: None,
    });
    let (select, mut logits, mut passes) = (Select::all(), Vec::new(), Vec::new());
    runs.passes(
        |dims, random| {
            passes.push(dims);
            checker.borrow_mut().begin(dims, random);
            Recorder::new(model.sizes(), dims, &select, |frame| checker.borrow_mut().take(frame))
        },
        |_, last| {
            logits.push(last);
            checker.borrow_mut().failed.take().map_or(Ok(()), Err)
        },
    )?;
    let FrameChecker { rules, hashes, derived, float64, kernels, rows, .. } = checker.into_inner();
    let float64 = float64.finish(&rules);
    Ok(Found { logits, hashes, derived, float64, kernels: kernels.finish(&rules), rows, passes })
}

impl FrameChecker<'_, '_> {
    fn begin(&mut self, dims: PassDims, random: Option<f64>) {
        self.dims = dims;
        self.rules.push(dims, random);
    }

    /// Adds the next frame. After the last frame of a layer, or of the pass, checks all of them.
    fn take(&mut self, frame: Frame) {
        let site = frame.site;
        // Rows as the probe receives them. A row is everything along the last axis.
        let rows = self.rules.sizes().rows(site.stage.axes(), self.dims);
        self.hashes.add(site, 0..rows, frame.values());
        self.frames.insert(site, Arc::new(frame));
        let (sizes, dims) = (*self.rules.sizes(), self.dims);
        let in_layer = |stage: &&Stage| stage.in_layer() && stage.present_in(&sizes, dims, Some(0));
        let first = Stage::ALL.iter().find(in_layer).copied();
        let whole = match (site.stage, site.layer) {
            // All stages before the layers are complete.
            (stage, Some(0)) if Some(stage) == first => Section::Start,
            (Stage::FfnResidual, _) => Section::Layer,
            (Stage::Sampled, _) => Section::End,
            _ => return,
        };
        if self.failed.is_none() {
            self.failed = self.look(whole, site.layer).err();
        }
        if whole == Section::Layer {
            self.runs.ticks("computing every stage again", AGAIN);
        }
    }

    /// Recomputes the stages of a layer, or those before or after the layers, and drops the frames that are no longer
    /// needed.
    fn look(&mut self, part: Section, layer: Option<usize>) -> Result<()> {
        let mut sites: Vec<Site> = self.frames.keys().copied().collect();
        sites.retain(|site| {
            site.pass == self.dims.pass
                && match (part, site.stage.info().section) {
                    (Section::Layer, _) => site.layer == layer,
                    (Section::Start, section) => section == Section::Start,
                    (_, section) => matches!(section, Section::End | Section::Sampler),
                }
        });
        sites.sort_unstable_by_key(|site| site.stage);
        self.derive(&sites)?;
        let model = self.runs.model;
        for &site in &sites {
            if let Some(sums) = stages::distance(model, &self.rules, site, &self.frames, self.sample)? {
                self.float64.see(&self.rules, site, &sums);
            }
            self.count(site);
        }
        self.kernels.see(&self.rules, self.dims, &sites, &self.frames)?;
        let (dims, sizes) = (self.dims, *self.rules.sizes());
        // The stage whose rows the cache holds as keys.
        let cached = |site: Site| match site.layer.map(|_| site.other(Stage::CacheK).inputs(&sizes, dims)) {
            Some(inputs) => inputs.first().and_then(|input| match input {
                Input::Stage(stage) => Some(*stage),
                _ => None,
            }),
            None => None,
        };
        self.frames.retain(|site, _| match part {
            // Later passes read these from the cache.
            _ if site.stage == Stage::Xv => true,
            _ if cached(*site) == Some(site.stage) => true,
            Section::Start => true,
            Section::Layer => {
                let goes_on = site.layer == layer && site.stage == Stage::FfnResidual;
                site.pass == dims.pass && (site.layer.is_none() || goes_on)
            }
            Section::End | Section::Sampler => false,
        });
        Ok(())
    }

    /// Derives the derivable stages, and compares them with those of the pass.
    fn derive(&mut self, sites: &[Site]) -> Result<()> {
        let backend = &*self.runs.model.backend;
        for &site in sites.iter().filter(|site| {
            is_derived(backend, site.stage) && !self.runs.model.edits.stop_derivation(site.stage)
        }) {
            let frames = &self.frames;
            let mut input = |site: Site| {
                let missing = || Error::usage(format!("{site} was not recorded"));
                frames.get(&site).map(Arc::clone).ok_or_else(missing)
            };
            let (sizes, arithmetic) = (self.rules.sizes(), (backend.precision(), backend.arithmetic()));
            let derived = derive(site, sizes, arithmetic, self.dims, backend.stop(), &mut input)?;
            let (count, first) = different(&derived, &frames[&site]);
            let cell = Cell { place: Place::Stage(site), at: first };
            self.derived.differ(count, || self.rules.address(cell));
        }
        Ok(())
    }

    /// Counts the recomputed rows of a product's matrix in the first pass.
    fn count(&mut self, site: Site) {
        let Some(rules) = self.rules.of(site).filter(|_| self.dims.pass == 0) else { return };
        if rules.matrix().is_some() {
            let (outputs, _) = rules.shape();
            let taken = self.sample.of(number(site), outputs);
            self.rows.0 += taken.iter().map(ExactSizeIterator::len).sum::<usize>();
            self.rows.1 += outputs;
        }
    }
}

/// The number of values whose bits differ in two frames, and the index of the first such value.
fn different(a: &Frame, b: &Frame) -> (usize, usize) {
    /// The number of places for which `differs` is true, and the first such place.
    fn places(count: usize, differs: impl Fn(usize) -> bool) -> (usize, usize) {
        let different = (0..count).filter(|&at| differs(at));
        (different.clone().count(), different.clone().next().unwrap_or(0))
    }
    match (a.values(), b.values()) {
        (Values::F32(a), Values::F32(b)) => places(b.len(), |at| a[at].to_bits() != b[at].to_bits()),
        (Values::I8(a), Values::I8(b)) => places(b.len(), |at| a[at] != b[at]),
        (Values::I64(a), Values::I64(b)) => places(b.len(), |at| a[at] != b[at]),
        (_, b) => (b.len(), 0),
    }
}
