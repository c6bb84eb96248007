//! The logit lens of a recorded run: the model's head reads the residuals of the trace.

use super::Reader;
use crate::replay::lens::read_residual;
use llama_trace_core::error::Result;
use llama_trace_core::trace::lens::{LensAt, Reading};
use llama_trace_core::trace::{NoProbe, Site};
use llama_trace_engine::backend::Span;
use llama_trace_engine::model::{Activations, pass};

impl Reader {
    /// The prediction after the layer of `at`, for each of its tokens.
    ///
    /// # Errors
    /// [`Error::Usage`](llama_trace_core::error::Error::Usage) without the model, or if the trace lacks the residual of
    /// the layer or of the last layer.
    pub(super) fn lens(&mut self, at: &LensAt) -> Result<Vec<Reading>> {
        let (dims, sizes) = (self.dims(at.site)?, self.sizes());
        if at.tokens.end > dims.tokens {
            return Err(self.no(at.site));
        }
        let answers = match self.answers.get(at) {
            Some(answers) => answers,
            None => {
                let site = Site { layer: sizes.layers.checked_sub(1), ..at.site };
                let last = self.read_residual(&LensAt { site, top: 1, ..at.clone() }, &[])?;
                self.answers.keep(at, &last)
            }
        };
        self.read_residual(at, &answers)
    }

    /// The logits of the residual of `at`, ranked.
    fn read_residual(&mut self, at: &LensAt, answers: &[u32]) -> Result<Vec<Reading>> {
        let no_model = || self.weights.no_model(&"the prediction of a layer");
        let model = self.weights.model.clone().ok_or_else(no_model)?;
        let residual = self.rows(at.site, at.tokens.clone())?;
        let work = match &mut self.work {
            Some(work) => work,
            none => none.insert(Activations::new(&model)?),
        };
        let rows = at.tokens.len();
        // The ids of the pass do not matter: the residual replaces their embeddings.
        let (ids, span) = (vec![0; rows], Span { sequence: 0, start: 0, tokens: rows });
        pass::begin(&model, work, at.site.pass, &[span], (&ids, &[]), &mut NoProbe)?;
        work.set_input(&model, residual.floats(at.tokens.clone()))?;
        read_residual(&model, work, 0..rows, at.top, answers)
    }
}
