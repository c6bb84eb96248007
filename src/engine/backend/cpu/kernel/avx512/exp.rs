//! e^x of 16 values at a time, and the functions built on it: softmax and SiLU. They use the operations of [`ops::exp`]
//! and the summation order of [`ops::softmax`].
#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::f32::consts::LOG2_E;

use super::{mask, reduce};
use llama_trace_core::ops::exp::{LARGEST, LN2_HIGH, LN2_LOW, ROUND, SMALLEST, TERMS};
use llama_trace_core::ops::matmul::LANES;

/// Computes [`ops::exp::exp`] of each lane.
///
/// [`ops::exp::exp`]: llama_trace_core::ops::exp::exp
#[target_feature(enable = "avx512f")]
#[inline]
fn exp(x: __m512) -> __m512 {
    // NaN stays NaN: if an operand is NaN, these instructions return the second operand, which is `x`.
    let x = _mm512_min_ps(_mm512_set1_ps(LARGEST), _mm512_max_ps(_mm512_set1_ps(SMALLEST), x));
    let shifted = _mm512_fmadd_ps(x, _mm512_set1_ps(LOG2_E), _mm512_set1_ps(ROUND));
    let n = _mm512_sub_ps(shifted, _mm512_set1_ps(ROUND));
    let high = _mm512_fmadd_ps(n, _mm512_set1_ps(-LN2_HIGH), x);
    let r = _mm512_fmadd_ps(n, _mm512_set1_ps(-LN2_LOW), high);
    let [t2, t3, t4, t5, t6, t7] = TERMS.map(|term| _mm512_set1_ps(term));
    let tail = [t6, t5, t4, t3, t2].into_iter().fold(t7, |tail, term| _mm512_fmadd_ps(tail, r, term));
    let series = _mm512_fmadd_ps(_mm512_mul_ps(r, r), tail, r);
    let series = _mm512_add_ps(series, _mm512_set1_ps(1.0));
    let n = _mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(ROUND.to_bits().cast_signed()));
    let half = _mm512_srai_epi32::<1>(n);
    let power = |n| {
        let exponent = _mm512_add_epi32(n, _mm512_set1_epi32(127));
        _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent))
    };
    _mm512_mul_ps(_mm512_mul_ps(series, power(half)), power(_mm512_sub_epi32(n, half)))
}

/// [`ops::softmax::softmax`].
///
/// [`ops::softmax::softmax`]: llama_trace_core::ops::softmax::softmax
pub(in super::super) fn softmax(row: &mut [f32]) {
    #[target_feature(enable = "avx2,fma,avx512f,avx512dq")]
    fn inner(row: &mut [f32]) {
        let (count, row) = (row.len(), row.as_mut_ptr());
        let least = _mm512_set1_ps(f32::NEG_INFINITY);
        let mut max = least;
        for at in (0..count).step_by(LANES) {
            // SAFETY: the mask keeps the load inside the row.
            let x = unsafe { _mm512_mask_loadu_ps(least, mask(count - at), row.add(at)) };
            // If `x` is NaN, the instruction returns `max`. So NaN is never the maximum.
            max = _mm512_max_ps(x, max);
        }
        let max = _mm512_set1_ps(_mm512_reduce_max_ps(max));
        let mut sums = _mm512_setzero_ps();
        for at in (0..count).step_by(LANES) {
            let mask = mask(count - at);
            // SAFETY: the mask keeps the load and the store inside the row.
            unsafe {
                let x = exp(_mm512_sub_ps(_mm512_maskz_loadu_ps(mask, row.add(at)), max));
                sums = _mm512_mask_add_ps(sums, mask, sums, x);
                _mm512_mask_storeu_ps(row.add(at), mask, x);
            }
        }
        let sum = _mm512_set1_ps(reduce(sums));
        for at in (0..count).step_by(LANES) {
            let mask = mask(count - at);
            // SAFETY: as above.
            unsafe {
                let x = _mm512_maskz_loadu_ps(mask, row.add(at));
                _mm512_mask_storeu_ps(row.add(at), mask, _mm512_div_ps(x, sum));
            }
        }
    }
    // SAFETY: a `Kernel` for AVX-512 exists only if the processor has these features.
    unsafe { inner(row) }
}

/// [`ops::swiglu::silu_all`].
///
/// [`ops::swiglu::silu_all`]: llama_trace_core::ops::swiglu::silu_all
pub(in super::super) fn silu(gate: &[f32], out: &mut [f32]) {
    #[target_feature(enable = "avx2,fma,avx512f,avx512dq")]
    fn inner(gate: &[f32], out: &mut [f32]) {
        let count = gate.len().min(out.len());
        for at in (0..count).step_by(LANES) {
            let mask = mask(count - at);
            // SAFETY: the mask keeps the load inside `gate`, and the store inside `out`.
            unsafe {
                let x = _mm512_maskz_loadu_ps(mask, gate.as_ptr().add(at));
                let e = exp(_mm512_xor_ps(x, _mm512_set1_ps(-0.0)));
                let silu = _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0), e));
                _mm512_mask_storeu_ps(out.as_mut_ptr().add(at), mask, silu);
            }
        }
    }
    // SAFETY: a `Kernel` for AVX-512 exists only if the processor has these features.
    unsafe { inner(gate, out) }
}
