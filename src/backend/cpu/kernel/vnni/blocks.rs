//! Products with blocks for AVX-512 VNNI: one token or a few with a row at a time, 16 groups side by side; many tokens in
//! tiles, with panels of 16 rows.

use std::arch::x86_64::*;
use std::cell::RefCell;

use super::{add_halves, group_sums, pack_quads};
use crate::backend::cpu::kernel::avx512;
use crate::backend::cpu::kernel::blocks::Spread;
use crate::backend::cpu::kernel::q8::{CHUNK_GROUPS, Padded, QUADS, Quantized, Tiles};
use crate::backend::cpu::kernel::rows::{Rows, with_format};
use crate::ops::blocks::{Format, GROUP};
use crate::ops::matmul::LANES;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// What a thread spreads rows out in.
#[derive(Default)]
struct Scratch {
    spread: Spread,
    panel: Panel,
}

/// 16 rows of weights, one a lane.
#[derive(Default)]
struct Panel {
    /// (group, quad): four neighbouring values, with 128 added to what they are.
    quads: Vec<__m512i>,
    /// (group) of the first run and of the second.
    scales: [Vec<__m512>; 2],
    minima: [Vec<__m512>; 2],
}

/// See [`super::super::Kernel::q8`].
pub(in crate::backend::cpu::kernel) fn blocks(x: &Quantized, w: Rows<'_>, out: &mut [&mut [f32]]) {
    with_format!(w.dtype, F => SCRATCH.with_borrow_mut(|scratch| {
        // SAFETY: a `Kernel` for VNNI exists only where the processor has these features.
        unsafe {
            match x.tiles() {
                Some(tiles) => {
                    let groups = x.inputs / GROUP;
                    match tiles.width {
                        4 => panels::<F, 4, 4>(tiles, groups, w, out, scratch),
                        8 => panels::<F, 8, 8>(tiles, groups, w, out, scratch),
                        _ => panels::<F, 16, 8>(tiles, groups, w, out, scratch),
                    }
                }
                None => rows::<F>(x, w, out, &mut scratch.spread),
            }
        }
    }));
}

/// A few rows of activations with every row of `w`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn rows<F: Format>(x: &Quantized, w: Rows<'_>, out: &mut [&mut [f32]], spread: &mut Spread) {
    spread.resize(1, x.inputs);
    for row in 0..w.count() {
        spread.fill::<F>(0, w.row(row));
        if let Some(table) = F::TABLE {
            look_up(&table, &mut spread.quants);
        }
        for (token, out) in out.iter_mut().enumerate() {
            out[row] = dot::<F>(&x.padded, token, spread);
        }
    }
}

/// Puts in the place of each number below 16 what `table` has for it.
#[target_feature(enable = "avx512f,avx512bw")]
fn look_up(table: &[u8; 16], numbers: &mut [u8]) {
    // SAFETY: 16 bytes, and each part has 64.
    unsafe {
        let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
        for part in numbers.as_chunks_mut::<64>().0 {
            let number = _mm512_loadu_si512(part.as_ptr().cast());
            _mm512_storeu_si512(part.as_mut_ptr().cast(), _mm512_shuffle_epi8(table, number));
        }
    }
}

/// The product of row `token` of the activations with the one row that is spread out.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn dot<F: Format>(x: &Padded, token: usize, w: &Spread) -> f32 {
    let groups = w.groups;
    let of_row = token * groups..(token + 1) * groups;
    let values = &x.values[of_row.start * GROUP..of_row.end * GROUP];
    let x_scales = &x.scales[of_row.clone()];
    let x_sums = [&x.sums[0][of_row.clone()], &x.sums[1][of_row]];
    assert!(w.quants.len() >= groups * GROUP && groups.is_multiple_of(CHUNK_GROUPS));
    assert!(w.scales.iter().chain(&w.minima).all(|numbers| numbers.len() >= groups));
    let mut lanes = _mm512_setzero_ps();
    for start in (0..groups).step_by(CHUNK_GROUPS) {
        // SAFETY: 16 groups from `start` on are inside the row's `groups` of everything, as was just checked; no load
        // needs alignment.
        unsafe {
            let products: [__m512i; 8] = std::array::from_fn(|i| {
                let at = start * GROUP + 64 * i;
                let q = _mm512_loadu_si512(w.quants.as_ptr().add(at).cast());
                let x = _mm512_loadu_si512(values.as_ptr().add(at).cast());
                _mm512_dpbusd_epi32(_mm512_setzero_si512(), q, x)
            });
            let sum_of = |half: usize| _mm512_loadu_si512(x_sums[half].as_ptr().add(start).cast());
            let without_offset = |sum: __m512i, of_x: __m512i| match F::OFFSET {
                0 => sum,
                offset => {
                    _mm512_sub_epi32(sum, _mm512_mullo_epi32(of_x, _mm512_set1_epi32(i32::from(offset))))
                }
            };
            let scale = |half: usize| _mm512_loadu_ps(w.scales[half].as_ptr().add(start));
            let minimum = |half: usize| _mm512_loadu_ps(w.minima[half].as_ptr().add(start));
            let float = |whole| _mm512_cvtepi32_ps(whole);
            let mut term;
            if F::RUN == GROUP {
                let of_x = _mm512_add_epi32(sum_of(0), sum_of(1));
                term = _mm512_mul_ps(scale(0), float(without_offset(group_sums(products), of_x)));
                if F::MINIMA {
                    term = _mm512_fmadd_ps(minimum(0), float(of_x), term);
                }
            } else {
                let [first, second] = add_halves(products);
                term = _mm512_mul_ps(scale(0), float(without_offset(first, sum_of(0))));
                term = _mm512_fmadd_ps(scale(1), float(without_offset(second, sum_of(1))), term);
                if F::MINIMA {
                    term = _mm512_fmadd_ps(minimum(0), float(sum_of(0)), term);
                    term = _mm512_fmadd_ps(minimum(1), float(sum_of(1)), term);
                }
            }
            lanes = _mm512_fmadd_ps(_mm512_loadu_ps(x_scales.as_ptr().add(start)), term, lanes);
        }
    }
    avx512::reduce(lanes)
}

/// Tiles of T rows of activations with panels of 16 weight rows, one row a lane. Where a group is two runs, H of the T
/// are in registers at once.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn panels<F: Format, const T: usize, const H: usize>(
    x: &Tiles,
    groups: usize,
    w: Rows<'_>,
    out: &mut [&mut [f32]],
    Scratch { spread, panel }: &mut Scratch,
) {
    let mut sums = [[_mm512_setzero_ps(); T]; LANES];
    for first in (0..w.count()).step_by(LANES) {
        let count = LANES.min(w.count() - first);
        spread.resize(LANES, groups * GROUP);
        for row in 0..count {
            spread.fill::<F>(row, w.row(first + row));
        }
        if let Some(table) = F::TABLE {
            look_up(&table, &mut spread.quants);
        }
        panel.fill::<F>(spread, groups);
        for (tile, out) in out.chunks_mut(T).enumerate() {
            sums.fill([_mm512_setzero_ps(); T]);
            for group in 0..groups {
                let at = tile * groups + group;
                multiply::<F, T, H>(x, at, panel, group, &mut sums[group % LANES]);
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

/// sums += the products of group `group` of the panel with those of a tile of tokens, which are number `at` of all.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn multiply<F: Format, const T: usize, const H: usize>(
    x: &Tiles,
    at: usize,
    panel: &Panel,
    group: usize,
    sums: &mut [__m512; T],
) {
    let quads = &x.quads.as_chunks::<T>().0.as_chunks::<QUADS>().0[at];
    let x_scales = &x.scales.as_chunks::<T>().0[at];
    let w = &panel.quads.as_chunks::<QUADS>().0[group];
    let float = |whole| _mm512_cvtepi32_ps(whole);
    if F::RUN == GROUP {
        let offsets = &x.offsets.as_chunks::<T>().0[at];
        let x_sums = &x.sums.as_chunks::<T>().0[at];
        let mut whole = [_mm512_setzero_si512(); T];
        for t in 0..T {
            whole[t] = _mm512_set1_epi32(offsets[t]);
        }
        for quad in 0..QUADS {
            for t in 0..T {
                whole[t] = _mm512_dpbusd_epi32(whole[t], w[quad], _mm512_set1_epi32(quads[quad][t]));
            }
        }
        let (scale, minimum) = (panel.scales[0][group], panel.minima[0][group]);
        for t in 0..T {
            let mut term = _mm512_mul_ps(scale, float(whole[t]));
            if F::MINIMA {
                term = _mm512_fmadd_ps(minimum, _mm512_set1_ps(x_sums[t]), term);
            }
            sums[t] = _mm512_fmadd_ps(_mm512_set1_ps(x_scales[t]), term, sums[t]);
        }
        return;
    }
    let offsets = &x.half_offsets.as_chunks::<T>().0.as_chunks::<2>().0[at];
    let x_sums = &x.half_sums.as_chunks::<T>().0.as_chunks::<2>().0[at];
    let (scales, minima) =
        (panel.scales.each_ref().map(|of| of[group]), panel.minima.each_ref().map(|of| of[group]));
    for start in (0..T).step_by(H) {
        let mut whole = [[_mm512_setzero_si512(); H]; 2];
        for half in 0..2 {
            for t in 0..H {
                whole[half][t] = _mm512_set1_epi32(offsets[half][start + t]);
            }
            for quad in half * QUADS / 2..(half + 1) * QUADS / 2 {
                for t in 0..H {
                    let x = _mm512_set1_epi32(quads[quad][start + t]);
                    whole[half][t] = _mm512_dpbusd_epi32(whole[half][t], w[quad], x);
                }
            }
        }
        for t in 0..H {
            let mut term = _mm512_mul_ps(scales[0], float(whole[0][t]));
            term = _mm512_fmadd_ps(scales[1], float(whole[1][t]), term);
            if F::MINIMA {
                term = _mm512_fmadd_ps(minima[0], _mm512_set1_ps(x_sums[0][start + t]), term);
                term = _mm512_fmadd_ps(minima[1], _mm512_set1_ps(x_sums[1][start + t]), term);
            }
            let sum = &mut sums[start + t];
            *sum = _mm512_fmadd_ps(_mm512_set1_ps(x_scales[start + t]), term, *sum);
        }
    }
}

impl Panel {
    /// Takes the first `groups` groups of the 16 rows that are spread out.
    #[target_feature(enable = "avx512f,avx512bw")]
    fn fill<F: Format>(&mut self, spread: &Spread, groups: usize) {
        let rows: [&[[u8; GROUP]]; LANES] = std::array::from_fn(|i| {
            spread.quants[i * spread.groups * GROUP..][..groups * GROUP].as_chunks().0
        });
        self.quads.resize(groups * QUADS, _mm512_setzero_si512());
        let up = _mm512_set1_epi8((128 - F::OFFSET).cast_signed());
        for (group, quads) in self.quads.as_chunks_mut::<QUADS>().0.iter_mut().enumerate() {
            *quads = pack_quads(std::array::from_fn(|i| &rows[i][group]));
            for quad in quads {
                *quad = _mm512_add_epi8(*quad, up);
            }
        }
        let runs = GROUP / F::RUN;
        let numbers = spread.scales[..runs].iter().zip(&mut self.scales);
        let minima = spread.minima[..runs].iter().zip(&mut self.minima);
        for (from, to) in numbers.chain(minima) {
            to.resize(groups, _mm512_setzero_ps());
            for (group, to) in to.iter_mut().enumerate() {
                let lanes: [f32; LANES] = std::array::from_fn(|row| from[row * spread.groups + group]);
                // SAFETY: 16 values.
                *to = unsafe { _mm512_loadu_ps(lanes.as_ptr()) };
            }
        }
        // Read along with the scales whether they are used or not.
        for unused in self.scales.iter_mut().chain(&mut self.minima) {
            unused.resize(groups, _mm512_setzero_ps());
        }
    }
}
