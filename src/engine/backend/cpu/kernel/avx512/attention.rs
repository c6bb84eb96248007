//! The loops of attention. If several queries read the same keys, a vector holds one component of 16 keys; otherwise it
//! holds 16 components of one key.
#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::ops::Range;

use super::{mask, reduce_8, reduce_16, transpose};
use crate::backend::cpu::kernel::Aligned;
use llama_trace_core::ops;
use llama_trace_core::ops::matmul::{LANES, STRETCH};

/// The width of the narrowest heads in practice. Two of their keys fill one vector.
const HALF: usize = LANES / 2;

/// Computes [`ops::attention::qk`] for 16 keys at a time. Their 16 sums are reduced together.
pub(in super::super) fn qk(query: &[f32], keys: &[f32], stride: usize, out: &mut [f32]) {
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    fn inner(query: &[f32], keys: &[f32], stride: usize, out: &mut [f32]) {
        if query.len() > STRETCH {
            return ops::attention::qk(query, keys, stride, out);
        }
        for (block, out) in out.chunks_mut(LANES).enumerate() {
            let keys = &keys[block * LANES * stride..];
            if out.len() == LANES {
                of_block::<true>(query, keys, stride, out);
            } else {
                of_block::<false>(query, keys, stride, out);
            }
        }
    }
    // SAFETY: a `Kernel` for AVX-512 exists only if the processor has these features.
    unsafe { inner(query, keys, stride, out) }
}

/// Computes [`qk`] for up to 16 keys, or for exactly 16 if `WHOLE`.
#[target_feature(enable = "avx512f,avx512dq")]
#[inline]
fn of_block<const WHOLE: bool>(query: &[f32], keys: &[f32], stride: usize, out: &mut [f32]) {
    let (width, last) = (query.len(), if WHOLE { LANES - 1 } else { out.len() - 1 });
    let (keys, of_keys) = (&keys[..last * stride + width], mask(out.len()));
    // Missing keys are replaced by the last one.
    let of_key = |key: usize| keys.as_ptr().wrapping_add(stride * if WHOLE { key } else { key.min(last) });
    if width == HALF {
        // SAFETY: the query and each of the keys have 8 values.
        let sums = unsafe {
            let x = _mm512_broadcast_f32x8(_mm256_loadu_ps(query.as_ptr()));
            std::array::from_fn(|i| {
                let pair = _mm512_castps256_ps512(_mm256_loadu_ps(of_key(2 * i)));
                let pair = _mm512_insertf32x8::<1>(pair, _mm256_loadu_ps(of_key(2 * i + 1)));
                // The sum starts from 0, like the sums of whole vectors. So −0 becomes 0.
                _mm512_fmadd_ps(x, pair, _mm512_setzero_ps())
            })
        };
        // SAFETY: the mask keeps the store inside `out`.
        return unsafe { _mm512_mask_storeu_ps(out.as_mut_ptr(), of_keys, reduce_8(sums)) };
    }
    let mut sums = [_mm512_setzero_ps(); LANES];
    for at in (0..width).step_by(LANES) {
        let mask = mask(width - at);
        // SAFETY: the mask keeps each load inside `query` and inside the row of its key. The row of the last key ends
        // where `keys` ends.
        unsafe {
            let x = _mm512_maskz_loadu_ps(mask, query.as_ptr().add(at));
            for (key, sum) in sums.iter_mut().enumerate() {
                *sum = _mm512_fmadd_ps(x, _mm512_maskz_loadu_ps(mask, of_key(key).add(at)), *sum);
            }
        }
    }
    // SAFETY: as above.
    unsafe { _mm512_mask_storeu_ps(out.as_mut_ptr(), of_keys, reduce_16(sums)) };
}

/// The maximum number of vectors of 16 keys that one query multiplies at once.
const VECTORS: usize = 4;

/// Packs `count` keys of `width` components as (16 keys, component, key) for [`qk_packed`].
pub(in super::super) fn pack_keys(
    keys: &[f32],
    stride: usize,
    count: usize,
    width: usize,
    packed: &mut Vec<Aligned>,
) {
    #[target_feature(enable = "avx512f")]
    fn inner(keys: &[f32], stride: usize, count: usize, width: usize, packed: &mut [Aligned]) {
        for (block, packed) in packed.chunks_exact_mut(width).take(count.div_ceil(LANES)).enumerate() {
            for at in (0..width).step_by(LANES) {
                let mask = mask(width - at);
                let mut rows = [_mm512_setzero_ps(); LANES];
                for (i, row) in rows.iter_mut().take(count - block * LANES).enumerate() {
                    let key = &keys[(block * LANES + i) * stride..][..width];
                    // SAFETY: the mask keeps the load inside the key.
                    *row = unsafe { _mm512_maskz_loadu_ps(mask, key.as_ptr().add(at)) };
                }
                for (to, component) in packed[at..].iter_mut().zip(transpose(rows)) {
                    // SAFETY: `to` has 16 values.
                    unsafe { _mm512_storeu_ps(to.0.as_mut_ptr(), component) };
                }
            }
        }
    }
    packed.resize(count.next_multiple_of(VECTORS * LANES) / LANES * width, bytemuck::Zeroable::zeroed());
    // SAFETY: a `Kernel` for AVX-512 exists only if the processor has these features.
    unsafe { inner(keys, stride, count, width, packed) }
}

/// Computes [`ops::attention::qk`] of consecutive queries of `width` components with the packed keys in `part`. `out`
/// holds the results, which begin with the first of these keys, and the stride from one query's results to the next.
pub(in super::super) fn qk_packed(
    queries: &[f32],
    width: usize,
    packed: &[Aligned],
    part: &Range<usize>,
    (out, stride): (&mut [f32], usize),
) {
    #[target_feature(enable = "avx512f,avx512dq")]
    fn inner(
        queries: &[f32],
        width: usize,
        packed: &[Aligned],
        part: &Range<usize>,
        out: &mut [f32],
        stride: usize,
    ) {
        let pairs = queries.chunks(2 * width).zip(out.chunks_mut(2 * stride));
        for (queries, out) in pairs {
            match queries.split_at(width) {
                (first, []) => tiles::<1, VECTORS>([first], packed, part, [out]),
                (first, second) => {
                    let (out, second_out) = out.split_at_mut(stride);
                    tiles::<2, { VECTORS / 2 }>([first, second], packed, part, [out, second_out]);
                }
            }
        }
    }
    // SAFETY: a `Kernel` for AVX-512 exists only if the processor has these features.
    unsafe { inner(queries, width, packed, part, out, stride) }
}

/// Multiplies Q queries with V vectors of keys at a time.
#[target_feature(enable = "avx512f,avx512dq")]
#[inline]
fn tiles<const Q: usize, const V: usize>(
    queries: [&[f32]; Q],
    packed: &[Aligned],
    part: &Range<usize>,
    mut out: [&mut [f32]; Q],
) {
    let (width, step) = (queries[0].len(), V * LANES);
    assert!(part.end.next_multiple_of(step) / LANES * width <= packed.len());
    assert!(
        queries.iter().all(|query| query.len() == width) && out.iter().all(|out| out.len() >= part.len())
    );
    for first in (part.start / step * step..part.end).step_by(step) {
        // SAFETY: `first` is below the part's end. So the assertion checks that there are V blocks of keys from `first`
        // on.
        let sums = unsafe { sums::<Q, V>(queries, &packed[first / LANES * width..]) };
        for (sums, out) in sums.into_iter().zip(&mut out) {
            for (v, sums) in sums.into_iter().enumerate() {
                let first = first + v * LANES;
                let wanted = mask(part.end.saturating_sub(first)) & !mask(part.start.saturating_sub(first));
                // SAFETY: `out` begins with the part's first key, and the mask keeps the store to the keys of the part.
                unsafe {
                    let to = out.as_mut_ptr().wrapping_sub(part.start).wrapping_add(first);
                    _mm512_mask_storeu_ps(to, wanted, sums);
                }
            }
        }
    }
}

/// Returns the products of Q queries with V vectors of keys, summed like [`ops::matmul::dot`]: first the components
/// with the same remainder modulo 16 are summed, then these partial sums are added by halves.
///
/// # Safety
/// `blocks` has V blocks, each with as many components as a query.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn sums<const Q: usize, const V: usize>(queries: [&[f32]; Q], blocks: &[Aligned]) -> [[__m512; V]; Q] {
    let width = queries[0].len();
    let partial = |remainder: usize| {
        let mut sums = [[_mm512_setzero_ps(); V]; Q];
        for c in (remainder..width).step_by(LANES) {
            // SAFETY: every query and every block has this component.
            unsafe {
                let mut keys = [_mm512_setzero_ps(); V];
                for (v, keys) in keys.iter_mut().enumerate() {
                    *keys = _mm512_load_ps(blocks.as_ptr().add(v * width + c).cast());
                }
                for (query, sums) in queries.iter().zip(&mut sums) {
                    let x = _mm512_set1_ps(*query.get_unchecked(c));
                    for (sum, keys) in sums.iter_mut().zip(keys) {
                        *sum = _mm512_fmadd_ps(x, keys, *sum);
                    }
                }
            }
        }
        sums
    };
    let add = |mut a: [[__m512; V]; Q], b: [[__m512; V]; Q]| {
        for (a, b) in a.iter_mut().zip(b) {
            for (a, b) in a.iter_mut().zip(b) {
                *a = _mm512_add_ps(*a, b);
            }
        }
        a
    };
    let of_2 = |r: usize| add(partial(r), partial(r + 8));
    let of_4 = |r: usize| add(of_2(r), of_2(r + 4));
    let of_8 = |r: usize| add(of_4(r), of_4(r + 2));
    add(of_8(0), of_8(1))
}

/// Computes [`ops::attention::mix`] of several rows of `count` weights with the values of `count` keys. `apart` is the
/// distance between the starts of the rows. `out` holds consecutive rows of `width` components.
pub(in super::super) fn mix(
    weights: &[f32],
    (count, apart): (usize, usize),
    values: &[f32],
    stride: usize,
    width: usize,
    out: &mut [f32],
) {
    let mut row = 0;
    let mut rest = out;
    while !rest.is_empty() {
        let weights = |i: usize| &weights[(row + i) * apart..][..count];
        let at_once = match rest.len() / width {
            4.. => 4,
            2.. => 2,
            _ => 1,
        };
        let out = rest.split_off_mut(..at_once * width).unwrap_or_default();
        // SAFETY: a `Kernel` for AVX-512 exists only if the processor has these features.
        unsafe {
            match at_once {
                4 => rows::<4, 4>(std::array::from_fn(weights), values, stride, out),
                2 => rows::<2, 4>(std::array::from_fn(weights), values, stride, out),
                _ => rows::<1, 8>(std::array::from_fn(weights), values, stride, out),
            }
        }
        row += at_once;
    }
}

/// Computes Q rows, up to V vectors of components at a time. Their sums are in registers.
#[target_feature(enable = "avx512f")]
fn rows<const Q: usize, const V: usize>(
    weights: [&[f32]; Q],
    values: &[f32],
    stride: usize,
    out: &mut [f32],
) {
    let mut at = 0;
    while at < out.len() / Q {
        at += match (out.len() / Q - at).div_ceil(LANES) {
            vectors if vectors >= V => columns::<Q, V>(weights, values, stride, at, out),
            4.. => columns::<Q, 4>(weights, values, stride, at, out),
            _ => columns::<Q, 1>(weights, values, stride, at, out),
        };
    }
}

/// Computes V vectors of components from `at` on. Returns the number of components.
#[target_feature(enable = "avx512f")]
#[inline]
fn columns<const Q: usize, const V: usize>(
    weights: [&[f32]; Q],
    values: &[f32],
    stride: usize,
    at: usize,
    out: &mut [f32],
) -> usize {
    let (width, count) = (out.len() / Q, weights[0].len());
    assert!(out.len() == Q * width && at + (V - 1) * LANES < width);
    assert!(weights.iter().all(|weights| weights.len() == count));
    assert!(count == 0 || values.len() >= (count - 1) * stride + width);
    // The last vector may not be full.
    let last = mask(width - at - (V - 1) * LANES);
    let mask = |v: usize| if v == V - 1 { last } else { !0 };
    // SAFETY: the masks keep loads and stores inside the rows of `out` and inside the value of each key. The assertion
    // checks that the last value is inside `values`. Each row of weights has one weight for every key.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); V]; Q];
        for (q, sums) in sums.iter_mut().enumerate() {
            for (v, sum) in sums.iter_mut().enumerate() {
                *sum = _mm512_maskz_loadu_ps(mask(v), out.as_ptr().add(q * width + at + v * LANES));
            }
        }
        for k in 0..count {
            let value = values.as_ptr().add(k * stride + at);
            let mut vectors = [_mm512_setzero_ps(); V];
            for (v, vector) in vectors.iter_mut().enumerate() {
                *vector = _mm512_maskz_loadu_ps(mask(v), value.add(v * LANES));
            }
            for (weights, sums) in weights.iter().zip(&mut sums) {
                let weight = _mm512_set1_ps(*weights.get_unchecked(k));
                for (sum, vector) in sums.iter_mut().zip(vectors) {
                    *sum = _mm512_fmadd_ps(weight, vector, *sum);
                }
            }
        }
        for (q, sums) in sums.into_iter().enumerate() {
            for (v, sum) in sums.into_iter().enumerate() {
                _mm512_mask_storeu_ps(out.as_mut_ptr().add(q * width + at + v * LANES), mask(v), sum);
            }
        }
    }
    V * LANES
}
