//! The int8 products for AVX-512 VNNI, whose `vpdpbusd` multiplies unsigned with signed bytes and adds four
//! neighbouring products to an int32. Weights are made unsigned by adding 128, and −128 · Σ x is added to each
//! sum; all of this is exact, so the result is that of [`crate::ops::quantize::dot`] to the bit.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::limits::CHAINS;
use super::q8::{GROUP, QUADS, Quantized, TILE, Tiles};
use super::{Rows, avx512};
use crate::ops::matmul::LANES;

/// Weight rows that [`rows`] reads side by side.
const ROWS: usize = 4;

/// Inputs that make 16 groups: one of each partial sum.
const CHUNK: usize = LANES * GROUP;

/// See [`super::Kernel::q8`].
pub(super) fn q8(x: &Quantized, w: Rows<'_>, out: &mut [&mut [f32]]) {
    let Some(scales) = w.scales.filter(|scales| scales.group == GROUP && x.is_regular()) else {
        return avx512::q8(x, w, out);
    };
    let groups = x.inputs / GROUP;
    let scales = &scales.scales[scales.first_row * groups..][..w.count() * groups];
    match x.tiles() {
        Some(tiles) => {
            // SAFETY: a `Kernel` for VNNI exists only where the processor has these features.
            unsafe { panels(tiles, groups, w, scales, out) }
        }
        None => {
            for (token, out) in out.iter_mut().enumerate() {
                let x = x.row(token);
                // SAFETY: as above.
                unsafe { rows(x, w, scales, out) }
            }
        }
    }
}

/// See [`super::Kernel::multiply_limit`]: 64 products of int8 values for each 16 values.
pub(super) fn multiply(rounds: usize, factor: i32) -> f32 {
    #[target_feature(enable = "avx512f,avx512vnni")]
    fn inner(rounds: usize, factor: i32) -> i32 {
        let x = _mm512_set1_epi32(factor);
        let mut sums = [_mm512_setzero_si512(); CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, x, x);
            }
        }
        sums.into_iter().fold(0, |all, sum| all ^ _mm512_reduce_add_epi32(sum))
    }
    // SAFETY: a `Kernel` for VNNI exists only where the processor has these features.
    unsafe { inner(rounds, factor) as f32 }
}

/// One row of activations with every row of `w`, reading each weight where it lies.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn rows((x, x_scales): (&[i8], &[f32]), w: Rows<'_>, scales: &[[u8; 4]], out: &mut [f32]) {
    let (inputs, groups) = (x.len(), x.len() / GROUP);
    let flip = _mm512_set1_epi8(-128);
    for (block, out) in out.chunks_mut(ROWS).enumerate() {
        let row = |i: usize| block * ROWS + i.min(out.len() - 1);
        let weights: [&[u8]; ROWS] = std::array::from_fn(|i| w.row(row(i)));
        let weight_scales: [&[[u8; 4]]; ROWS] = std::array::from_fn(|i| &scales[row(i) * groups..][..groups]);
        assert!(weights.iter().all(|row| row.len() == inputs) && x_scales.len() == groups);
        let mut sums = [_mm512_setzero_ps(); ROWS];
        for chunk in 0..inputs.div_ceil(CHUNK) {
            let (at, group) = (chunk * CHUNK, chunk * LANES);
            let mut activations = [_mm512_setzero_si512(); 8];
            let mut offsets = [_mm512_setzero_si512(); 8];
            for i in 0..8 {
                // SAFETY: a masked load touches only the bytes below `inputs`.
                activations[i] = unsafe { load(x.as_ptr().cast(), at + 64 * i, inputs) };
                let sum = _mm512_dpbusd_epi32(_mm512_setzero_si512(), flip, activations[i]);
                offsets[i] = _mm512_sub_epi32(_mm512_setzero_si512(), sum);
            }
            let mask = if groups - group >= LANES { 0xffff } else { (1 << (groups - group)) - 1 };
            // SAFETY: a masked load touches only the scales below `groups`.
            let x_scale = unsafe { _mm512_maskz_loadu_ps(mask, x_scales.as_ptr().add(group)) };
            for row in 0..ROWS {
                let mut products = [_mm512_setzero_si512(); 8];
                for i in 0..8 {
                    // SAFETY: each row has `inputs` bytes, as was just checked.
                    let bytes = unsafe { load(weights[row].as_ptr(), at + 64 * i, inputs) };
                    let unsigned = _mm512_xor_si512(bytes, flip);
                    products[i] = _mm512_dpbusd_epi32(offsets[i], unsigned, activations[i]);
                }
                // SAFETY: each row has `groups` scales; the load needs no alignment.
                let scale = unsafe {
                    _mm512_maskz_loadu_ps(mask, weight_scales[row].as_ptr().add(group).cast::<f32>())
                };
                let scale = _mm512_mul_ps(x_scale, scale);
                let whole = _mm512_cvtepi32_ps(group_sums(products));
                sums[row] = _mm512_mask3_fmadd_ps(whole, scale, sums[row], mask);
            }
        }
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = avx512::reduce(sum);
        }
    }
}

/// 64 bytes from `start + at` on, zeros from `start + end` on.
///
/// # Safety
/// `start` points at `end` readable bytes.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn load(start: *const u8, at: usize, end: usize) -> __m512i {
    let mask = match end.saturating_sub(at) {
        0 => return _mm512_setzero_si512(),
        left @ 1..64 => (1 << left) - 1,
        _ => u64::MAX,
    };
    // SAFETY: `at` is below `end`, and the mask keeps the load there.
    unsafe { _mm512_maskz_loadu_epi8(mask, start.add(at).cast()) }
}

/// The sums of 16 groups, of which each vector holds two: eight int32 in each half.
#[target_feature(enable = "avx512f")]
fn group_sums(v: [__m512i; 8]) -> __m512i {
    // Neighbours, then neighbours of those: every 128 bits end with the sums of their part of four vectors.
    let pair = |a, b| _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let four = |a, b| _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    let low = four(pair(v[0], v[1]), pair(v[2], v[3]));
    let high = four(pair(v[4], v[5]), pair(v[6], v[7]));
    let even = _mm512_shuffle_i32x4::<0b10_00_10_00>(low, high);
    let odd = _mm512_shuffle_i32x4::<0b11_01_11_01>(low, high);
    // Now groups 0 2 4 6, 1 3 5 7, 8 10 12 14, 9 11 13 15.
    let order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    _mm512_permutexvar_epi32(order, _mm512_add_epi32(even, odd))
}

/// Tiles of activations with panels of 16 weight rows, one row a lane.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn panels(x: &Tiles, groups: usize, w: Rows<'_>, scales: &[[u8; 4]], out: &mut [&mut [f32]]) {
    let mut panel = vec![_mm512_setzero_si512(); groups * QUADS];
    let mut panel_scales = vec![_mm512_setzero_ps(); groups];
    let mut sums = [[_mm512_setzero_ps(); TILE]; LANES];
    for first in (0..w.count()).step_by(LANES) {
        let count = LANES.min(w.count() - first);
        pack(w, first, count, &mut panel);
        for (group, packed) in panel_scales.iter_mut().enumerate() {
            let row = |i: usize| scales[(first + i.min(count - 1)) * groups + group];
            let values: [f32; LANES] = std::array::from_fn(|i| f32::from_le_bytes(row(i)));
            // SAFETY: 16 values.
            *packed = unsafe { _mm512_loadu_ps(values.as_ptr()) };
        }
        for (tile, out) in out.chunks_mut(TILE).enumerate() {
            let numbers = tile * groups..(tile + 1) * groups;
            for sums in &mut sums {
                *sums = [_mm512_setzero_ps(); TILE];
            }
            let quads = x.quads.as_chunks::<TILE>().0.as_chunks::<QUADS>().0;
            let offsets = x.offsets.as_chunks::<TILE>().0;
            let x_scales = x.scales.as_chunks::<TILE>().0;
            let activations =
                (quads[numbers.clone()].iter()).zip(&offsets[numbers.clone()]).zip(&x_scales[numbers]);
            let weights = panel.as_chunks::<QUADS>().0.iter().zip(&panel_scales);
            for (group, (((quads, offsets), x_scales), (w, scale))) in activations.zip(weights).enumerate() {
                let mut whole = [_mm512_setzero_si512(); TILE];
                for t in 0..TILE {
                    whole[t] = _mm512_set1_epi32(offsets[t]);
                }
                for quad in 0..QUADS {
                    for t in 0..TILE {
                        whole[t] = _mm512_dpbusd_epi32(whole[t], w[quad], _mm512_set1_epi32(quads[quad][t]));
                    }
                }
                let sums = &mut sums[group % LANES];
                for t in 0..TILE {
                    let scale = _mm512_mul_ps(_mm512_set1_ps(x_scales[t]), *scale);
                    sums[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole[t]), scale, sums[t]);
                }
            }
            for (t, out) in out.iter_mut().enumerate() {
                let mut width = LANES / 2;
                while width > 0 {
                    for lane in 0..width {
                        sums[lane][t] = _mm512_add_ps(sums[lane][t], sums[lane + width][t]);
                    }
                    width /= 2;
                }
                let mut row = [0.0; LANES];
                // SAFETY: 16 values.
                unsafe { _mm512_storeu_ps(row.as_mut_ptr(), sums[0][t]) };
                out[first..first + count].copy_from_slice(&row[..count]);
            }
        }
    }
}

/// Packs `count` ≤ 16 rows from `first` on in the order (group, quad, row), unsigned; the last row stands in
/// for those that are missing.
#[target_feature(enable = "avx512f,avx512bw")]
fn pack(w: Rows<'_>, first: usize, count: usize, panel: &mut [__m512i]) {
    let rows: [&[[u8; GROUP]]; LANES] =
        std::array::from_fn(|i| w.row(first + i.min(count - 1)).as_chunks().0);
    let flip = _mm512_set1_epi8(-128);
    for (group, panel) in panel.as_chunks_mut::<QUADS>().0.iter_mut().enumerate() {
        // Rows i and i + 8 side by side: two transposes of 8 × 8 quads at once, and the halves in order.
        let pair = |i: usize| {
            let (low, high) = (&rows[i][group], &rows[i + 8][group]);
            // SAFETY: 32 bytes each.
            let (low, high) = unsafe {
                (_mm256_loadu_si256(low.as_ptr().cast()), _mm256_loadu_si256(high.as_ptr().cast()))
            };
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
        };
        let r: [__m512i; 8] = std::array::from_fn(|i| _mm512_xor_si512(pair(i), flip));
        // Within each 128 bits: quads of four rows side by side.
        let four = |a, b, c, d| {
            let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
            let (ab2, cd2) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
            [
                _mm512_unpacklo_epi64(ab, cd),
                _mm512_unpackhi_epi64(ab, cd),
                _mm512_unpacklo_epi64(ab2, cd2),
                _mm512_unpackhi_epi64(ab2, cd2),
            ]
        };
        let (low, high) = (four(r[0], r[1], r[2], r[3]), four(r[4], r[5], r[6], r[7]));
        // Parts of 128 bits: rows 0-3 quad q, rows 0-3 quad q + 4, rows 8-11 quad q, rows 8-11 quad q + 4.
        let first_half = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
        let second_half = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
        for quad in 0..4 {
            panel[quad] = _mm512_permutex2var_epi64(low[quad], first_half, high[quad]);
            panel[quad + 4] = _mm512_permutex2var_epi64(low[quad], second_half, high[quad]);
        }
    }
}
