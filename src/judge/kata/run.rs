//! A run of a model that is computed by the rules of [`llama_trace_core::explain`] alone, stage by stage and only as far
//! as asked for.

use std::collections::HashMap;
use std::sync::Arc;

use ndarray::{ArrayD, IxDyn};

use crate::check::ReadWeights;
use crate::diff::{Frames, OneStage};
use llama_trace_core::config::CacheDtype;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::explain::Rules;
use llama_trace_core::stop::{self, Stop};
use llama_trace_core::trace::{
    Frame, FrameData, ModelCard, PassDims, Sampling, Site, Stage, Weight, WeightRows,
};
use llama_trace_engine::backend::SeeGroups;

/// Weights that are not those of a model file: their values by layer and name.
pub(super) struct Numbers(pub(super) HashMap<Key, Rows>);

/// The layer and the name of a weight.
pub(super) type Key = (Option<usize>, &'static str);

/// The values of a weight, and the number of values in a row.
pub(super) type Rows = (usize, Vec<f32>);

impl ReadWeights for Numbers {
    fn rows(&self, at: &WeightRows) -> Result<Vec<f32>> {
        let wanted = self.0.get(&(at.layer, at.weight.name()));
        let values =
            wanted.and_then(|(width, values)| values.get(at.rows.start * width..at.rows.end * width));
        values.map(<[f32]>::to_vec).ok_or_else(|| Error::usage(format!("there is no weight {at}")))
    }

    fn int8_rows(&self, _at: &WeightRows, _see: SeeGroups<'_>) -> Result<()> {
        Ok(())
    }

    fn stop(&self) -> &Stop {
        stop::process()
    }
}

/// A run: its weights, its rules, and the stages computed so far.
#[derive(Clone)]
pub struct Run {
    weights: Arc<dyn ReadWeights + Send>,
    rules: Rules,
    frames: Frames,
}

impl Run {
    /// A run without passes.
    pub fn new(card: ModelCard, weights: Arc<dyn ReadWeights + Send>, sampling: Sampling) -> Self {
        let rules = Rules::new(card, CacheDtype::F32, sampling);
        Self { weights, rules, frames: Frames::new() }
    }

    /// Adds a pass that reads `ids`, whose draw uses the number `random`.
    pub fn push(&mut self, ids: &[u32], random: Option<f64>) {
        let before = self.rules.passes().last().map_or(0, |dims| dims.keys());
        let sampling = self.rules.sampling();
        let filters = sampling.filters();
        let pass = self.rules.passes().len();
        let dims = PassDims { pass, start: before, tokens: ids.len(), filters };
        self.rules.push(dims, random);
        self.rules.read(ids.iter().copied());
        let values: Vec<i64> = ids.iter().map(|id| i64::from(*id)).collect();
        let data = FrameData::I64(ndarray::Array1::from(values).into_dyn());
        self.insert(Frame { site: Site::once(pass, Stage::Tokens), axes: Stage::Tokens.axes(), data });
    }

    /// Replaces the values of a stage. Later stages are computed from them.
    pub fn insert(&mut self, frame: Frame) {
        self.frames.insert(frame.site, Arc::new(frame));
    }

    /// The rules of the run.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The weights of the model.
    pub(super) fn weights(&self) -> &dyn ReadWeights {
        &*self.weights
    }

    /// The values of a stage, computed from the earlier stages that it needs.
    ///
    /// # Errors
    /// [`Error::Usage`] if the run has no such stage, and the errors of the weights.
    pub fn frame(&mut self, site: Site) -> Result<Arc<Frame>> {
        if let Some(frame) = self.frames.get(&site) {
            return Ok(Arc::clone(frame));
        }
        for source in self.rules.sources(site) {
            self.frame(source)?;
        }
        let stage = OneStage { weights: &*self.weights, rules: &self.rules, site, inputs: &self.frames };
        let frame = self.of_values(site, &stage.right()?)?;
        self.insert(frame);
        Ok(Arc::clone(&self.frames[&site]))
    }

    /// Values as a frame of the stage, in the stage's number type.
    ///
    /// # Errors
    /// [`Error::Usage`] if their number is not that of the stage.
    pub fn of_values(&self, site: Site, values: &[f64]) -> Result<Frame> {
        let wrong = || Error::usage(format!("{site} has another number of values"));
        let dims = self.rules.pass(site.pass).ok_or_else(wrong)?;
        let shape = IxDyn(&self.rules.sizes().shape(site.stage.axes(), dims));
        let data = if site.stage.is_ids() {
            ArrayD::from_shape_vec(shape, values.iter().map(|x| *x as i64).collect()).map(FrameData::I64)
        } else if site.stage.is_int8() {
            ArrayD::from_shape_vec(shape, values.iter().map(|x| *x as i8).collect()).map(FrameData::I8)
        } else {
            ArrayD::from_shape_vec(shape, values.iter().map(|x| *x as f32).collect()).map(FrameData::F32)
        };
        Ok(Frame { site, axes: site.stage.axes(), data: data.map_err(|_| wrong())? })
    }

    /// All rows of a weight, and its shape.
    ///
    /// # Errors
    /// The errors of the weights.
    pub(super) fn weight(&self, layer: Option<usize>, weight: Weight) -> Result<(Vec<usize>, Vec<f32>)> {
        let shape = self.rules.sizes().shape(weight.axes(), PassDims::default());
        let rows = if shape.len() == 2 { shape[0] } else { 1 };
        let layer = layer.filter(|_| weight.in_layer());
        let run = llama_trace_core::trace::Run::ITSELF;
        let values = self.weights.rows(&WeightRows { run, layer, weight, rows: 0..rows })?;
        Ok((shape, values))
    }
}
