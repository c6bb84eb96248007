//! RMSNorm (Zhang and Sennrich, 2019): out = x / √(mean(x²) + ε) · weight.

use super::arithmetic::{Fused, MulAdd};
use super::matmul::dot_by;
use super::round;
use crate::config::Precision;

/// Normalises one row. `x`, `weight` and `out` have equal length, usually D. In bf16, the values are rounded twice, as
/// in transformers' `LlamaRMSNorm`: before and after they are multiplied by the weight.
#[inline(always)]
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, precision: Precision, out: &mut [f32]) {
    rms_norm_by::<Fused>(x, weight, eps, precision, out);
}

/// [`rms_norm`] with the multiply-add of `M`.
#[inline(always)]
pub fn rms_norm_by<M: MulAdd>(x: &[f32], weight: &[f32], eps: f32, precision: Precision, out: &mut [f32]) {
    let mean_square = dot_by::<M>(x, x) / x.len() as f32;
    let scale = 1.0 / (mean_square + eps).sqrt();
    for (out, x) in out.iter_mut().zip(x) {
        *out = x * scale;
    }
    round::row(precision, out);
    for (out, weight) in out.iter_mut().zip(weight) {
        *out *= weight;
    }
    round::row(precision, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_and_four_have_the_root_mean_square_of_five_over_root_two() {
        let mut out = [0.0; 2];
        rms_norm(&[3.0, 4.0], &[1.0, 10.0], 0.0, Precision::F32, &mut out);
        let rms = (12.5_f32).sqrt();
        assert!((out[0] - 3.0 / rms).abs() < 1e-6 && (out[1] - 40.0 / rms).abs() < 1e-5);
    }

    #[test]
    fn epsilon_keeps_a_row_of_zeros_at_zero() {
        let mut out = [1.0; 3];
        rms_norm(&[0.0; 3], &[1.0; 3], 1e-5, Precision::F32, &mut out);
        assert_eq!(out, [0.0; 3]);
    }
}
