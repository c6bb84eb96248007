//! e^x in float32, by operations that are the same for vectors of any width. The result has the same bits on every
//! processor; the system's own function does not guarantee that.

use std::f32::consts::LOG2_E;

use super::arithmetic::{Fused, MulAdd};

/// Below this number, the result is 0. The bound also keeps n small.
pub const SMALLEST: f32 = -104.0;
/// Above this number, the result is +∞.
pub const LARGEST: f32 = 89.0;
/// 1.5 · 2²³. Adding and then subtracting this constant rounds a number to an integer, ties to even.
pub const ROUND: f32 = 12_582_912.0;
/// The upper bits of ln 2, few enough that n · `LN2_HIGH` is exact.
pub const LN2_HIGH: f32 = 0.693_145_75;
/// The rest of ln 2.
pub const LN2_LOW: f32 = 1.428_606_8e-6;
/// 1/k! for k = 2 … 7, the coefficients of the series Σ rᵏ/k!.
pub const TERMS: [f32; 6] = [0.5, 1.0 / 6.0, 1.0 / 24.0, 1.0 / 120.0, 1.0 / 720.0, 1.0 / 5040.0];

/// e^x = 2ⁿ · e^r, with n = x / ln 2 rounded to an integer and |r| ≤ ln 2 / 2. The series for e^r then needs eight
/// terms. The error is at most 1.1 units in the last place. The result is 0 or +∞ outside float32's range, and NaN for
/// NaN.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    exp_by::<Fused>(x)
}

/// [`exp`] with the multiply-add of `M`. The bound of the error is the same.
#[inline(always)]
pub fn exp_by<M: MulAdd>(x: f32) -> f32 {
    let x = x.clamp(SMALLEST, LARGEST);
    let shifted = M::mul_add(x, LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = M::mul_add(n, -LN2_LOW, M::mul_add(n, -LN2_HIGH, x));
    let [t2, t3, t4, t5, t6, t7] = TERMS;
    let tail =
        [t5, t4, t3, t2].into_iter().fold(M::mul_add(r, t7, t6), |tail, term| M::mul_add(tail, r, term));
    let series = M::mul_add(r * r, tail, r) + 1.0;
    // The lowest bits of `shifted` are n. 2ⁿ may be subnormal, so it is multiplied in two steps.
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits()).cast_signed();
    let half = n >> 1;
    series * power(half) * power(n.wrapping_sub(half))
}

/// 2ⁿ for −126 ≤ n ≤ 127.
#[inline(always)]
fn power(n: i32) -> f32 {
    f32::from_bits(n.wrapping_add(127).cast_unsigned() << 23)
}

#[cfg(test)]
mod tests {
    use super::super::arithmetic::Separate;
    use super::*;

    #[test]
    fn known_values() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(1.0), std::f32::consts::E);
        assert_eq!((exp(f32::NEG_INFINITY), exp(-1000.0)), (0.0, 0.0));
        assert_eq!((exp(f32::INFINITY), exp(88.8)), (f32::INFINITY, f32::INFINITY));
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn close_to_double_precision() {
        let mut x = -103.9_f32;
        while x < 88.72 {
            let exact = f64::from(x).exp();
            let nearest = exact as f32;
            let unit = f64::from(f32::from_bits(nearest.to_bits() + 1)) - f64::from(nearest);
            for found in [exp(x), exp_by::<Separate>(x)] {
                let error = (f64::from(found) - exact).abs() / unit;
                assert!(error <= 1.1, "exp({x}) is {error} units off");
            }
            x += 0.000_37;
        }
    }
}
