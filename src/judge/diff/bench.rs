//! Stages computed from what a run had before them, by their rules: as the rules are, or with a mistake in them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use half::bf16;
use ndarray::IxDyn;

use super::difference::{floats, frame, number};
use crate::check::{self, Cells, Change, Sample};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::explain::{Held, Numbers, Place, Rules};
use llama_trace_core::ops;
use llama_trace_core::trace::{Frame, FrameData, Site, Stage, Values};
use llama_trace_engine::backend::Backend;
use llama_trace_engine::model::Model;

/// The frames of one run.
pub(super) type Frames = HashMap<Site, Arc<Frame>>;

/// One of the frames that a stage is folded from.
type Operand = (Site, Arc<Frame>);

/// Cells with what their rules give.
pub(super) type Exactly = Vec<(usize, f64)>;

/// What is otherwise than the rules have it, besides a [`Change`].
#[derive(Clone, Copy, Default)]
pub(super) struct Otherwise {
    /// Stages that are computed again, although they are there.
    pub(super) again: &'static [Stage],
    /// What else a stage reads.
    pub(super) also: &'static [(Stage, Stage)],
    /// The values that a product reads are rounded to int8 first, so many to a scale; 0 for a whole row.
    pub(super) quantize: Option<usize>,
    /// They are rounded to bfloat16 first.
    pub(super) rounds_inputs: bool,
    /// Stages that read what enters their layer, too.
    pub(super) reads_input: &'static [Stage],
    /// Stages that read each row less its mean.
    pub(super) centres: &'static [Stage],
    /// What heads give, (T, H, C), is read as if heads came first, (H, T, C).
    pub(super) merges_heads: bool,
}

/// Where stages are computed.
pub(super) struct Bench<'a, B: Backend> {
    pub(super) model: &'a Model<B>,
    pub(super) rules: &'a Rules,
    pub(super) change: &'a dyn Change,
    pub(super) otherwise: Otherwise,
    /// The stages of the run whose inputs are taken.
    pub(super) run: &'a Frames,
    /// Those that both runs have. What is not among them is computed from those before it, so that one input serves both.
    pub(super) both: &'a Frames,
    /// What is not among them and stands for the run's own: keys and values of earlier passes, and what the layer before gave.
    pub(super) kept: &'a Frames,
    /// The reference's, for what cannot be computed.
    pub(super) reference: &'a Frames,
    /// What was computed on the way.
    pub(super) made: Frames,
}

impl<'a, B: Backend> Bench<'a, B> {
    /// What the cells of `site` are, computed from the run's own inputs, of a product with a matrix those of the rows that
    /// `sample` has; none where the inputs are not there.
    ///
    /// # Errors
    /// Where the backend fails or was asked to stop.
    pub(super) fn fold(&mut self, site: Site, sample: Sample) -> Result<Option<Exactly>> {
        self.fold_rows(site, &self.rows(site, sample))
    }

    /// The rows of the matrix of `site` that `sample` has; none where it is no product with one.
    pub(super) fn rows(&self, site: Site, sample: Sample) -> Vec<Range<usize>> {
        self.rules.of(site).map_or_else(Vec::new, |rules| check::rows(site, &rules, sample))
    }

    /// The same of these rows.
    ///
    /// # Errors
    /// As [`Bench::fold`]'s.
    pub(super) fn fold_rows(&mut self, site: Site, rows: &[Range<usize>]) -> Result<Option<Exactly>> {
        let Some(operands) = self.operands(site)? else { return Ok(None) };
        let mut held = Held::default();
        for (source, frame) in &operands {
            held.add(
                Place::Stage(*source),
                0,
                match frame.values() {
                    Values::F32(values) => Numbers::F32(values),
                    Values::I64(values) => Numbers::I64(values),
                    Values::I8(values) => Numbers::I8(values),
                },
            );
        }
        let cells = Cells::new(self.model, self.rules, site, held, self.change)?;
        let merge = |mut a: Exactly, mut b: Exactly| {
            a.append(&mut b);
            a
        };
        cells.fold(rows, &|seen: &mut Exactly, at, exact| seen.push((at, exact.value)), merge)
    }

    /// The stages that are computed to get `site`, itself among them.
    pub(super) fn chain(&self, site: Site) -> Vec<Site> {
        let mut chain = vec![site];
        let mut next = 0;
        while next < chain.len() {
            for source in self.sources(chain[next]) {
                if !self.is_there(source) && computable(source, site) && !chain.contains(&source) {
                    chain.push(source);
                }
            }
            next += 1;
        }
        chain
    }

    /// Whether the stage is computed by way of one of the run's own that has a layer.
    pub(super) fn stands_on_own(&self, site: Site) -> bool {
        let own = |source: &Site| source.layer.is_some() && self.is_there(*source);
        self.chain(site).iter().any(|site| self.sources(*site).iter().any(own))
    }

    /// Whether the stage is computed by way of one that is the reference's.
    pub(super) fn borrows(&self, site: Site) -> bool {
        let borrowed = |source: &Site| {
            source.stage != Stage::Tokens && !self.is_there(*source) && !computable(*source, site)
        };
        self.chain(site).iter().any(|site| self.sources(*site).iter().any(borrowed))
    }

    /// Whether the run has the stage itself, or something stands for it.
    pub(super) fn is_there(&self, site: Site) -> bool {
        self.both.contains_key(&site) && !self.otherwise.again.contains(&site.stage)
            || self.kept.contains_key(&site)
    }

    fn sources(&self, site: Site) -> Vec<Site> {
        let mut sources = self.rules.sources(site);
        let also = self.otherwise.also.iter().filter(|(stage, _)| *stage == site.stage);
        sources.extend(also.map(|(_, other)| site.other(*other)));
        sources.extend(self.otherwise.reads_input.contains(&site.stage).then(|| site.layer_input()));
        sources
    }

    /// The frames that `site` is folded from.
    fn operands(&mut self, site: Site) -> Result<Option<Vec<Operand>>> {
        let mut operands = Vec::new();
        for source in self.sources(site) {
            let Some(mut frame) = self.operand(source, site)? else { return Ok(None) };
            let of = self.rules.of(site);
            if let (Some(group), Some(of)) = (self.otherwise.quantize, of)
                && of.matrix().is_some()
            {
                let (_, width) = of.shape();
                frame = rounded_to_steps(&frame, width, group).map_or(frame, Arc::new);
            }
            if self.otherwise.rounds_inputs && of.is_some_and(|of| of.matrix().is_some()) {
                let rounded = floats(&frame).iter().map(|x| bf16::from_f32(*x).to_f32()).collect();
                frame = frame_like(&frame, rounded).map_or(frame, Arc::new);
            }
            if self.otherwise.centres.contains(&site.stage) {
                frame = centred(&frame).map_or(frame, Arc::new);
            }
            if self.otherwise.merges_heads && site.stage == Stage::AttnOutput {
                frame = heads_first(&frame).map_or(frame, Arc::new);
            }
            operands.push((source, frame));
        }
        Ok(Some(operands))
    }

    /// What is read at `source` to compute a cell of `of`: the run's own, or else it is computed.
    ///
    /// # Errors
    /// As [`Bench::fold`]'s.
    pub(super) fn operand(&mut self, source: Site, of: Site) -> Result<Option<Arc<Frame>>> {
        if self.is_there(source) {
            let own = if self.both.contains_key(&source) { self.run } else { self.kept };
            return Ok(own.get(&source).map(Arc::clone));
        }
        if let Some(made) = self.made.get(&source) {
            return Ok(Some(Arc::clone(made)));
        }
        if computable(source, of)
            && self.rules.of(source).is_some()
            && let Some(exactly) = self.fold(source, Sample::All)?
        {
            let Some(dims) = self.rules.pass(source.pass) else { return Ok(None) };
            let shape = self.rules.sizes().shape(source.stage.axes(), dims);
            let mut values = vec![0.0; shape.iter().product()];
            exactly.into_iter().for_each(|(at, value)| values[at] = value as f32);
            let made = frame(source, &shape, values).map(Arc::new);
            made.iter().for_each(|made| drop(self.made.insert(source, Arc::clone(made))));
            return Ok(made);
        }
        Ok(self.reference.get(&source).map(Arc::clone))
    }
}

/// Whether `source` is computed again for `site` where it is not there: what is of the same layer, or of none before the
/// layers. What an earlier layer gave is kept, or is the reference's.
fn computable(source: Site, site: Site) -> bool {
    let start = matches!(source.stage, Stage::Embedding | Stage::RopeCos | Stage::RopeSin | Stage::Mask);
    start || (source.stage != Stage::Tokens && source.layer == site.layer)
}

/// Other values in the shape of a frame.
fn frame_like(of: &Frame, values: Vec<f32>) -> Option<Frame> {
    frame(of.site, of.shape(), values)
}

/// The values of (T, H, C) in the order of (H, T, C).
fn heads_first(of: &Frame) -> Option<Frame> {
    let FrameData::F32(values) = &of.data else { return None };
    let turned = values.view().permuted_axes(IxDyn(&[1, 0, 2]));
    frame_like(of, turned.iter().copied().collect())
}

/// The frame with each of its rows, along the last axis, less its mean.
fn centred(of: &Frame) -> Option<Frame> {
    let (mut values, width) = (floats(of).to_vec(), *of.shape().last()?);
    for row in values.chunks_exact_mut(width.max(1)) {
        let mean = row.iter().copied().map(f64::from).sum::<f64>() / width as f64;
        row.iter_mut().for_each(|value| *value = (f64::from(*value) - mean) as f32);
    }
    frame_like(of, values)
}

/// The frame with its rows of `width` values rounded to int8 and back.
fn rounded_to_steps(of: &Frame, width: usize, group: usize) -> Option<Frame> {
    let (mut values, width) = (floats(of).to_vec(), width.max(1));
    let group = if group == 0 { width } else { group };
    let (mut steps, mut scales) = (vec![0; width], vec![0.0; width.div_ceil(group)]);
    for row in values.chunks_exact_mut(width) {
        ops::quantize::quantize(row, group, &mut steps, &mut scales);
        for (i, (value, step)) in row.iter_mut().zip(&steps).enumerate() {
            *value = f32::from(*step) * scales[i / group];
        }
    }
    frame_like(of, values)
}

/// Value by value, what a frame has where something was computed.
pub(super) fn beside<'f>(
    frame: &'f Frame,
    exactly: &'f Exactly,
) -> impl Iterator<Item = (usize, f64, f64)> + 'f {
    exactly.iter().map(|&(at, exact)| (at, number(frame, at), exact))
}

/// That an error is the run's own and no reason to stop looking at the others: an id outside the vocabulary.
pub(super) fn of_the_run<T>(result: Result<Option<T>>) -> Result<Option<T>> {
    match result {
        Err(Error::Usage(_)) => Ok(None),
        other => other,
    }
}
