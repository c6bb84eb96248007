//! Reads stages and weights for one token of a pass.

use std::ops::Range;

use super::rule::{Line, Place};
use super::site::Rules;
use super::terms::Operands;
use crate::error::Result;
use crate::trace::{PassDims, Site, Stage, Weight};

/// The number of values of a weight that are read per call.
pub(super) const AT_ONCE: usize = 1 << 20;

/// A token of a pass.
pub(super) struct Token<'a, O> {
    pub(super) rules: &'a Rules,
    pub(super) operands: &'a mut O,
    pub(super) site: Site,
    pub(super) token: usize,
}

impl<O: Operands> Token<'_, O> {
    /// The token's row of a stage.
    pub(super) fn row(&mut self, layer: Option<usize>, stage: Stage) -> Result<Vec<f32>> {
        let site = Site { layer, stage, ..self.site };
        let nothing = PassDims::default();
        let dims = self.rules.pass(site.pass).unwrap_or(nothing);
        let shape = self.rules.sizes().shape(stage.axes(), dims);
        let width = shape.get(1..).unwrap_or_default().iter().product();
        let first = self.token * width;
        self.operands.numbers(Line { place: Place::Stage(site), first, step: 1, count: width })
    }

    /// Values of a weight, row-major.
    pub(super) fn weight(
        &mut self,
        layer: Option<usize>,
        weight: Weight,
        at: Range<usize>,
    ) -> Result<Vec<f32>> {
        let place = Place::Weight(layer, weight);
        self.operands.numbers(Line { place, first: at.start, step: 1, count: at.len() })
    }

    /// 1 / √(mean x² + ε) of the final norm for the residual `last` (D).
    pub(super) fn norm_factor(&self, last: &[f32]) -> f64 {
        let square: f64 = last.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        let eps = f64::from(self.rules.card().config.norm_eps);
        1.0 / (square / last.len() as f64 + eps).sqrt()
    }
}
