//! The operations in an arithmetic that is chosen at run time.

use super::arithmetic::{Fused, Separate};
use super::blocks::Format;
use super::quantize::Quantized;
use super::{attention, blocks, matmul, quantize, rms_norm, softmax, swiglu};
use crate::config::{Arithmetic, Precision};

/// Runs `$body` with `$type` as the [`super::arithmetic::MulAdd`] of `$arithmetic`.
macro_rules! with_mul_add {
    ($arithmetic:expr, $type:ident => $body:expr) => {
        match $arithmetic {
            Arithmetic::Fused => {
                type $type = Fused;
                $body
            }
            Arithmetic::Separate => {
                type $type = Separate;
                $body
            }
        }
    };
}

impl Arithmetic {
    /// [`matmul::dot`].
    pub fn dot(self, x: &[f32], w: &[f32]) -> f32 {
        with_mul_add!(self, M => matmul::dot_by::<M>(x, w))
    }

    /// [`quantize::dot`].
    pub fn dot_int8(self, x: &[i8], scales: &[f32], group: usize, w: Quantized<'_>) -> f32 {
        with_mul_add!(self, M => quantize::dot_by::<M>(x, scales, group, w))
    }

    /// [`blocks::dot`].
    pub fn dot_of_blocks<F: Format>(self) -> blocks::Dot {
        with_mul_add!(self, M => blocks::dot_by::<M, F>)
    }

    /// [`rms_norm::rms_norm`].
    pub fn rms_norm(self, x: &[f32], weight: &[f32], eps: f32, precision: Precision, out: &mut [f32]) {
        with_mul_add!(self, M => rms_norm::rms_norm_by::<M>(x, weight, eps, precision, out));
    }

    /// [`attention::qk`].
    pub fn qk(self, query: &[f32], keys: &[f32], stride: usize, out: &mut [f32]) {
        with_mul_add!(self, M => attention::qk_by::<M>(query, keys, stride, out));
    }

    /// [`softmax::softmax`].
    pub fn softmax(self, row: &mut [f32]) {
        with_mul_add!(self, M => softmax::softmax_by::<M>(row));
    }

    /// [`attention::mix`].
    pub fn mix(self, weights: &[f32], values: &[f32], stride: usize, out: &mut [f32]) {
        with_mul_add!(self, M => attention::mix_by::<M>(weights, values, stride, out));
    }

    /// [`swiglu::silu_by`].
    pub fn silu(self, gate: f32) -> f32 {
        with_mul_add!(self, M => swiglu::silu_by::<M>(gate))
    }

    /// [`swiglu::silu_all`].
    pub fn silu_all(self, gate: &[f32], out: &mut [f32]) {
        with_mul_add!(self, M => swiglu::silu_all_by::<M>(gate, out));
    }
}
