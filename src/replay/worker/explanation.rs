//! Where a number comes from, and what added to a logit: operands, read from the run and from the model's weights.

use super::{Worker, operands};
use crate::backend::Backend;
use crate::error::Result;
use crate::explain::{Drawing, Line, Operands, Place, Rules, attribute, explain};
use crate::generate::Sampling;
use crate::trace::explanation::{Explanation, ExplanationAt};
use crate::trace::lens::{Attribution, AttributionAt};

impl<B: Backend> Worker<'_, B> {
    /// Takes a number apart.
    pub(super) fn explanation(&mut self, at: &ExplanationAt) -> Result<Explanation> {
        self.dims(at.site)?;
        explain(&self.rules(), at.site, at.at, at.terms, self)
    }

    /// What each part of the model added to a logit.
    pub(super) fn attribution(&mut self, at: &AttributionAt) -> Result<Attribution> {
        self.dims(at.site)?;
        attribute(&self.rules(), at, self)
    }

    /// The rules of what has run so far.
    fn rules(&self) -> Rules {
        let model = self.session.model;
        let Sampling { temperature, top_k, top_p, .. } = self.session.sequence.sampling();
        let drawing = Drawing { temperature, top_k, top_p };
        let mut rules = Rules::new(model.card(), model.backend.cache_dtype(), drawing);
        // A token is drawn after each pass.
        for (draw, pass) in (0..).zip(&self.passes) {
            let random = (temperature > 0.0).then(|| self.session.sequence.random(draw));
            rules.push(pass.dims, random);
        }
        rules
    }
}

impl<B: Backend> Operands for Worker<'_, B> {
    fn numbers(&mut self, line: Line) -> Result<Vec<f32>> {
        self.session.model.backend.stop().check()?;
        match line.place {
            Place::Stage(site) => {
                let (dims, sizes) = self.dims(site)?;
                let shape = sizes.shape(site.stage.axes(), dims);
                operands::of_stage(line, &shape, |region| self.block(site, region))
            }
            Place::Weight(..) => operands::of_weight(self.session.model, line),
        }
    }

    fn whole(&mut self, row: Line, x: &[i8], scales: &[f32], group: usize) -> Result<(Vec<f32>, f32)> {
        operands::whole(self.session.model, row, x, scales, group)
    }
}
