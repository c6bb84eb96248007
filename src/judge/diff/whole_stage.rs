//! Computes a stage with a mistake of whole tensors.

use std::ops::Range;
use std::sync::Arc;

use ndarray::{ArrayD, IxDyn};

use super::bench::{Bench, Exactly};
use super::difference::frame;
use super::mistakes::{Mistake, Operands};
use crate::check;
use llama_trace_core::error::Result;
use llama_trace_core::explain::Place;
use llama_trace_core::trace::Site;

/// The largest tensor, in values, and the largest product, in multiplications, that a mistake of whole tensors is tried
/// on.
const WHOLE: usize = 1 << 23;

impl Bench<'_> {
    /// The results for the cells of `site` with a mistake of whole tensors: the stages that the mistake touches are
    /// computed by its function, the other ones by their rules. `None` if the mistake does not apply.
    ///
    /// # Errors
    /// The errors of [`Bench::fold`].
    pub(super) fn fold_whole(
        &mut self,
        site: Site,
        rows: &[Range<usize>],
        mistake: &Mistake,
    ) -> Result<Option<Exactly>> {
        let Some(whole) = &mistake.whole else { return Ok(None) };
        let touched = |at: &Site| mistake.touches.contains(&at.stage);
        // The earliest stage is computed first: a later one may read it.
        let chain: Vec<Site> = self.chain(site).into_iter().rev().filter(touched).collect();
        for at in chain {
            let Some(values) = self.whole_operands(at)?.and_then(|operands| whole(&operands)) else {
                return Ok(None);
            };
            let Some(dims) = self.rules.pass(at.pass) else { return Ok(None) };
            let shape = self.rules.sizes().shape(at.stage.axes(), dims);
            if values.len() != shape.iter().product::<usize>() {
                return Ok(None);
            }
            // Row-major, whatever the layout in memory.
            let values: Vec<f64> = values.iter().copied().collect();
            if at == site {
                return Ok(Some(values.into_iter().enumerate().collect()));
            }
            let values = values.into_iter().map(|value| value as f32).collect();
            let Some(made) = frame(at, &shape, values) else { return Ok(None) };
            self.made.insert(at, Arc::new(made));
        }
        self.fold_rows(site, rows)
    }

    /// The operands of a stage as whole tensors; `None` if one is missing, or if they are too large to try many
    /// mistakes on them.
    fn whole_operands(&mut self, site: Site) -> Result<Option<Operands>> {
        let Some(of) = self.rules.of(site) else { return Ok(None) };
        let (weight, bias) = of.weights();
        let (outputs, inputs) = of.shape();
        let work = if of.matrix().is_some() { outputs.saturating_mul(inputs) } else { 1 };
        let tokens = of.count() / outputs.max(1);
        if of.count().saturating_mul(8) > WHOLE || work.saturating_mul(tokens) > WHOLE {
            return Ok(None);
        }
        let sizes = *self.rules.sizes();
        let Some(dims) = self.rules.pass(site.pass) else { return Ok(None) };
        let mut weights = Vec::new();
        for place in weight.into_iter().chain(bias) {
            let Place::Weight(_, weight) = place else { continue };
            let shape = sizes.shape(weight.axes(), dims);
            if shape.iter().product::<usize>() > WHOLE {
                return Ok(None);
            }
            let rows = if shape.len() == 2 { shape[0] } else { 1 };
            let Some(rows) = check::weight_rows(place, 0..rows) else { continue };
            let values = self.model.rows(&rows)?.into_iter().map(f64::from).collect();
            let Ok(values) = ArrayD::from_shape_vec(IxDyn(&shape), values) else { return Ok(None) };
            weights.push(values);
        }
        let shape = sizes.shape(site.stage.axes(), dims);
        let mut all = Operands::new(site, dims, shape, self.rules, weights);
        for source in self.sources(site) {
            let Some(frame) = self.operand(source, site)? else { return Ok(None) };
            let values: Vec<f64> = frame.values().numbers().collect();
            let Ok(values) = ArrayD::from_shape_vec(IxDyn(frame.shape()), values) else { return Ok(None) };
            all.inputs.push(values);
        }
        Ok(Some(all))
    }
}
