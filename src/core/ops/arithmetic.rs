//! The arithmetic of a run: how it computes x · y + z, and how it computes sines, cosines and powers.
//!
//! Functions of [`crate::ops`] whose names end in `_by` have a type parameter for x · y + z ([`MulAdd`]). The same
//! functions without `_by` use [`Fused`]. Methods of [`Arithmetic`] choose at run time.

use crate::config::Arithmetic;

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

impl Arithmetic {
    /// x · y + z.
    pub fn mul_add(self, x: f32, y: f32, z: f32) -> f32 {
        match self {
            Self::Fused => Fused::mul_add(x, y, z),
            Self::Separate => Separate::mul_add(x, y, z),
        }
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
