//! The two loops of attention, for heads whose width is a multiple of a vector. All but the smallest models have such
//! heads. If several queries read the same keys, a vector holds one component of eight keys; otherwise it holds eight
//! components of one key.

use std::arch::x86_64::*;
use std::ops::Range;

use bytemuck::Zeroable;

use super::{reduce_8, transpose};
use crate::backend::cpu::kernel::Aligned;
use crate::backend::cpu::kernel::gemm::ORDER;
use llama_trace_core::ops;
use llama_trace_core::ops::matmul::{LANES, STRETCH};

/// The number of values in a vector, and of keys processed at a time.
const WIDTH: usize = 8;

/// Computes [`ops::attention::qk`] for eight keys at a time. Their eight sums are reduced together.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn qk(query: &[f32], keys: &[f32], stride: usize, out: &mut [f32]) {
    let width = query.len();
    if !width.is_multiple_of(WIDTH) || width > STRETCH {
        return ops::attention::qk(query, keys, stride, out);
    }
    let (blocks, rest) = out.as_chunks_mut::<WIDTH>();
    let done = blocks.len() * WIDTH;
    for (block, out) in blocks.iter_mut().enumerate() {
        of_block::<true>(query, &keys[block * WIDTH * stride..], stride, WIDTH, out);
    }
    if !rest.is_empty() {
        let mut sums = [0.0; WIDTH];
        of_block::<false>(query, &keys[done * stride..], stride, rest.len(), &mut sums);
        rest.copy_from_slice(&sums[..rest.len()]);
    }
}

/// Computes [`qk`] for `count` keys, or for exactly eight if `WHOLE`. Missing keys are replaced by the last one.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn of_block<const WHOLE: bool>(
    query: &[f32],
    keys: &[f32],
    stride: usize,
    count: usize,
    out: &mut [f32; WIDTH],
) {
    let (width, last) = (query.len(), if WHOLE { WIDTH - 1 } else { count - 1 });
    let keys = &keys[..last * stride + width];
    let mut eights = [_mm256_setzero_ps(); WIDTH];
    for (four, eights) in eights.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let mut sums = [[_mm256_setzero_ps(); 2]; 4];
        for at in (0..width).step_by(WIDTH) {
            // SAFETY: `query` and the row of each key have eight values from here on. The row of the last key ends
            // where `keys` ends.
            unsafe {
                let x = _mm256_loadu_ps(query.as_ptr().add(at));
                for (key, sums) in sums.iter_mut().enumerate() {
                    let key = if WHOLE { 4 * four + key } else { (4 * four + key).min(last) };
                    let key = _mm256_loadu_ps(keys.as_ptr().add(key * stride + at));
                    let sum = &mut sums[at / WIDTH % 2];
                    *sum = _mm256_fmadd_ps(x, key, *sum);
                }
            }
        }
        *eights = sums.map(|[low, high]| _mm256_add_ps(low, high));
    }
    // SAFETY: `out` has eight values.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), reduce_8(eights)) };
}

/// The maximum number of vectors of eight keys that one query multiplies at once.
const VECTORS: usize = 8;

/// Packs `count` keys of `width` components, a multiple of 8, as (16 keys, component, key) for [`qk_packed`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn pack_keys(keys: &[f32], stride: usize, count: usize, width: usize, packed: &mut Vec<Aligned>) {
    packed.resize(count.next_multiple_of(VECTORS * WIDTH) / LANES * width, Aligned::zeroed());
    for (eight, first) in (0..count).step_by(WIDTH).enumerate() {
        let packed = &mut packed[eight / 2 * width..][..width];
        for (packed, at) in packed.as_chunks_mut::<WIDTH>().0.iter_mut().zip((0..).step_by(WIDTH)) {
            let row = |i: usize| match first + i < count {
                // SAFETY: the slice has eight values.
                true => unsafe { _mm256_loadu_ps(keys[(first + i) * stride + at..][..WIDTH].as_ptr()) },
                false => _mm256_setzero_ps(),
            };
            let components = transpose(std::array::from_fn(row));
            for (i, to) in packed.iter_mut().enumerate() {
                let to = &mut to.0.as_chunks_mut::<WIDTH>().0[eight % 2];
                // SAFETY: `to` has eight values.
                unsafe { _mm256_storeu_ps(to.as_mut_ptr(), components[i]) };
            }
        }
    }
}

/// Computes [`ops::attention::qk`] of consecutive queries of `width` components with the packed keys in `part`. `out`
/// holds the results, which begin with the first of these keys, and the stride from one query's results to the next.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn qk_packed(
    queries: &[f32],
    width: usize,
    packed: &[Aligned],
    part: &Range<usize>,
    (out, stride): (&mut [f32], usize),
) {
    for (queries, out) in queries.chunks(2 * width).zip(out.chunks_mut(2 * stride)) {
        match queries.split_at(width) {
            (first, []) => tiles::<1, VECTORS>([first], packed, part, &mut [out]),
            (first, second) => {
                let (out, second_out) = out.split_at_mut(stride);
                tiles::<2, { VECTORS / 2 }>([first, second], packed, part, &mut [out, second_out]);
            }
        }
    }
}

/// Multiplies Q queries with V vectors of keys at a time.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn tiles<const Q: usize, const V: usize>(
    queries: [&[f32]; Q],
    packed: &[Aligned],
    part: &Range<usize>,
    out: &mut [&mut [f32]; Q],
) {
    let (width, step) = (queries[0].len(), V * WIDTH);
    assert!(part.end.next_multiple_of(step) / LANES * width <= packed.len());
    assert!(queries.iter().all(|query| query.len() == width));
    for first in (part.start / step * step..part.end).step_by(step) {
        // SAFETY: `first` is below the part's end. So the assertion checks that there are V vectors of keys from
        // `first` on.
        let sums = unsafe { sums::<Q, V>(queries, &packed[first / LANES * width..]) };
        let wanted = part.start.max(first)..part.end.min(first + step);
        for q in 0..Q {
            let out = &mut out[q][wanted.start - part.start..][..wanted.len()];
            let mut of_keys = [0.0; WIDTH * VECTORS];
            let whole = out.len() == step;
            let to = if whole { &mut *out } else { &mut of_keys[..step] };
            for (to, sums) in to.as_chunks_mut::<WIDTH>().0.iter_mut().zip(&sums[q]) {
                // SAFETY: `to` has eight values.
                unsafe { _mm256_storeu_ps(to.as_mut_ptr(), *sums) };
            }
            if !whole {
                out.copy_from_slice(&of_keys[wanted.start - first..][..wanted.len()]);
            }
        }
    }
}

/// Returns the products of Q queries with V vectors of keys, summed like [`ops::matmul::dot`]: first the components
/// with the same remainder modulo 16 are summed, then these partial sums are added by halves.
///
/// # Safety
/// `blocks` has the keys of V vectors, each with as many components as a query.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn sums<const Q: usize, const V: usize>(queries: [&[f32]; Q], blocks: &[Aligned]) -> [[__m256; V]; Q] {
    let width = queries[0].len();
    let zeros = [[_mm256_setzero_ps(); V]; Q];
    // Level l holds a sum over 2^l remainders.
    let mut levels = [zeros; LANES.ilog2() as usize + 1];
    for (turn, remainder) in ORDER.into_iter().enumerate() {
        let mut sums = zeros;
        for c in (remainder..width).step_by(LANES) {
            // SAFETY: the queries and the keys have this component. 16 keys fill two vectors.
            unsafe {
                let mut keys = [_mm256_setzero_ps(); V];
                for v in 0..V {
                    let of_16 = blocks.as_ptr().add(v / 2 * width + c).cast::<f32>();
                    keys[v] = _mm256_loadu_ps(of_16.add(v % 2 * WIDTH));
                }
                for q in 0..Q {
                    let x = _mm256_set1_ps(*queries[q].get_unchecked(c));
                    for v in 0..V {
                        sums[q][v] = _mm256_fmadd_ps(x, keys[v], sums[q][v]);
                    }
                }
            }
        }
        let level = turn.trailing_ones() as usize;
        for earlier in &levels[..level] {
            for q in 0..Q {
                for v in 0..V {
                    sums[q][v] = _mm256_add_ps(earlier[q][v], sums[q][v]);
                }
            }
        }
        levels[level] = sums;
    }
    levels[LANES.ilog2() as usize]
}

/// Computes [`ops::attention::mix`] of several rows of `count` weights with the values of `count` keys. `apart` is the
/// distance between the starts of the rows. `out` holds consecutive rows of `width` components.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn mix(
    weights: &[f32],
    (count, apart): (usize, usize),
    values: &[f32],
    stride: usize,
    width: usize,
    out: &mut [f32],
) {
    let weights_of = |row: usize| &weights[row * apart..][..count];
    for (pair, out) in out.chunks_mut(2 * width).enumerate() {
        let first = weights_of(2 * pair);
        if out.len() == width {
            rows::<1, 8>([first], values, stride, out);
        } else {
            rows::<2, 4>([first, weights_of(2 * pair + 1)], values, stride, out);
        }
    }
}

/// Computes Q rows, up to V vectors of components at a time. Their sums are in registers.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn rows<const Q: usize, const V: usize>(
    weights: [&[f32]; Q],
    values: &[f32],
    stride: usize,
    out: &mut [f32],
) {
    let (width, count) = (out.len() / Q, weights[0].len());
    if count == 0 {
        return;
    }
    assert!(weights.iter().all(|weights| weights.len() == count));
    assert!(values.len() >= (count - 1) * stride + width);
    let mut at = 0;
    while at + WIDTH <= width {
        // SAFETY: the components are inside each row of `out` and inside the value of each key; the assertion checks
        // this.
        at += unsafe {
            match (width - at) / WIDTH {
                vectors if vectors >= V => columns::<Q, V>(weights, values, stride, at, out),
                4.. => columns::<Q, 4>(weights, values, stride, at, out),
                _ => columns::<Q, 1>(weights, values, stride, at, out),
            }
        };
    }
    if at < width {
        for (weights, out) in weights.into_iter().zip(out.chunks_exact_mut(width)) {
            ops::attention::mix(weights, &values[at..], stride, &mut out[at..]);
        }
    }
}

/// Computes V vectors of components from `at` on. Returns the number of components.
///
/// # Safety
/// The components are inside the Q rows of `out` and inside the value of each key. Each row of weights has one weight
/// for every key.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn columns<const Q: usize, const V: usize>(
    weights: [&[f32]; Q],
    values: &[f32],
    stride: usize,
    at: usize,
    out: &mut [f32],
) -> usize {
    let width = out.len() / Q;
    // SAFETY: guaranteed by the caller.
    unsafe {
        let of_row = |q: usize, v: usize| q * width + at + v * WIDTH;
        let mut sums = [[_mm256_setzero_ps(); V]; Q];
        for q in 0..Q {
            for v in 0..V {
                sums[q][v] = _mm256_loadu_ps(out.as_ptr().add(of_row(q, v)));
            }
        }
        for k in 0..weights[0].len() {
            let value = values.as_ptr().add(k * stride + at);
            let mut vectors = [_mm256_setzero_ps(); V];
            for v in 0..V {
                vectors[v] = _mm256_loadu_ps(value.add(v * WIDTH));
            }
            for q in 0..Q {
                let weight = _mm256_set1_ps(*weights[q].get_unchecked(k));
                for v in 0..V {
                    sums[q][v] = _mm256_fmadd_ps(weight, vectors[v], sums[q][v]);
                }
            }
        }
        for q in 0..Q {
            for v in 0..V {
                _mm256_storeu_ps(out.as_mut_ptr().add(of_row(q, v)), sums[q][v]);
            }
        }
    }
    V * WIDTH
}
