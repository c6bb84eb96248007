//! e^x of eight values at a time, and the functions built on it: softmax and SiLU. They use the operations of
//! [`ops::exp`] and the summation order of [`ops::softmax`].

use std::arch::x86_64::*;
use std::f32::consts::LOG2_E;

use super::reduce;
use llama_trace_core::ops::exp::{LARGEST, LN2_HIGH, LN2_LOW, ROUND, SMALLEST, TERMS};

/// The number of values in a vector.
const WIDTH: usize = 8;

/// Computes [`ops::exp::exp`] of each lane.
///
/// [`ops::exp::exp`]: llama_trace_core::ops::exp::exp
#[target_feature(enable = "avx2,fma")]
#[inline]
fn exp(x: __m256) -> __m256 {
    // NaN stays NaN: if an operand is NaN, these instructions return the second operand, which is `x`.
    let x = _mm256_min_ps(_mm256_set1_ps(LARGEST), _mm256_max_ps(_mm256_set1_ps(SMALLEST), x));
    let shifted = _mm256_fmadd_ps(x, _mm256_set1_ps(LOG2_E), _mm256_set1_ps(ROUND));
    let n = _mm256_sub_ps(shifted, _mm256_set1_ps(ROUND));
    let high = _mm256_fmadd_ps(n, _mm256_set1_ps(-LN2_HIGH), x);
    let r = _mm256_fmadd_ps(n, _mm256_set1_ps(-LN2_LOW), high);
    let [t2, t3, t4, t5, t6, t7] = TERMS.map(|term| _mm256_set1_ps(term));
    let tail = [t6, t5, t4, t3, t2].into_iter().fold(t7, |tail, term| _mm256_fmadd_ps(tail, r, term));
    let series = _mm256_fmadd_ps(_mm256_mul_ps(r, r), tail, r);
    let series = _mm256_add_ps(series, _mm256_set1_ps(1.0));
    let n = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(ROUND.to_bits().cast_signed()));
    let half = _mm256_srai_epi32::<1>(n);
    let power = |n| {
        let exponent = _mm256_add_epi32(n, _mm256_set1_epi32(127));
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
    };
    _mm256_mul_ps(_mm256_mul_ps(series, power(half)), power(_mm256_sub_epi32(n, half)))
}

/// Returns the maximum of a row, ignoring NaN, in every lane; −∞ if there is no maximum.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn max(row: &[f32]) -> __m256 {
    let (eights, rest) = row.as_chunks::<WIDTH>();
    let mut max = _mm256_set1_ps(f32::NEG_INFINITY);
    for eight in eights {
        // SAFETY: `eight` has eight values. If the first operand is NaN, the instruction returns the second, so NaN is
        // never the maximum.
        max = unsafe { _mm256_max_ps(_mm256_loadu_ps(eight.as_ptr()), max) };
    }
    let mut last = [f32::NEG_INFINITY; WIDTH];
    last[..rest.len()].copy_from_slice(rest);
    // SAFETY: `last` has eight values.
    max = unsafe { _mm256_max_ps(_mm256_loadu_ps(last.as_ptr()), max) };
    max = _mm256_max_ps(max, _mm256_permute2f128_ps::<1>(max, max));
    max = _mm256_max_ps(max, _mm256_permute_ps::<0b01_00_11_10>(max));
    _mm256_max_ps(max, _mm256_permute_ps::<0b10_11_00_01>(max))
}

/// [`ops::softmax::softmax`].
///
/// [`ops::softmax::softmax`]: llama_trace_core::ops::softmax::softmax
#[target_feature(enable = "avx2,fma")]
pub(super) fn softmax(row: &mut [f32]) {
    let max = max(row);
    // The 16 partial sums: the first eight, and the last eight.
    let mut sums = [_mm256_setzero_ps(); 2];
    let (eights, rest) = row.as_chunks_mut::<WIDTH>();
    for (i, eight) in eights.iter_mut().enumerate() {
        // SAFETY: `eight` has eight values.
        unsafe {
            let x = exp(_mm256_sub_ps(_mm256_loadu_ps(eight.as_ptr()), max));
            sums[i % 2] = _mm256_add_ps(sums[i % 2], x);
            _mm256_storeu_ps(eight.as_mut_ptr(), x);
        }
    }
    // The rest is padded with −∞. Its exponential is 0, which does not change a sum.
    let mut last = [f32::NEG_INFINITY; WIDTH];
    last[..rest.len()].copy_from_slice(rest);
    if !rest.is_empty() {
        // SAFETY: `last` has eight values.
        unsafe {
            let x = exp(_mm256_sub_ps(_mm256_loadu_ps(last.as_ptr()), max));
            _mm256_storeu_ps(last.as_mut_ptr(), x);
        }
        last[rest.len()..].fill(0.0);
        // SAFETY: `last` has eight values.
        let x = unsafe { _mm256_loadu_ps(last.as_ptr()) };
        let sum = &mut sums[eights.len() % 2];
        *sum = _mm256_add_ps(*sum, x);
    }
    let sum = _mm256_set1_ps(reduce(_mm256_add_ps(sums[0], sums[1])));
    for eight in eights {
        // SAFETY: `eight` has eight values.
        unsafe {
            let x = _mm256_loadu_ps(eight.as_ptr());
            _mm256_storeu_ps(eight.as_mut_ptr(), _mm256_div_ps(x, sum));
        }
    }
    // SAFETY: `last` has eight values.
    unsafe {
        let x = _mm256_loadu_ps(last.as_ptr());
        _mm256_storeu_ps(last.as_mut_ptr(), _mm256_div_ps(x, sum));
    }
    rest.copy_from_slice(&last[..rest.len()]);
}

/// Computes [`ops::swiglu::silu`] of eight values.
///
/// [`ops::swiglu::silu`]: llama_trace_core::ops::swiglu::silu
#[target_feature(enable = "avx2,fma")]
#[inline]
fn silu_8(x: &[f32; WIDTH], out: &mut [f32; WIDTH]) {
    // SAFETY: `x` and `out` have eight values each.
    unsafe {
        let x = _mm256_loadu_ps(x.as_ptr());
        let e = exp(_mm256_xor_ps(x, _mm256_set1_ps(-0.0)));
        let silu = _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0), e));
        _mm256_storeu_ps(out.as_mut_ptr(), silu);
    }
}

/// [`ops::swiglu::silu_all`].
///
/// [`ops::swiglu::silu_all`]: llama_trace_core::ops::swiglu::silu_all
#[target_feature(enable = "avx2,fma")]
pub(super) fn silu(gate: &[f32], out: &mut [f32]) {
    let (eights, rest) = gate.as_chunks::<WIDTH>();
    let (to_eights, to_rest) = out.as_chunks_mut::<WIDTH>();
    for (x, out) in eights.iter().zip(to_eights) {
        silu_8(x, out);
    }
    let (mut last, mut made) = ([0.0; WIDTH], [0.0; WIDTH]);
    last[..rest.len()].copy_from_slice(rest);
    silu_8(&last, &mut made);
    to_rest[..rest.len()].copy_from_slice(&made[..rest.len()]);
}
