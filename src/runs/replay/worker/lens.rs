//! The logit lens of a live run.

use super::{Worker, missing};
use crate::replay::lens::read_residual;
use llama_trace_core::error::Result;
use llama_trace_core::trace::lens::{LensAt, Reading};
use llama_trace_engine::generate::Session;

impl Worker<'_> {
    /// The prediction after the layer of `at`, for each of its tokens.
    pub(super) fn lens(&mut self, at: &LensAt) -> Result<Vec<Reading>> {
        let (dims, sizes) = self.dims(at.site)?;
        let Some(layer) = at.site.layer.filter(|_| at.tokens.end <= dims.tokens) else {
            return Err(missing(at.site));
        };
        let answers = match self.answers.get(at) {
            Some(answers) => answers,
            None => {
                let last = self.read_residual(&LensAt { top: 1, ..at.clone() }, sizes.layers, &[])?;
                self.answers.keep(at, &last)
            }
        };
        self.read_residual(at, layer + 1, &answers)
    }

    /// The logits of the input of `layer`, ranked.
    fn read_residual(&mut self, at: &LensAt, layer: usize, answers: &[u32]) -> Result<Vec<Reading>> {
        self.enter(at.site.pass, layer)?;
        let Session { model, work, .. } = &mut self.session;
        read_residual(model, work, at.tokens.clone(), at.top, answers)
    }
}
