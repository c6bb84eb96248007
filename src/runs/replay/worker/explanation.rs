//! Explanations, attributions and additions to the residual stream: their operands are read from the run and from the
//! model's weights.

use super::{Worker, operands};
use llama_trace_core::error::Result;
use llama_trace_core::explain::{
    Line, Operands, Place, Rules, added, attribute, explain, strongest, writings,
};
use llama_trace_core::trace::explanation::{Explanation, ExplanationAt};
use llama_trace_core::trace::lens::{Attribution, AttributionAt};
use llama_trace_core::trace::stream::{Addition, StreamAt};
use llama_trace_core::trace::units::{Ranking, UnitsAt, WritesAt, Writing};

impl Worker<'_> {
    /// Explains a number.
    pub(super) fn explanation(&mut self, at: &ExplanationAt) -> Result<Explanation> {
        self.dims(at.site)?;
        explain(&self.rules(), at.site, at.at, at.terms, self)
    }

    /// The contribution of each part of the model to a logit.
    pub(super) fn attribution(&mut self, at: &AttributionAt) -> Result<Attribution> {
        self.dims(at.site)?;
        attribute(&self.rules(), at, self)
    }

    /// The additions of the sublayers of a layer to the residual stream.
    pub(super) fn stream(&mut self, at: &StreamAt) -> Result<Vec<[Addition; 2]>> {
        self.dims(at.site)?;
        added(&self.rules(), at, self)
    }

    /// The units of a layer, strongest first.
    pub(super) fn units(&mut self, at: &UnitsAt) -> Result<Ranking> {
        self.dims(at.site)?;
        strongest(&self.rules(), at, self)
    }

    /// The contribution of some units to the logits.
    pub(super) fn writes(&mut self, at: &WritesAt) -> Result<Vec<Writing>> {
        self.dims(at.site)?;
        writings(&self.rules(), at, self)
    }

    /// The rules of the run so far.
    fn rules(&self) -> Rules {
        let model = &self.session.model;
        let sampling = self.session.sequence.sampling();
        let mut rules = Rules::new(model.card(), model.backend.cache_dtype(), sampling);
        // A token is drawn after each pass.
        for (draw, pass) in (0..).zip(&self.passes) {
            let random = (sampling.temperature > 0.0).then(|| self.session.sequence.random(draw));
            rules.push(pass.dims, random);
            rules.read(pass.ids.iter().copied());
        }
        rules
    }
}

impl Operands for Worker<'_> {
    fn numbers(&mut self, line: Line) -> Result<Vec<f32>> {
        self.session.model.backend.stop().check()?;
        match line.place {
            Place::Stage(site) => {
                let (dims, sizes) = self.dims(site)?;
                let shape = sizes.shape(site.stage.axes(), dims);
                operands::of_stage(line, &shape, |region| self.block(site, region))
            }
            Place::Weight(..) => operands::of_weight(&self.session.model, line),
        }
    }

    fn whole(&mut self, row: Line, x: &[i8], scales: &[f32], group: usize) -> Result<(Vec<f32>, f32)> {
        operands::whole(&self.session.model, row, x, scales, group)
    }
}
