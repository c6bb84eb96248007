//! The int8 products for AVX-512 VNNI. `vpdpbusd` multiplies unsigned with signed bytes and adds four adjacent products
//! to an int32. To make the weights unsigned, 128 is added to them. To correct this, −128 · Σ x is added to each sum.
//! All of this is exact, so the result has the bits of [`llama_trace_core::ops::quantize::dot`].
#![allow(unsafe_code)]

mod blocks;
mod few;
mod panel;
mod tiles;
mod unpack;

use std::arch::x86_64::*;

pub(super) use blocks::blocks;
use panel::{PANELS, Panel, add_up, fill_all};
use tiles::{Weights, float};

use super::amx::Whole;
use super::avx2::Int8;
use super::limits::CHAINS;
use super::q8::{GROUP, QUADS, Quantized, Tiles, Tiling, place};
use super::{Rows, avx512};
use llama_trace_core::ops::matmul::LANES;

/// The tiling that [`panels`] reads.
pub(super) const TILING: Tiling = Tiling { widths: &[4, 8, 16], pairs: false, lines: None };

/// The tiling if AMX multiplies tiles of 16 tokens.
pub(super) const TILING_AMX: Tiling = Tiling { lines: Some(tiles::PADDING), ..TILING };

/// See [`super::Isa::q8`].
pub(super) fn q8(x: &Quantized, w: Rows<'_>, out: &mut [&mut [f32]]) {
    let Some(scales) = w.scales.filter(|scales| scales.group == GROUP && x.is_regular()) else {
        return avx512::q8(x, w, out);
    };
    let groups = x.inputs / GROUP;
    let scales = &scales.scales[scales.first_row * groups..][..w.count() * groups];
    match x.tiles() {
        Some(x) if !x.lines.is_empty() => PANELS.with_borrow_mut(|panels| {
            // SAFETY: a `Kernel` for VNNI exists only if the processor has these features.
            unsafe {
                let panels = fill_all(panels, w.count(), |panel, first, count| {
                    let padding = tiles::PADDING / size_of::<__m512i>();
                    panel.quads.resize(groups * QUADS + padding, _mm512_setzero_si512());
                    panel.scales[0].resize(groups, _mm512_setzero_ps());
                    let place = |group| place(groups, group);
                    pack::<false>(w, first, count, &mut panel.quads[..groups * QUADS], place);
                    pack_scales(scales, groups, first, count, &mut panel.scales[0][..groups], place);
                });
                tiles::tiles::<Int8>(x, groups, panels, out);
            }
        }),
        Some(tiles) => {
            // SAFETY: as above.
            unsafe {
                match tiles.width {
                    4 => panels::<4>(tiles, groups, w, scales, out),
                    8 => panels::<8>(tiles, groups, w, scales, out),
                    _ => panels::<16>(tiles, groups, w, scales, out),
                }
            }
        }
        // SAFETY: as above.
        None => unsafe { few::rows::<Int8>(x, w, out) },
    }
}

/// See [`super::Kernel::multiply_limit`]. Computes 64 int8 products in place of 16 float32 products.
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
    // SAFETY: a `Kernel` for VNNI exists only if the processor has these features.
    unsafe { inner(rounds, factor) as f32 }
}

impl Weights for Int8 {
    const HALVES: bool = false;

    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn add(
        panel: &Panel,
        place: usize,
        x: &Tiles,
        at: usize,
        whole: &[Whole],
        sums: &mut [__m512; LANES],
    ) {
        let x_scales = &x.scales.as_chunks::<LANES>().0[at];
        for t in 0..LANES {
            let scale = _mm512_mul_ps(_mm512_set1_ps(x_scales[t]), panel.scales[0][place]);
            sums[t] = _mm512_fmadd_ps(float(&whole[0], t), scale, sums[t]);
        }
    }
}

/// Multiplies tiles of T rows of activations with panels of 16 weight rows, one row per lane.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn panels<const T: usize>(x: &Tiles, groups: usize, w: Rows<'_>, scales: &[[u8; 4]], out: &mut [&mut [f32]]) {
    let mut panel = vec![_mm512_setzero_si512(); groups * QUADS];
    let mut panel_scales = vec![_mm512_setzero_ps(); groups];
    let mut sums = [[_mm512_setzero_ps(); T]; LANES];
    for first in (0..w.count()).step_by(LANES) {
        let count = LANES.min(w.count() - first);
        pack::<true>(w, first, count, &mut panel, |group| group);
        pack_scales(scales, groups, first, count, &mut panel_scales, |group| group);
        for (tile, out) in out.chunks_mut(T).enumerate() {
            let numbers = tile * groups..(tile + 1) * groups;
            for sums in &mut sums {
                *sums = [_mm512_setzero_ps(); T];
            }
            let quads = x.quads.as_chunks::<T>().0.as_chunks::<QUADS>().0;
            let offsets = x.offsets.as_chunks::<T>().0;
            let x_scales = x.scales.as_chunks::<T>().0;
            let activations =
                (quads[numbers.clone()].iter()).zip(&offsets[numbers.clone()]).zip(&x_scales[numbers]);
            let weights = panel.as_chunks::<QUADS>().0.iter().zip(&panel_scales);
            for (group, (((quads, offsets), x_scales), (w, scale))) in activations.zip(weights).enumerate() {
                let mut whole = [_mm512_setzero_si512(); T];
                for t in 0..T {
                    whole[t] = _mm512_set1_epi32(offsets[t]);
                }
                for quad in 0..QUADS {
                    for t in 0..T {
                        whole[t] = _mm512_dpbusd_epi32(whole[t], w[quad], _mm512_set1_epi32(quads[quad][t]));
                    }
                }
                let sums = &mut sums[group % LANES];
                for t in 0..T {
                    let scale = _mm512_mul_ps(_mm512_set1_ps(x_scales[t]), *scale);
                    sums[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole[t]), scale, sums[t]);
                }
            }
            add_up(&mut sums, &(first..first + count), out);
        }
    }
}

/// Packs the scales of `count` rows, at most 16, from `first` on. The order is (group, row), with each group at its
/// `place`. Missing rows are replaced by the last one.
#[target_feature(enable = "avx512f")]
fn pack_scales(
    scales: &[[u8; 4]],
    groups: usize,
    first: usize,
    count: usize,
    panel: &mut [__m512],
    place: impl Fn(usize) -> usize,
) {
    let rows: [&[[u8; 4]]; LANES] =
        std::array::from_fn(|i| &scales[(first + i.min(count - 1)) * groups..][..groups]);
    let whole = groups / LANES * LANES;
    for first in (0..whole).step_by(LANES) {
        let of_row = |i: usize| rows[i][first..][..LANES].as_ptr();
        // SAFETY: each slice has 16 values.
        let of_groups =
            avx512::transpose(std::array::from_fn(|i| unsafe { _mm512_loadu_ps(of_row(i).cast()) }));
        for (i, of_group) in of_groups.into_iter().enumerate() {
            panel[place(first + i)] = of_group;
        }
    }
    for group in whole..groups {
        let values: [f32; LANES] = std::array::from_fn(|i| f32::from_le_bytes(rows[i][group]));
        // SAFETY: `values` has 16 values.
        panel[place(group)] = unsafe { _mm512_loadu_ps(values.as_ptr()) };
    }
}

/// Packs `count` rows, at most 16, from `first` on. The order is (group, quad, row), with each group at its `place`. If
/// UNSIGNED, 128 is added to each value. Missing rows are replaced by the last one.
#[target_feature(enable = "avx512f,avx512bw")]
fn pack<const UNSIGNED: bool>(
    w: Rows<'_>,
    first: usize,
    count: usize,
    panel: &mut [__m512i],
    place: impl Fn(usize) -> usize,
) {
    let rows: [&[[u8; GROUP]]; LANES] =
        std::array::from_fn(|i| w.row(first + i.min(count - 1)).as_chunks().0);
    let flip = _mm512_set1_epi8(-128);
    for group in 0..w.inputs / GROUP {
        let panel = &mut panel.as_chunks_mut::<QUADS>().0[place(group)];
        if group % 2 == 0 {
            // Prefetches once per cache line. If rows are read side by side, the hardware prefetcher does not read far
            // enough ahead.
            for row in rows {
                avx512::prefetch_far(row[group].as_ptr().wrapping_add(LANES * w.inputs));
            }
        }
        *panel = pack_quads(std::array::from_fn(|i| &rows[i][group]));
        if UNSIGNED {
            for quad in panel {
                *quad = _mm512_xor_si512(*quad, flip);
            }
        }
    }
}

/// Returns a group of 16 rows in the order (quad, row).
#[target_feature(enable = "avx512f,avx512bw")]
fn pack_quads(rows: [&[u8; GROUP]; LANES]) -> [__m512i; QUADS] {
    // A vector has rows i and i + 8 in its two halves. So two matrices of 8 × 8 quads are transposed at once. Then the
    // parts are put in order.
    let pair = |i: usize| {
        let (low, high) = (rows[i], rows[i + 8]);
        // SAFETY: each row has 32 bytes.
        let (low, high) =
            unsafe { (_mm256_loadu_si256(low.as_ptr().cast()), _mm256_loadu_si256(high.as_ptr().cast())) };
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
    };
    let r: [__m512i; 8] = std::array::from_fn(pair);
    // Each 128-bit part of a result has the same quad of four rows.
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
    // The 128-bit parts: rows 0-3 quad q, rows 0-3 quad q + 4, rows 8-11 quad q, rows 8-11 quad q + 4.
    let first_half = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
    let second_half = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    std::array::from_fn(|quad| match quad {
        0..4 => _mm512_permutex2var_epi64(low[quad], first_half, high[quad]),
        _ => _mm512_permutex2var_epi64(low[quad - 4], second_half, high[quad - 4]),
    })
}
