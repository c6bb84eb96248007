//! RoPE, rotary position embedding (Su et al., 2021): rotates pair i of a head by the angle position · θ^(−2i/C). The
//! product of a query and a key then depends on position only through their distance.

use std::f32::consts::TAU;
use std::ops::Range;

use super::round;
use crate::config::{Arithmetic, Pairing, Precision, Rope, RopeScaling};

/// The angle of each pair from one position to the next, in radians: θ^(−2i/C) after scaling, in float32 as PyTorch
/// computes it. `turned` is the number of components that are rotated, C or fewer. `keys` is the number of keys of the
/// pass, its own included; only LongRoPE and dynamic scaling depend on it.
pub fn frequencies(arithmetic: Arithmetic, turned: usize, rope: &Rope, keys: usize) -> Vec<f32> {
    let theta = rope.theta_at(turned, keys) as f32;
    let wavelengths = (0..turned / 2).map(|i| arithmetic.power(theta, (2 * i) as f32 / turned as f32));
    let ramp = rope.ramp(turned);
    wavelengths.enumerate().map(|(i, by)| scale(i, by, &rope.scaling, &ramp, keys)).collect()
}

/// The frequency of pair `i` after `scaling`; `by` is θ^(2i/C). The `llama3` rule is `apply_scaling` of Meta's
/// llama-models.
fn scale(i: usize, by: f32, scaling: &RopeScaling, ramp: &Range<f64>, keys: usize) -> f32 {
    let frequency = 1.0 / by;
    match *scaling {
        RopeScaling::None | RopeScaling::Dynamic { .. } => frequency,
        RopeScaling::Linear { factor } => frequency / factor,
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
            let wavelength = TAU / frequency; // in tokens
            let turns = original_context as f32 / wavelength; // full turns over the trained context
            if turns > high_freq_factor {
                frequency
            } else if turns < low_freq_factor {
                frequency / factor
            } else {
                let keep = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                (1.0 - keep) * frequency / factor + keep * frequency
            }
        }
        RopeScaling::Yarn { factor, .. } => {
            let (start, end) = (ramp.start as f32, ramp.end as f32);
            let keep = 1.0 - ((i as f32 - start) / (end - start)).clamp(0.0, 1.0);
            1.0 / (factor * by) * (1.0 - keep) + frequency * keep
        }
        RopeScaling::LongRope { ref short, ref long, original_context, .. } => {
            let divisors = if keys > original_context { long } else { short };
            1.0 / (divisors[i] * by)
        }
        RopeScaling::Divisors(ref divisors) => frequency / divisors[i],
    }
}

impl Rope {
    /// θ in a pass with `keys` keys: dynamic scaling raises it beyond the original context (NTK).
    pub fn theta_at(&self, turned: usize, keys: usize) -> f64 {
        let theta = f64::from(self.theta);
        match self.scaling {
            RopeScaling::Dynamic { factor, original_context } => {
                let (factor, over) =
                    (f64::from(factor), keys.max(original_context) as f64 / original_context as f64);
                theta * (factor * over - (factor - 1.0)).powf(turned as f64 / (turned as f64 - 2.0))
            }
            _ => theta,
        }
    }

    /// The first and the last pair of YaRN's ramp, from frequencies that are kept to those that are divided.
    pub fn ramp(&self, turned: usize) -> Range<f64> {
        let RopeScaling::Yarn { beta_fast, beta_slow, original_context, truncate, .. } = self.scaling else {
            return 0.0..0.0;
        };
        // The pair that turns this often over the original context.
        let pair = |turns: f32| {
            let wavelength = original_context as f64 / (f64::from(turns) * std::f64::consts::TAU);
            turned as f64 * wavelength.ln() / (2.0 * f64::from(self.theta).ln())
        };
        let (start, end) = match truncate {
            true => (pair(beta_fast).floor(), pair(beta_slow).ceil()),
            false => (pair(beta_fast), pair(beta_slow)),
        };
        let (start, end) = (start.max(0.0), end.min(turned as f64 - 1.0));
        start..if start == end { end + 0.001 } else { end }
    }
}

/// cos and sin of `position` · frequency, one each per pair (C/2).
pub fn angles(
    arithmetic: Arithmetic,
    position: usize,
    frequencies: &[f32],
    cos: &mut [f32],
    sin: &mut [f32],
) {
    for ((frequency, cos), sin) in frequencies.iter().zip(cos).zip(sin) {
        let angle = position as f32 * frequency;
        (*sin, *cos) = arithmetic.sin_cos(angle);
    }
}

/// Rotates one head: (a, b) → (a·cos − b·sin, a·sin + b·cos) for each pair. `x` and `out` have C values, `cos` and
/// `sin` C/2. In bf16, the products are rounded, and then their sum.
#[inline(always)]
pub fn rope(x: &[f32], cos: &[f32], sin: &[f32], pairing: Pairing, precision: Precision, out: &mut [f32]) {
    // One loop per way of rounding lets the compiler vectorise it.
    match precision {
        Precision::Bf16 => turned::<true>(x, cos, sin, pairing, out),
        Precision::F32 | Precision::Q8 { .. } => turned::<false>(x, cos, sin, pairing, out),
    }
}

/// (a·cos − b·sin, a·sin + b·cos), each product and sum rounded to bfloat16 if `BF16`.
#[inline(always)]
fn turn<const BF16: bool>(a: f32, b: f32, cos: f32, sin: f32) -> (f32, f32) {
    let round = |x| if BF16 { round::value(Precision::Bf16, x) } else { x };
    (round(round(a * cos) - round(b * sin)), round(round(a * sin) + round(b * cos)))
}

/// [`rope`], each value rounded to bfloat16 if `BF16`.
#[inline(always)]
fn turned<const BF16: bool>(x: &[f32], cos: &[f32], sin: &[f32], pairing: Pairing, out: &mut [f32]) {
    let angles = cos.iter().zip(sin);
    match pairing {
        Pairing::Halves => {
            let (first, second) = x.split_at(x.len() / 2);
            let (first_out, second_out) = out.split_at_mut(x.len() / 2);
            let outs = first_out.iter_mut().zip(second_out);
            for (((a, b), (cos, sin)), (first, second)) in first.iter().zip(second).zip(angles).zip(outs) {
                (*first, *second) = turn::<BF16>(*a, *b, *cos, *sin);
            }
        }
        Pairing::Neighbours => {
            let outs = out.as_chunks_mut::<2>().0.iter_mut();
            for (([a, b], (cos, sin)), out) in x.as_chunks::<2>().0.iter().zip(angles).zip(outs) {
                (out[0], out[1]) = turn::<BF16>(*a, *b, *cos, *sin);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(theta: f32, scaling: RopeScaling) -> Rope {
        Rope { theta, scaling }
    }

    #[test]
    fn a_quarter_turn_takes_x_to_y() {
        let mut out = [0.0; 4];
        rope(&[1.0, 2.0, 3.0, 4.0], &[0.0, 1.0], &[1.0, 0.0], Pairing::Neighbours, Precision::F32, &mut out);
        assert_eq!(out, [-2.0, 1.0, 3.0, 4.0]);
        rope(&[1.0, 2.0, 3.0, 4.0], &[0.0, 1.0], &[1.0, 0.0], Pairing::Halves, Precision::F32, &mut out);
        assert_eq!(out, [-3.0, 2.0, 1.0, 4.0]);
    }

    #[test]
    fn the_product_of_two_turned_vectors_depends_on_their_distance_only() {
        let frequencies = frequencies(Arithmetic::Fused, 4, &of(100.0, RopeScaling::None), 1);
        let at = |position, x: &[f32; 4]| {
            let (mut cos, mut sin, mut out) = ([0.0; 2], [0.0; 2], [0.0; 4]);
            angles(Arithmetic::Fused, position, &frequencies, &mut cos, &mut sin);
            rope(x, &cos, &sin, Pairing::Halves, Precision::F32, &mut out);
            out
        };
        let product = |p, q| {
            let (a, b) = (at(p, &[1.0, 2.0, -1.0, 0.5]), at(q, &[0.3, 1.0, 2.0, -2.0]));
            a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>()
        };
        assert!((product(3, 1) - product(13, 11)).abs() < 1e-5);
        assert!((product(3, 1) - product(3, 2)).abs() > 1e-2);
    }

    #[test]
    fn llama3_scaling_keeps_short_waves_and_stretches_long_ones() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192,
        };
        let plain = frequencies(Arithmetic::Fused, 128, &of(500_000.0, RopeScaling::None), 1);
        let scaled = frequencies(Arithmetic::Fused, 128, &of(500_000.0, scaling), 1);
        assert_eq!(scaled[0], plain[0]);
        assert_eq!(scaled[63], plain[63] / 8.0);
        let middle = (0..64).filter(|&i| scaled[i] < plain[i] && scaled[i] > plain[i] / 8.0).count();
        assert!(middle > 0 && middle < 64);
    }

    #[test]
    fn a_divisor_for_each_pair() {
        let plain = frequencies(Arithmetic::Fused, 4, &of(100.0, RopeScaling::None), 1);
        let divided =
            frequencies(Arithmetic::Fused, 4, &of(100.0, RopeScaling::Divisors([2.0, 8.0].into())), 1);
        assert_eq!(divided, [plain[0] / 2.0, plain[1] / 8.0]);
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_divides_slow_ones() {
        let yarn = |truncate| RopeScaling::Yarn {
            factor: 4.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original_context: 4096,
            attention_factor: 1.0,
            truncate,
        };
        let plain = frequencies(Arithmetic::Fused, 64, &of(10_000.0, RopeScaling::None), 1);
        let scaled = frequencies(Arithmetic::Fused, 64, &of(10_000.0, yarn(true)), 1);
        // Pair 10 makes 4096 / (2π · 10000^(20/64)) = 36.7 turns, and pair 23 makes 0.87.
        assert_eq!(of(10_000.0, yarn(true)).ramp(64), 10.0..23.0);
        assert_eq!((scaled[10], scaled[23]), (plain[10], 1.0 / (4.0 * (1.0 / plain[23]))));
        let middle = f64::from(scaled[16]) / f64::from(plain[16]);
        assert!((middle - (7.0 / 13.0 + 6.0 / 13.0 / 4.0)).abs() < 1e-6, "{middle}");
        let exact = of(10_000.0, yarn(false)).ramp(64);
        assert!(10.0 < exact.start && exact.start < 11.0 && 22.0 < exact.end && exact.end < 23.0);
    }

    #[test]
    fn longrope_and_dynamic_scaling_change_beyond_the_original_context() {
        let plain = frequencies(Arithmetic::Fused, 4, &of(100.0, RopeScaling::None), 1);
        let scaling = RopeScaling::LongRope {
            short: vec![1.0, 2.0],
            long: vec![4.0, 8.0],
            original_context: 6,
            attention_factor: 1.2,
        };
        let at = |keys| frequencies(Arithmetic::Fused, 4, &of(100.0, scaling.clone()), keys);
        assert_eq!(at(6), [plain[0], 1.0 / (2.0 * 10.0)]);
        assert_eq!(at(7), [1.0 / 4.0, 1.0 / (8.0 * 10.0)]);
        let dynamic = of(100.0, RopeScaling::Dynamic { factor: 2.0, original_context: 6 });
        assert_eq!(frequencies(Arithmetic::Fused, 4, &dynamic, 6), plain);
        // θ · (2 · 9/6 − 1)^(4/2) = 400
        assert_eq!(frequencies(Arithmetic::Fused, 4, &dynamic, 9)[1], 1.0 / 20.0);
    }
}
