//! Attention's two loops, for heads of whole vectors, which all models but the smallest have.

use std::arch::x86_64::*;

use super::reduce_8;
use crate::ops;
use crate::ops::matmul::{LANES, STRETCH};

/// Values in a vector, and keys that are taken at a time.
const WIDTH: usize = 8;

/// [`ops::attention::qk`]: eight keys at a time, whose eight sums are reduced together.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn qk(query: &[f32], keys: &[f32], stride: usize, out: &mut [f32]) {
    let width = query.len();
    if !width.is_multiple_of(LANES) || width > STRETCH {
        return ops::attention::qk(query, keys, stride, out);
    }
    let (blocks, rest) = out.as_chunks_mut::<WIDTH>();
    for (block, out) in blocks.iter_mut().enumerate() {
        let keys = &keys[block * WIDTH * stride..][..(WIDTH - 1) * stride + width];
        let mut eights = [_mm256_setzero_ps(); WIDTH];
        for (four, eights) in eights.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let mut sums = [[_mm256_setzero_ps(); 2]; 4];
            for at in (0..width).step_by(WIDTH) {
                // SAFETY: `query` and the row of each key have eight values from here on; the last row ends where `keys`
                // does.
                unsafe {
                    let x = _mm256_loadu_ps(query.as_ptr().add(at));
                    for (key, sums) in sums.iter_mut().enumerate() {
                        let key = _mm256_loadu_ps(keys.as_ptr().add((4 * four + key) * stride + at));
                        let sum = &mut sums[at / WIDTH % 2];
                        *sum = _mm256_fmadd_ps(x, key, *sum);
                    }
                }
            }
            *eights = sums.map(|[low, high]| _mm256_add_ps(low, high));
        }
        // SAFETY: eight values.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), reduce_8(eights)) };
    }
    let done = blocks.len() * WIDTH;
    ops::attention::qk(query, &keys[(done * stride).min(keys.len())..], stride, rest);
}

/// [`ops::attention::mix`], with the sums of up to 64 components in registers.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn mix(weights: &[f32], values: &[f32], stride: usize, out: &mut [f32]) {
    let Some(last) = weights.len().checked_sub(1) else { return };
    let mut at = 0;
    while at < out.len() {
        let (values, out) = (&values[at..], &mut out[at..]);
        assert!(values.len() >= last * stride + out.len());
        at += match out.len() {
            64.. => columns::<8>(weights, values, stride, out),
            WIDTH.. => columns::<1>(weights, values, stride, out),
            left => {
                ops::attention::mix(weights, values, stride, out);
                left
            }
        };
    }
}

/// [`mix`] of the first N vectors of components; how many those are.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn columns<const N: usize>(weights: &[f32], values: &[f32], stride: usize, out: &mut [f32]) -> usize {
    let out = &mut out[..N * WIDTH];
    assert!(weights.is_empty() || values.len() >= (weights.len() - 1) * stride + out.len());
    // SAFETY: `out` has N vectors, and so has the row of each value, of which the last is inside `values`, as was just
    // checked.
    unsafe {
        let mut sums: [_; N] = std::array::from_fn(|i| _mm256_loadu_ps(out.as_ptr().add(i * WIDTH)));
        for (k, weight) in weights.iter().enumerate() {
            let weight = _mm256_set1_ps(*weight);
            for (i, sum) in sums.iter_mut().enumerate() {
                let value = _mm256_loadu_ps(values.as_ptr().add(k * stride + i * WIDTH));
                *sum = _mm256_fmadd_ps(weight, value, *sum);
            }
        }
        for (i, sum) in sums.into_iter().enumerate() {
            _mm256_storeu_ps(out.as_mut_ptr().add(i * WIDTH), sum);
        }
    }
    N * WIDTH
}
