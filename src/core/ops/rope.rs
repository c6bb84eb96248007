//! RoPE, rotary position embedding (Su et al., 2021): rotates pair i of a head by the angle position · θ^(−2i/C). The
//! product of a query and a key then depends on position only through their distance.

use std::f32::consts::TAU;

use super::round;
use crate::config::{Arithmetic, Pairing, Precision, RopeScaling};

/// The angle of each of the C/2 pairs from one position to the next, in radians: θ^(−2i/C) after scaling, in float32 as
/// PyTorch computes it.
pub fn frequencies(arithmetic: Arithmetic, head_dim: usize, theta: f32, scaling: &RopeScaling) -> Vec<f32> {
    let plain = (0..head_dim / 2).map(|i| 1.0 / arithmetic.power(theta, (2 * i) as f32 / head_dim as f32));
    plain.enumerate().map(|(i, frequency)| scale(i, frequency, scaling)).collect()
}

/// The frequency of pair `i` after `scaling`. The `llama3` rule is `apply_scaling` of Meta's llama-models.
fn scale(i: usize, frequency: f32, scaling: &RopeScaling) -> f32 {
    match *scaling {
        RopeScaling::None => frequency,
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
        RopeScaling::Divisors(ref divisors) => frequency / divisors[i],
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
        let frequencies = frequencies(Arithmetic::Fused, 4, 100.0, &RopeScaling::None);
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
        let plain = frequencies(Arithmetic::Fused, 128, 500_000.0, &RopeScaling::None);
        let scaled = frequencies(Arithmetic::Fused, 128, 500_000.0, &scaling);
        assert_eq!(scaled[0], plain[0]);
        assert_eq!(scaled[63], plain[63] / 8.0);
        let middle = (0..64).filter(|&i| scaled[i] < plain[i] && scaled[i] > plain[i] / 8.0).count();
        assert!(middle > 0 && middle < 64);
    }

    #[test]
    fn a_divisor_for_each_pair() {
        let plain = frequencies(Arithmetic::Fused, 4, 100.0, &RopeScaling::None);
        let divided = frequencies(Arithmetic::Fused, 4, 100.0, &RopeScaling::Divisors([2.0, 8.0].into()));
        assert_eq!(divided, [plain[0] / 2.0, plain[1] / 8.0]);
    }
}
