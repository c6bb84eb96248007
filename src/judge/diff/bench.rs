//! Computes stages from the earlier stages of a run by their rules, unchanged or with a mistake.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use half::bf16;
use ndarray::IxDyn;

use super::difference::{floats, frame, number};
use crate::check::{self, Cells, Change, ReadWeights, Sample};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::explain::{Held, Numbers, Place, Rules};
use llama_trace_core::ops;
use llama_trace_core::trace::{Frame, FrameData, Site, Stage, Values};

/// The frames of one run.
pub(crate) type Frames = HashMap<Site, Arc<Frame>>;

/// A frame that a stage is computed from.
type Operand = (Site, Arc<Frame>);

/// Cells with the results of their rules.
pub(super) type Exactly = Vec<(usize, f64)>;

/// Modifications of the computation, besides a [`Change`].
#[derive(Clone, Copy, Default)]
pub(super) struct Otherwise {
    /// Stages that are recomputed although the run has them.
    pub(super) again: &'static [Stage],
    /// Additional inputs of stages.
    pub(super) also: &'static [(Stage, Stage)],
    /// If given, the inputs of products are first rounded to int8, with this many values per scale. 0: a whole row.
    pub(super) quantize: Option<usize>,
    /// Whether the inputs of products are first rounded to bfloat16.
    pub(super) rounds_inputs: bool,
    /// Stages that also read the input of their layer.
    pub(super) reads_input: &'static [Stage],
    /// Stages that subtract the mean from each row of their input.
    pub(super) centres: &'static [Stage],
    /// Whether the heads' outputs (T, H, C) are read as (H, T, C).
    pub(super) merges_heads: bool,
}

/// Computes stages of one run.
pub(super) struct Bench<'a> {
    pub(super) model: &'a dyn ReadWeights,
    pub(super) rules: &'a Rules,
    pub(super) change: &'a dyn Change,
    pub(super) otherwise: Otherwise,
    /// The stages of the run, as inputs.
    pub(super) run: &'a Frames,
    /// Stages that both runs have. The other stages are computed from earlier ones, so both runs use the same inputs.
    pub(super) both: &'a Frames,
    /// Substitutes for stages of the run that B lacks: keys and values of earlier passes, and the output of the
    /// previous layer.
    pub(super) kept: &'a Frames,
    /// The stages of the reference, for inputs that cannot be computed.
    pub(super) reference: &'a Frames,
    /// Intermediate stages computed so far.
    pub(super) made: Frames,
}

impl<'a> Bench<'a> {
    /// The results for the cells of `site`, computed from the run's own inputs. For a product with a matrix, only those
    /// of the rows in `sample`. `None` if an input is missing.
    ///
    /// # Errors
    /// The errors of the backend, and a stop request.
    pub(super) fn fold(&mut self, site: Site, sample: Sample) -> Result<Option<Exactly>> {
        self.fold_rows(site, &self.rows(site, sample))
    }

    /// The rows of the matrix of `site` in `sample`; empty if the stage is not a product with a matrix.
    pub(super) fn rows(&self, site: Site, sample: Sample) -> Vec<Range<usize>> {
        self.rules.of(site).map_or_else(Vec::new, |rules| check::rows(site, &rules, sample))
    }

    /// [`Bench::fold`] for these rows.
    ///
    /// # Errors
    /// The errors of [`Bench::fold`].
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

    /// The stages that are computed to get `site`, itself included.
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

    /// Returns whether the computation of the stage uses one of the run's own stages in a layer.
    pub(super) fn stands_on_own(&self, site: Site) -> bool {
        let own = |source: &Site| source.layer.is_some() && self.is_there(*source);
        self.chain(site).iter().any(|site| self.sources(*site).iter().any(own))
    }

    /// Returns whether the computation of the stage uses a stage of the reference.
    pub(super) fn borrows(&self, site: Site) -> bool {
        let borrowed = |source: &Site| {
            source.stage != Stage::Tokens && !self.is_there(*source) && !computable(*source, site)
        };
        self.chain(site).iter().any(|site| self.sources(*site).iter().any(borrowed))
    }

    /// Returns whether the run has the stage itself, or a substitute for it.
    pub(super) fn is_there(&self, site: Site) -> bool {
        self.both.contains_key(&site) && !self.otherwise.again.contains(&site.stage)
            || self.kept.contains_key(&site)
    }

    /// The sites that the computation of `site` reads, those of the modifications included.
    pub(super) fn sources(&self, site: Site) -> Vec<Site> {
        let mut sources = self.rules.sources(site);
        let also = self.otherwise.also.iter().filter(|(stage, _)| *stage == site.stage);
        sources.extend(also.map(|(_, other)| site.other(*other)));
        sources.extend(self.otherwise.reads_input.contains(&site.stage).then(|| site.layer_input()));
        sources
    }

    /// The frames of the stage's operands.
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

    /// The frame of `source`, as an input of `of`: the run's own, or a computed one.
    ///
    /// # Errors
    /// The errors of [`Bench::fold`].
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

/// Returns whether a missing `source` is computed for `site`: yes if it is in the same layer, or before the layers. The
/// output of an earlier layer is taken from a substitute or from the reference.
fn computable(source: Site, site: Site) -> bool {
    let start = source.stage.is_rope_table() || matches!(source.stage, Stage::Embedding | Stage::Mask);
    start || (source.stage != Stage::Tokens && source.layer == site.layer)
}

/// A frame with the shape of another, and other values.
fn frame_like(of: &Frame, values: Vec<f32>) -> Option<Frame> {
    frame(of.site, of.shape(), values)
}

/// The values of (T, H, C) in the order of (H, T, C).
fn heads_first(of: &Frame) -> Option<Frame> {
    let FrameData::F32(values) = &of.data else { return None };
    let turned = values.view().permuted_axes(IxDyn(&[1, 0, 2]));
    frame_like(of, turned.iter().copied().collect())
}

/// The frame with the mean of each row (along the last axis) subtracted.
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

/// Pairs of a frame's value and the computed value, for each computed cell.
pub(super) fn beside<'f>(
    frame: &'f Frame,
    exactly: &'f Exactly,
) -> impl Iterator<Item = (usize, f64, f64)> + 'f {
    exactly.iter().map(|&(at, exact)| (at, number(frame, at), exact))
}

/// Turns an error of the run itself, such as an id outside the vocabulary, into `None`: the other stages are still
/// compared.
pub(super) fn of_the_run<T>(result: Result<Option<T>>) -> Result<Option<T>> {
    match result {
        Err(Error::Usage(_)) => Ok(None),
        other => other,
    }
}
