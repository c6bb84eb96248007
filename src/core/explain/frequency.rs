//! RoPE's frequencies in float64, by their formula.

use std::f64::consts::TAU;

use crate::config::{Rope, RopeScaling};
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
    /// The frequencies of all pairs of RoPE number `rope` in a pass with `keys` keys.
    pub(super) fn all(card: &ModelCard, rope: usize, keys: usize) -> Vec<Self> {
        let (rope, turned) = (card.config.rope(rope), card.config.turned());
        let values = ops::rope::frequencies(card.arithmetic, turned, &rope, keys);
        let exact = (0..).map(|pair| exact(&rope, turned, pair, keys));
        values.into_iter().zip(exact).map(|(value, exact)| Self { value, exact }).collect()
    }

    /// `value`, or `exact` in float32 if the two differ by more than rounding can cause.
    pub(super) fn checked(self) -> f32 {
        let near = (f64::from(self.value) - self.exact).abs() <= ROUNDED * self.exact;
        if near { self.value } else { self.exact as f32 }
    }
}

/// θ^(−2i/C), scaled.
fn exact(rope: &Rope, turned: usize, pair: usize, keys: usize) -> f64 {
    let plain = rope.theta_at(turned, keys).powf(-2.0 * pair as f64 / turned as f64);
    match &rope.scaling {
        RopeScaling::None | RopeScaling::Dynamic { .. } => plain,
        RopeScaling::Linear { factor } => plain / f64::from(*factor),
        RopeScaling::Divisors(divisors) => plain / f64::from(divisors[pair]),
        RopeScaling::LongRope { short, long, original_context, .. } => {
            plain / f64::from(if keys > *original_context { long[pair] } else { short[pair] })
        }
        RopeScaling::Yarn { factor, .. } => {
            let ramp = rope.ramp(turned);
            let keep = 1.0 - ((pair as f64 - ramp.start) / (ramp.end - ramp.start)).clamp(0.0, 1.0);
            plain / f64::from(*factor) * (1.0 - keep) + plain * keep
        }
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
        let longrope = RopeScaling::LongRope {
            short: vec![1.0; 64],
            long: (1..=64).map(|i| i as f32).collect(),
            original_context: 100,
            attention_factor: 1.0,
        };
        let yarn = RopeScaling::Yarn {
            factor: 4.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original_context: 4096,
            attention_factor: 1.1,
            truncate: true,
        };
        let dynamic = RopeScaling::Dynamic { factor: 2.0, original_context: 100 };
        let linear = RopeScaling::Linear { factor: 4.0 };
        for scaling in [RopeScaling::None, linear, llama3, divisors, longrope, yarn, dynamic] {
            let card = ModelCard::small(|config| {
                (config.head_dim, config.rope_theta, config.rope_scaling) = (128, 500_000.0, scaling);
            });
            let all = Frequency::all(&card, 0, 150);
            assert_eq!(all.len(), 64);
            assert!(all.iter().all(|one| one.checked() == one.value), "{:?}", card.config.rope_scaling);
            let wrong = Frequency { value: all[7].value * 1.0001, ..all[7] };
            assert!((f64::from(wrong.checked()) / wrong.exact - 1.0).abs() < 1e-7);
        }
    }
}
