//! Derives values that a trace does not keep from the values that it keeps.

use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};

use super::{NEEDS_MODEL, Reader, WRITE_IT, cached_as, lock};
use crate::replay::derive::{Rows, derive_rows, is_derivable, shaped};
use llama_trace_core::config::CacheDtype;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::block::Cutting;
use llama_trace_core::trace::stage::{Input, Section};
use llama_trace_core::trace::{
    Block, Frame, FrameData, ModelCard, PassDims, Region, Run, Site, Stage, Stats,
};

use ndarray::{ArrayD, IxDyn};

/// The statistics with their names.
fn figures(stats: &Stats) -> String {
    let number = |value: f64| match value.fract() == 0.0 && value.abs() < 1e9 {
        true => value.to_string(),
        false => format!("{:?}", value as f32),
    };
    let Stats { min, max, mean, std, neg_inf, pos_inf, nan } = *stats;
    let figures = [("min", min), ("max", max), ("mean", mean), ("std", std)];
    let mut all: Vec<String> =
        figures.iter().map(|&(name, value)| format!("{name} {}", number(value))).collect();
    let counts = [("-inf", neg_inf), ("+inf", pos_inf), ("NaN", nan)];
    all.extend(counts.iter().filter(|(_, count)| *count > 0).map(|(what, count)| format!("{what}×{count}")));
    all.join(", ")
}

impl Reader {
    /// Whether the frame of `site` fits in memory as a whole.
    pub(super) fn is_small(&self, site: Site, dims: PassDims) -> bool {
        let count: usize = self.sizes().shape(site.stage.axes(), dims).iter().product();
        count * site.stage.value_bytes() <= self.largest()
    }

    /// The frame of `site`, which must fit in memory.
    pub(super) fn frame(&mut self, site: Site) -> Result<Arc<Frame>> {
        let kept = lock(&self.store).whole(site);
        if let Some(frame) = kept {
            return Ok(frame);
        }
        let (dims, sizes) = (self.dims(site)?, self.sizes());
        let rows = 0..sizes.rows(site.stage.axes(), dims);
        let rows = self.read_or_derive(site, rows)?;
        let frame = shaped(rows, &sizes.shape(site.stage.axes(), dims));
        let block = Block::whole(Arc::new(frame));
        lock(&self.store).cache(block.clone());
        Ok(block.frame)
    }

    /// Rows of `site`.
    pub(super) fn rows(&mut self, site: Site, rows: Range<usize>) -> Result<Rows> {
        let dims = self.dims(site)?;
        if self.is_small(site, dims) {
            return self.frame(site).map(Rows::whole);
        }
        let first = rows.start;
        Ok(Rows::part(Arc::new(self.read_or_derive(site, rows)?), first))
    }

    /// Rows of `site` as a frame (rows, width), read or derived.
    fn read_or_derive(&mut self, site: Site, rows: Range<usize>) -> Result<Frame> {
        self.stop.check()?;
        match self.edited(site, &rows)? {
            Some(frame) => Ok(frame),
            None => self.unedited(site, rows),
        }
    }

    /// The same rows before the edits of `site`.
    pub(super) fn unedited(&mut self, site: Site, rows: Range<usize>) -> Result<Frame> {
        if let Some(data) = self.trace.rows(site, rows.clone())? {
            return Ok(Frame { site, axes: site.stage.axes(), data });
        }
        match site.stage {
            Stage::CacheK | Stage::CacheV => self.cached(site, rows),
            stage if stage.info().section == Section::Sampler => self.drawn_from(site),
            Stage::AttnResidual | Stage::FfnResidual => self.residual(site, rows),
            Stage::XqRope | Stage::XkRope if self.edits.is_some() => self.rotated(site, rows),
            stage if is_derivable(stage) => self.derived(site, rows, None),
            _ => Err(self.not_here(site)),
        }
    }

    /// The error for a value that is neither kept nor derivable.
    pub(super) fn not_here(&self, site: Site) -> Error {
        let (named, next) = match self.judged {
            None => (site, NEEDS_MODEL),
            Some(run) => (Site { run, ..site }, WRITE_IT),
        };
        Error::usage(format!("{named} is not there")).found(self.trace.why_not(site)).next(next)
    }

    /// `error`, with the statistics of the missing values if they are known.
    pub(super) fn with_statistics(&self, site: Site, error: Error) -> Error {
        let Some(stats) = self.trace.stats(site).filter(|_| matches!(error, Error::Usage(_))) else {
            return error;
        };
        let record = match self.trace.keeps_values() {
            true => "record it with a larger --budget",
            false => "record it without --keep stats",
        };
        let (named, next) = match self.judged {
            None => (site, format!("{record}, or {NEEDS_MODEL}")),
            Some(run) => (Site { run, ..site }, WRITE_IT.to_owned()),
        };
        Error::usage(format!("{named} is not there: its values were not kept"))
            .found(format!("statistics: {}; {}", figures(&stats), self.trace.why_not(site)))
            .next(next)
    }

    /// Derived rows. Rows of the site in `known` are taken from `known`.
    fn derived(&mut self, site: Site, rows: Range<usize>, known: Option<(Site, &Rows)>) -> Result<Frame> {
        let (dims, sizes, stop) = (self.dims(site)?, self.sizes(), self.stop.clone());
        let ModelCard { precision, arithmetic, .. } = *self.trace.card();
        derive_rows(site, rows, &sizes, (precision, arithmetic), dims, &stop, &mut |from, rows| match known {
            Some((site, known)) if site == from => Ok(known.clone()),
            _ => self.rows(from, rows),
        })
    }

    /// A residual, computed from the nearest available residual below it by adding the outputs of the sublayers between
    /// them.
    fn residual(&mut self, site: Site, rows: Range<usize>) -> Result<Frame> {
        let below = |site: Site| match site.stage {
            Stage::FfnResidual => site.other(Stage::AttnResidual),
            _ => site.layer_input(),
        };
        let (mut sums, mut from) = (vec![site], below(site));
        while from.layer.is_some() && !self.trace.holds(from) && lock(&self.store).whole(from).is_none() {
            sums.push(from);
            from = below(from);
        }
        let mut known = self.rows(from, rows.clone())?;
        while let Some(sum) = sums.pop() {
            let frame = self.derived(sum, rows.clone(), Some((from, &known)))?;
            if sums.is_empty() {
                return Ok(frame);
            }
            (from, known) = (sum, Rows::part(Arc::new(frame), rows.start));
        }
        Err(self.not_here(site))
    }

    /// Rows of the cache: the writes of every pass so far, in the cache's number type.
    fn cached(&mut self, site: Site, rows: Range<usize>) -> Result<Frame> {
        let (sizes, own) = (self.sizes(), self.dims(site)?);
        let Some(&Input::Stage(written)) = site.inputs(&sizes, own).first() else {
            return Err(self.not_here(site));
        };
        let mut values: Vec<f32> = Vec::new();
        let passes: Vec<PassDims> =
            self.trace.passes(self.run, self.sequence)[..=site.pass].iter().map(|pass| pass.dims).collect();
        for dims in passes {
            let (first, end) = (dims.start * sizes.kv_heads, dims.keys() * sizes.kv_heads);
            let own = rows.start.max(first)..rows.end.min(end);
            if own.is_empty() {
                continue;
            }
            let own = own.start - first..own.end - first;
            let from = self.rows(Site { pass: dims.pass, ..site.other(written) }, own.clone())?;
            values.extend(from.floats(own));
        }
        match cached_as(&*self.trace) {
            CacheDtype::F32 => {}
            CacheDtype::F16 => values.iter_mut().for_each(|value| *value = f16::from_f32(*value).to_f32()),
            CacheDtype::Bf16 => values.iter_mut().for_each(|value| *value = bf16::from_f32(*value).to_f32()),
        }
        let array = ArrayD::from_shape_vec(IxDyn(&[rows.len(), sizes.head_dim]), values);
        let array = array.unwrap_or_else(|_| unreachable!("the passes wrote every row"));
        Ok(Frame { site, axes: site.stage.axes(), data: FrameData::F32(array) })
    }

    /// The sampler's stages, and the token if it was not recorded.
    fn drawn_from(&mut self, site: Site) -> Result<Frame> {
        let (dims, sizes) = (self.dims(site)?, self.sizes());
        let last = dims.tokens - 1..dims.tokens;
        let logits = self.rows(site.other(sizes.last_logits()), last.clone())?;
        let shape = sizes.shape(site.stage.axes(), dims);
        // The sampler does not know the run.
        let of_run = Site { run: Run::ITSELF, ..site };
        let mut cutting = Cutting::new(of_run, Region::whole(&shape), &sizes, dims);
        let Some(mut sampler) = self.sampler.clone() else { return Err(self.not_here(site)) };
        let text = self.text(site.pass);
        sampler.sample(logits.floats(last), &text, (site.sequence, site.pass), &mut cutting);
        let block = cutting.into_block().ok_or_else(|| self.not_here(site))?;
        Ok(Frame { site, ..Arc::unwrap_or_clone(block.frame) })
    }
}
