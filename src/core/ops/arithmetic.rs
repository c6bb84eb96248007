//! The arithmetic of a run: how it computes x · y + z, and how it computes sines, cosines and powers.
//!
//! Functions of [`crate::ops`] whose names end in `_by` have a type parameter for x · y + z ([`MulAdd`]). The same
//! functions without `_by` use [`Fused`]. The methods of [`Arithmetic`] choose at run time.

use serde::{Deserialize, Serialize};

use super::blocks::Format;
use super::quantize::Quantized;
use super::{attention, blocks, matmul, quantize, rms_norm, softmax, swiglu};
use crate::config::Precision;

/// The arithmetic of a run. Runs with the same arithmetic have the same order of sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arithmetic {
    /// [`Fused`]. The system computes sines, cosines and powers; their last bit depends on the platform.
    #[default]
    Fused,
    /// [`Separate`]. The crate `libm` computes sines, cosines and powers; all bits are the same on every platform.
    Separate,
}

/// A way to compute x · y + z.
pub trait MulAdd {
    /// The value of [`Arithmetic`] for this type.
    const ARITHMETIC: Arithmetic;

    /// x · y + z.
    fn mul_add(x: f32, y: f32, z: f32) -> f32;
}

/// The fused multiply-add: only the sum is rounded.
#[derive(Clone, Copy, Debug)]
pub struct Fused;

/// The product is rounded, and then the sum. WebAssembly has no fused multiply-add. A function that computes the same
/// takes many times as long as a multiplication and an addition.
#[derive(Clone, Copy, Debug)]
pub struct Separate;

impl MulAdd for Fused {
    const ARITHMETIC: Arithmetic = Arithmetic::Fused;

    #[inline(always)]
    fn mul_add(x: f32, y: f32, z: f32) -> f32 {
        x.mul_add(y, z)
    }
}

impl MulAdd for Separate {
    const ARITHMETIC: Arithmetic = Arithmetic::Separate;

    #[inline(always)]
    fn mul_add(x: f32, y: f32, z: f32) -> f32 {
        x * y + z
    }
}

/// Runs `$body` with `$type` as the [`MulAdd`] of `$arithmetic`.
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
    /// Whether this is the default, which files omit.
    pub fn is_fused(&self) -> bool {
        *self == Self::Fused
    }

    /// x · y + z.
    pub fn mul_add(self, x: f32, y: f32, z: f32) -> f32 {
        with_mul_add!(self, M => M::mul_add(x, y, z))
    }

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

    /// The sine and the cosine of an angle in radians.
    pub fn sin_cos(self, angle: f32) -> (f32, f32) {
        match self {
            Self::Fused => angle.sin_cos(),
            Self::Separate => libm::sincosf(angle),
        }
    }

    /// base^exponent.
    pub fn power(self, base: f32, exponent: f32) -> f32 {
        match self {
            Self::Fused => base.powf(exponent),
            Self::Separate => libm::powf(base, exponent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_is_rounded_only_if_the_sum_is_separate() {
        // (1 + 2⁻¹²)² = 1 + 2⁻¹¹ + 2⁻²⁴; the last term does not fit into a float32.
        let x = 1.0 + f32::EPSILON * 2048.0;
        let rest = |arithmetic: Arithmetic| arithmetic.mul_add(x, x, -(1.0 + f32::EPSILON * 4096.0));
        assert_eq!((rest(Arithmetic::Fused), rest(Arithmetic::Separate)), (2.0_f32.powi(-24), 0.0));
    }

    /// Bits that WebAssembly gives too.
    #[test]
    fn separate_sines_and_powers_have_the_same_bits_on_every_platform() {
        let (mut bits, mut state) = (0_u64, 1_u32);
        for i in 0..10_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let angle = (state >> 8) as f32 / 4096.0;
            let (sin, cos) = Arithmetic::Separate.sin_cos(angle);
            let power = Arithmetic::Separate.power(10_000.0 + i as f32, -(i as f32) / 10_000.0);
            for x in [sin, cos, power] {
                bits = bits.rotate_left(5) ^ u64::from(x.to_bits()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            }
        }
        assert_eq!(bits, 0);
    }
}
