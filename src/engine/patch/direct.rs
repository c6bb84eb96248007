//! The direct effects of heads and neurons: what each adds to the logits itself, without its effects through later layers.

use std::ops::Range;

use super::{Patcher, Place};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::{Run, Stage, Weight, WeightRows};

/// The number of weights read at once.
const AT_ONCE: usize = 1 << 22;

impl Patcher<'_> {
    /// For each head (`AttnHeads`) or neuron ([`Sizes::neurons`](llama_trace_core::trace::Sizes::neurons)) of each
    /// layer, the direct effect of its patch on logit(answer) − logit(wrong). For neuron f it is
    ///
    /// ```text
    /// (donor[f] − run[f]) · Σ_d w2[d, f] · norm[d] · (output[answer, d] − output[wrong, d]) / √(mean x² + ε)
    /// ```
    ///
    /// and for a head the sum of this over its channels, with wo. The values are those of the last token. x is the last
    /// `ffn_residual` of the run: the factor of the final norm is kept. Effects through later layers and other tokens
    /// are not included.
    ///
    /// # Errors
    /// Returns an error if the backend fails.
    pub fn direct(&self, stage: Stage, (answer, wrong): (u32, u32)) -> Result<Vec<(Place, f64)>> {
        if let Some(switch) = self.model.config.not_a_sum() {
            return Err(Error::usage("this model has no direct effects on the logits")
                .expected("a family whose logits are a sum of the parts' contributions, as in Llama")
                .found(switch)
                .next("patch the values instead"));
        }
        let (config, last) = (&self.model.config, self.ids.len() - 1..self.ids.len());
        let x = self.run.rows(config.layers.checked_sub(1), Stage::FfnResidual, last.clone());
        let square: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        let factor = 1.0 / (square / x.len() as f64 + f64::from(config.norm_eps)).sqrt();
        let norm = self.weights(None, Stage::FinalNorm, 0..1)?;
        let one = self.weights(None, Stage::Logits, answer as usize..answer as usize + 1)?;
        let other = self.weights(None, Stage::Logits, wrong as usize..wrong as usize + 1)?;
        let each = one.iter().zip(&other).zip(&norm);
        let direction: Vec<f64> =
            each.map(|((&a, &b), &w)| (f64::from(a) - f64::from(b)) * f64::from(w) * factor).collect();
        let (reader, width) = match stage {
            Stage::AttnHeads => (Stage::AttnOutput, config.head_dim),
            _ => (Stage::FfnDown, 1),
        };
        let mut effects = Vec::new();
        for layer in 0..config.layers {
            let own = self.run.rows(Some(layer), stage, last.clone());
            let through = self.through(layer, reader, &direction, own.len())?;
            let taken = self.donor.as_ref().map(|donor| donor.rows(Some(layer), stage, last.clone()));
            for unit in 0..own.len() / width {
                let channels = unit * width..(unit + 1) * width;
                let change = |at: usize| taken.map_or(0.0, |taken| f64::from(taken[at])) - f64::from(own[at]);
                let effect = channels.map(|at| change(at) * through[at]).sum();
                effects.push((Place { stage, layer: Some(layer), token: None, unit: Some(unit) }, effect));
            }
        }
        Ok(effects)
    }

    /// wᵀ · direction, for the matrix w of `width` inputs that `reader` reads.
    fn through(&self, layer: usize, reader: Stage, direction: &[f64], width: usize) -> Result<Vec<f64>> {
        let mut sums = vec![0.0; width];
        let at_once = (AT_ONCE / width).max(1);
        for first in (0..direction.len()).step_by(at_once) {
            let rows = first..direction.len().min(first + at_once);
            let values = self.weights(Some(layer), reader, rows.clone())?;
            for (row, d) in values.chunks_exact(width).zip(&direction[rows]) {
                sums.iter_mut().zip(row).for_each(|(sum, &w)| *sum += d * f64::from(w));
            }
        }
        Ok(sums)
    }

    /// Rows of the weight that `stage` reads.
    fn weights(&self, layer: Option<usize>, stage: Stage, rows: Range<usize>) -> Result<Vec<f32>> {
        let weight = Weight::read_in(stage, &self.model.card()).next();
        let weight = weight.ok_or_else(|| Error::usage(format!("{} reads no weight", stage.name())))?;
        self.model.rows(&WeightRows { run: Run::ITSELF, layer, weight, rows })
    }
}
