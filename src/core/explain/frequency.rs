//! RoPE's frequencies in float64, by their formula.

use std::f64::consts::TAU;

use crate::config::{ModelConfig, RopeScaling};
use crate::ops;
use crate::trace::ModelCard;

/// The angle by which a pair is rotated from one position to the next, in radians.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Frequency {
    /// In float32, as the pass uses it and PyTorch computes it.
    pub value: f32,
    /// θ^(−2i/C) after scaling, in float64.
    pub exact: f64,
}

/// The largest relative difference that rounding alone can cause: a few units in the last place of float32, from a
/// power, a division and the ramp between two scales.
const ROUNDED: f64 = 2e-6;

impl Frequency {
    /// The frequencies of all C/2 pairs.
    pub(super) fn all(card: &ModelCard) -> Vec<Self> {
        let ModelCard { config, arithmetic, .. } = card;
        let ModelConfig { head_dim, rope_theta, rope_scaling, .. } = config;
        let values = ops::rope::frequencies(*arithmetic, *head_dim, *rope_theta, rope_scaling);
        let exact = (0..).map(|pair| exact(config, pair));
        values.into_iter().zip(exact).map(|(value, exact)| Self { value, exact }).collect()
    }

    /// `value`, or `exact` in float32 if the two differ by more than rounding can cause.
    pub(super) fn checked(self) -> f32 {
        let near = (f64::from(self.value) - self.exact).abs() <= ROUNDED * self.exact;
        if near { self.value } else { self.exact as f32 }
    }
}

/// θ^(−2i/C), scaled.
fn exact(config: &ModelConfig, pair: usize) -> f64 {
    let plain = f64::from(config.rope_theta).powf(-2.0 * pair as f64 / config.head_dim as f64);
    match &config.rope_scaling {
        RopeScaling::None => plain,
        RopeScaling::Linear { factor } => plain / f64::from(*factor),
        RopeScaling::Divisors(divisors) => plain / f64::from(divisors[pair]),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
            let (low, high) = (f64::from(*low_freq_factor), f64::from(*high_freq_factor));
            let turns = *original_context as f64 * plain / TAU;
            let keep = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            (1.0 - keep) * plain / f64::from(*factor) + keep * plain
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scaling_is_the_formula_that_the_pass_rounds() {
        let llama3 = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192,
        };
        let divisors = RopeScaling::Divisors((1..=64).map(|i| i as f32).collect());
        for scaling in [RopeScaling::None, RopeScaling::Linear { factor: 4.0 }, llama3, divisors] {
            let card = ModelCard::small(|config| {
                (config.head_dim, config.rope_theta, config.rope_scaling) = (128, 500_000.0, scaling);
            });
            let all = Frequency::all(&card);
            assert_eq!(all.len(), 64);
            assert!(all.iter().all(|one| one.checked() == one.value), "{:?}", card.config.rope_scaling);
            let wrong = Frequency { value: all[7].value * 1.0001, ..all[7] };
            assert!((f64::from(wrong.checked()) / wrong.exact - 1.0).abs() < 1e-7);
        }
    }
}
