//! One stage whose inputs are given: its right values, and the known mistakes that give other values. `kata` judges by
//! it.

use std::sync::Arc;

use super::bench::{Bench, Exactly, Frames, Otherwise};
use super::difference::frame;
use super::mistakes::{Known, Mistake, mistakes};
use crate::check::{Nothing, ReadWeights, Sample};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::explain::Rules;
use llama_trace_core::trace::{Frame, Site};

/// A stage and its inputs. Stages between the inputs and the stage are computed by their rules.
pub(crate) struct OneStage<'a> {
    pub(crate) weights: &'a dyn ReadWeights,
    pub(crate) rules: &'a Rules,
    pub(crate) site: Site,
    pub(crate) inputs: &'a Frames,
}

/// A mistake that gives certain values.
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    /// Its name: one of [`super::NAMES`].
    pub name: &'static str,
    /// Its form as text; empty if there is only one.
    pub form: String,
}

impl Named {
    /// The mistake as a sentence to its author.
    pub fn sentence(&self) -> String {
        Known::sentence(self.name, &self.form)
    }
}

/// A mistake that was tried on a stage.
pub(crate) struct Tried {
    pub(crate) named: Named,
    /// The wrong values; `None` if the mistake does not apply to these inputs.
    pub(crate) wrong: Option<Vec<f64>>,
}

impl OneStage<'_> {
    fn bench<'b>(&'b self, rules: &'b Rules, none: &'b Frames) -> Bench<'b> {
        Bench {
            model: self.weights,
            rules,
            change: &Nothing,
            otherwise: Otherwise::default(),
            run: self.inputs,
            both: self.inputs,
            kept: none,
            reference: none,
            made: Frames::new(),
        }
    }

    /// The right values, row-major.
    ///
    /// # Errors
    /// [`Error::Usage`] if an input is missing, and the errors of the weights.
    pub(crate) fn right(&self) -> Result<Vec<f64>> {
        let none = Frames::new();
        let exactly = self.bench(self.rules, &none).fold(self.site, Sample::All)?;
        let exactly = exactly.ok_or_else(|| Error::usage(format!("{} lacks an input", self.site)))?;
        Ok(in_order(exactly))
    }

    /// The operand frames of the stage: given ones and computed ones.
    ///
    /// # Errors
    /// The errors of [`OneStage::right`].
    pub(crate) fn operands(&self) -> Result<Frames> {
        let (none, mut operands) = (Frames::new(), Frames::new());
        let mut bench = self.bench(self.rules, &none);
        for source in self.rules.sources(self.site) {
            if let Some(frame) = bench.operand(source, self.site)? {
                operands.insert(source, frame);
            }
        }
        Ok(operands)
    }

    /// Tries each known mistake for which `is_tried` holds, and passes its values to `see`.
    ///
    /// # Errors
    /// The errors of the weights and of `see`.
    pub(crate) fn try_mistakes(
        &self,
        found: &[f64],
        right: &[f64],
        is_tried: impl Fn(&Named) -> bool,
        mut see: impl FnMut(Tried) -> Result<()>,
    ) -> Result<()> {
        let none = Frames::new();
        let Some(found) = self.frame(found) else { return Ok(()) };
        let exactly: Exactly = right.iter().copied().enumerate().collect();
        let chain = self.bench(self.rules, &none).chain(self.site);
        for mistake in mistakes(self.rules.card(), self.rules.passes(), &chain, &found, &exactly) {
            let named = Named { name: mistake.name, form: mistake.form.clone() };
            if is_tried(&named) {
                let wrong = self.wrong(&mistake)?.map(in_order);
                see(Tried { named, wrong })?;
            }
        }
        Ok(())
    }

    /// The stage's values with a mistake.
    fn wrong(&self, mistake: &Mistake) -> Result<Option<Exactly>> {
        let none = Frames::new();
        let other = mistake.card.as_ref().map(|card| self.rules.of_model(card.clone()));
        let mut bench = self.bench(other.as_ref().unwrap_or(self.rules), &none);
        (bench.change, bench.otherwise) = (&*mistake.change, mistake.otherwise);
        if !bench.chain(self.site).iter().any(|site| mistake.touches.contains(&site.stage)) {
            return Ok(None);
        }
        let rows = bench.rows(self.site, Sample::All);
        match mistake.whole {
            Some(_) => bench.fold_whole(self.site, &rows, mistake),
            None => super::bench::of_the_run(bench.fold_rows(self.site, &rows)),
        }
    }

    /// Values as a frame of the stage.
    fn frame(&self, values: &[f64]) -> Option<Arc<Frame>> {
        let dims = self.rules.pass(self.site.pass)?;
        let shape = self.rules.sizes().shape(self.site.stage.axes(), dims);
        frame(self.site, &shape, values.iter().map(|value| *value as f32).collect()).map(Arc::new)
    }
}

/// The values in the order of their cells.
fn in_order(exactly: Exactly) -> Vec<f64> {
    let mut values = vec![0.0; exactly.len()];
    for (at, value) in exactly {
        if let Some(place) = values.get_mut(at) {
            *place = value;
        }
    }
    values
}
