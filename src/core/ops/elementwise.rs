//! Sums and products element by element: the residual connection and the SwiGLU gate.

use super::round;
use crate::config::Precision;

/// out = a + b.
#[inline(always)]
pub fn add(a: &[f32], b: &[f32], out: &mut [f32]) {
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = a + b;
    }
}

/// out = out + a.
pub fn add_to(a: &[f32], out: &mut [f32]) {
    for (out, a) in out.iter_mut().zip(a) {
        *out += a;
    }
}

/// out = a · b.
#[inline(always)]
pub fn mul(a: &[f32], b: &[f32], out: &mut [f32]) {
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = a * b;
    }
}

/// out = a + b · by; in bf16, the product is rounded, and then the sum.
pub fn add_scaled(a: &[f32], b: &[f32], by: f32, precision: Precision, out: &mut [f32]) {
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = a + round::value(precision, b * by);
    }
    round::row(precision, out);
}

/// Multiplies every value by `by`, rounded.
pub fn times(by: f32, precision: Precision, out: &mut [f32]) {
    out.iter_mut().for_each(|x| *x *= by);
    round::row(precision, out);
}

/// The soft cap: cap · tanh(x / cap). In bf16, each of the three results is rounded.
pub fn cap(cap: f32, precision: Precision, out: &mut [f32]) {
    for x in out.iter_mut() {
        let tanh = libm::tanhf(round::value(precision, *x / cap));
        *x = round::value(precision, tanh) * cap;
    }
    round::row(precision, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        let mut out = [0.0; 2];
        add(&[1.0, 2.0], &[10.0, 20.0], &mut out);
        assert_eq!(out, [11.0, 22.0]);
        mul(&[3.0, 4.0], &[10.0, 20.0], &mut out);
        assert_eq!(out, [30.0, 80.0]);
        add_scaled(&[1.0, 2.0], &[10.0, 20.0], 0.5, Precision::F32, &mut out);
        assert_eq!(out, [6.0, 12.0]);
        times(3.0, Precision::F32, &mut out);
        assert_eq!(out, [18.0, 36.0]);
        let mut scores = [1.0, 1000.0];
        cap(50.0, Precision::F32, &mut scores);
        assert!((scores[0] - 50.0 * 0.02_f32.tanh()).abs() < 1e-6 && scores[1] == 50.0);
    }
}
