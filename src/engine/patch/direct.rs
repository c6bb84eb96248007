//! The direct effects of neurons: what each adds to the logits itself, without its effects through later layers.

use super::{Patcher, Place};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::{Run, Stage, Weight, WeightRows};

/// The number of weights read at once.
const AT_ONCE: usize = 1 << 22;

impl Patcher<'_> {
    /// For each neuron of each layer, the direct effect of its patch on logit(answer) − logit(wrong):
    ///
    /// ```text
    /// (donor[f] − run[f]) · Σ_d w2[d, f] · norm[d] · (output[answer, d] − output[wrong, d]) / √(mean x² + ε)
    /// ```
    ///
    /// The values are those of `ffn_hidden` at the last token. x is the last `ffn_residual` of the run: the factor of
    /// the final norm is kept. Effects through later layers and other tokens are not included.
    ///
    /// # Errors
    /// Returns an error if the backend fails.
    pub fn direct(&self, (answer, wrong): (u32, u32)) -> Result<Vec<(Place, f64)>> {
        let (config, last) = (&self.model.config, self.ids.len() - 1..self.ids.len());
        let x = self.run.rows(config.layers.checked_sub(1), Stage::FfnResidual, last.clone());
        let square: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        let factor = 1.0 / (square / x.len() as f64 + f64::from(config.norm_eps)).sqrt();
        let norm = self.weight(None, Stage::FinalNorm, 0)?;
        let one = self.weight(None, Stage::Logits, answer as usize)?;
        let other = self.weight(None, Stage::Logits, wrong as usize)?;
        let each = one.iter().zip(&other).zip(&norm);
        let direction: Vec<f64> =
            each.map(|((&a, &b), &w)| (f64::from(a) - f64::from(b)) * f64::from(w) * factor).collect();
        let mut effects = Vec::new();
        for layer in 0..config.layers {
            let through = self.through(layer, &direction)?;
            let row = |of: &super::Recorded| of.rows(Some(layer), Stage::FfnHidden, last.clone()).to_vec();
            let (own, taken) = (row(&self.run), self.donor.as_ref().map(row));
            for (neuron, (own, through)) in own.iter().zip(through).enumerate() {
                let taken = taken.as_ref().map_or(0.0, |taken| taken[neuron]);
                let place =
                    Place { stage: Stage::FfnHidden, layer: Some(layer), token: None, unit: Some(neuron) };
                effects.push((place, (f64::from(taken) - f64::from(*own)) * through));
            }
        }
        Ok(effects)
    }

    /// w2ᵀ · direction (F).
    fn through(&self, layer: usize, direction: &[f64]) -> Result<Vec<f64>> {
        let width = self.model.config.ffn_dim;
        let mut sums = vec![0.0; width];
        let at_once = (AT_ONCE / width).max(1);
        for first in (0..direction.len()).step_by(at_once) {
            let rows = first..direction.len().min(first + at_once);
            let values = self.weights(Some(layer), Stage::FfnDown, rows.clone())?;
            for (row, d) in values.chunks_exact(width).zip(&direction[rows]) {
                sums.iter_mut().zip(row).for_each(|(sum, &w)| *sum += d * f64::from(w));
            }
        }
        Ok(sums)
    }

    fn weight(&self, layer: Option<usize>, stage: Stage, row: usize) -> Result<Vec<f32>> {
        self.weights(layer, stage, row..row + 1)
    }

    /// Rows of the weight that `stage` reads.
    fn weights(&self, layer: Option<usize>, stage: Stage, rows: std::ops::Range<usize>) -> Result<Vec<f32>> {
        let weight = Weight::read_in(stage, &self.model.card()).next();
        let weight = weight.ok_or_else(|| Error::usage(format!("{} reads no weight", stage.name())))?;
        self.model.rows(&WeightRows { run: Run::ITSELF, layer, weight, rows })
    }
}
