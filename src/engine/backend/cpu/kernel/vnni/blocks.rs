//! Products of many tokens with blocks for AVX-512 VNNI: tiles of tokens with panels of 16 rows.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::panel::{PANELS, Panel, add_up, fill_all, first};
use super::tiles::{PADDING, Weights, float};
use super::unpack::{self, Chunk, Unpack};
use super::{few, pack_quads};
use crate::backend::cpu::kernel::amx::Whole;
use crate::backend::cpu::kernel::avx2::{Padding, Row};
use crate::backend::cpu::kernel::avx512;
use crate::backend::cpu::kernel::q8::{CHUNK_GROUPS, QUADS, Quantized, Tiles, cross, place};
use crate::backend::cpu::kernel::rows::{Rows, with_format};
use llama_trace_core::ops::blocks::{Format, GROUP};
use llama_trace_core::ops::matmul::LANES;

/// Blocks of format F, unpacked for AMX.
struct Blocks<F>(PhantomData<F>);

impl<F: Format> Weights for Blocks<F> {
    const HALVES: bool = F::RUN < GROUP;

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
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
        let scale = |half: usize| panel.scales[half][place];
        let minimum = |half: usize| panel.minima[half][place];
        if Self::HALVES {
            let x_sums = &x.half_sums.as_chunks::<LANES>().0.as_chunks::<2>().0[at];
            for t in 0..LANES {
                let mut term = _mm512_mul_ps(scale(0), float(&whole[0], t));
                term = _mm512_fmadd_ps(scale(1), float(&whole[1], t), term);
                if F::MINIMA {
                    term = _mm512_fmadd_ps(minimum(0), _mm512_set1_ps(x_sums[0][t]), term);
                    term = _mm512_fmadd_ps(minimum(1), _mm512_set1_ps(x_sums[1][t]), term);
                }
                sums[t] = _mm512_fmadd_ps(_mm512_set1_ps(x_scales[t]), term, sums[t]);
            }
        } else {
            let x_sums = &x.sums.as_chunks::<LANES>().0[at];
            for t in 0..LANES {
                let mut term = _mm512_mul_ps(scale(0), float(&whole[0], t));
                if F::MINIMA {
                    term = _mm512_fmadd_ps(minimum(0), _mm512_set1_ps(x_sums[t]), term);
                }
                sums[t] = _mm512_fmadd_ps(_mm512_set1_ps(x_scales[t]), term, sums[t]);
            }
        }
    }
}

/// See [`super::super::Isa::q8`].
pub(in crate::backend::cpu::kernel) fn blocks(x: &Quantized, w: Rows<'_>, out: &mut [&mut [f32]]) {
    let groups = x.inputs / GROUP;
    with_format!(w.dtype, F => {
        // SAFETY: a `Kernel` for VNNI exists only if the processor has these features.
        unsafe {
            match x.tiles() {
                Some(x) if !x.lines.is_empty() => PANELS.with_borrow_mut(|kept| {
                    let panels = fill_all(kept, w.count(), |panel, first, count| {
                        panel.fill::<F>(w, first, count, F::OFFSET.wrapping_neg(), |group| place(groups, group));
                    });
                    super::tiles::tiles::<Blocks<F>>(x, groups, panels, out);
                }),
                Some(tiles) => PANELS.with_borrow_mut(|kept| {
                    let panel = first(kept);
                    match tiles.width {
                        4 => panels::<F, 4, 4>(tiles, groups, w, out, panel),
                        8 => panels::<F, 8, 8>(tiles, groups, w, out, panel),
                        _ => panels::<F, 16, 8>(tiles, groups, w, out, panel),
                    }
                }),
                None => few::rows::<F>(x, w, out),
            }
        }
    });
}

/// Multiplies tiles of T rows of activations with panels of 16 weight rows, one row per lane. If a group consists of
/// two runs, the sums of H of the T rows are in registers at once.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn panels<F: Unpack, const T: usize, const H: usize>(
    x: &Tiles,
    groups: usize,
    w: Rows<'_>,
    out: &mut [&mut [f32]],
    panel: &mut Panel,
) {
    let mut sums = [[_mm512_setzero_ps(); T]; LANES];
    for first in (0..w.count()).step_by(LANES) {
        let count = LANES.min(w.count() - first);
        panel.fill::<F>(w, first, count, 128 - F::OFFSET, |group| group);
        for (tile, out) in out.chunks_mut(T).enumerate() {
            sums.fill([_mm512_setzero_ps(); T]);
            for group in 0..groups {
                let at = tile * groups + group;
                multiply::<F, T, H>(x, at, panel, group, &mut sums[group % LANES]);
            }
            add_up(&mut sums, &(first..first + count), out);
        }
    }
}

/// Multiplies group `group` of the panel with the same group of a tile of tokens, and adds the products to `sums`. `at`
/// is the index of the tile's group in `x`.
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
    /// Packs `count` rows of `w`, at most 16, from `first` on, with each group at its `place`. Adds `up` to every
    /// value. Missing rows are replaced by the last one.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    fn fill<F: Unpack>(
        &mut self,
        w: Rows<'_>,
        first: usize,
        count: usize,
        up: u8,
        place: impl Fn(usize) -> usize,
    ) {
        let rows: [Row<'_>; LANES] = std::array::from_fn(|i| Row::of(w, first + i.min(count - 1)));
        let (chunks, groups) = (w.inputs.div_ceil(unpack::VALUES), w.inputs / GROUP);
        let padding = PADDING / size_of::<__m512i>();
        self.quads.resize(chunks * CHUNK_GROUPS * QUADS + padding, _mm512_setzero_si512());
        // Every panel has both scales and both minima, because they are read even if the format does not have them.
        for numbers in self.scales.iter_mut().chain(&mut self.minima) {
            numbers.resize(chunks * CHUNK_GROUPS, _mm512_setzero_ps());
        }
        let up = _mm512_set1_epi8(up.cast_signed());
        let mut padding = Padding::new();
        let mut quants = [[_mm512_setzero_si512(); 8]; LANES];
        let mut scales = [[_mm512_setzero_ps(); LANES]; 2];
        let mut minima = scales;
        for chunk in 0..chunks {
            let groups_now = chunk * CHUNK_GROUPS..groups.min((chunk + 1) * CHUNK_GROUPS);
            for (i, row) in rows.iter().enumerate() {
                for line in (0..Chunk::bytes::<F>()).step_by(64) {
                    let at = chunk * Chunk::bytes::<F>() + line;
                    avx512::prefetch_far(row.bytes.as_ptr().wrapping_add(LANES * row.bytes.len() + at));
                }
                let part = row.part(chunk, Chunk::bytes::<F>(), 0, &mut padding);
                let mut chunk = Chunk::zeros();
                chunk.take::<F>(part.bytes);
                for vector in 0..chunk.quants.len() {
                    quants[i][vector] = _mm512_add_epi8(chunk.quants[vector], up);
                }
                for half in 0..2 {
                    (scales[half][i], minima[half][i]) = (chunk.scales[half], chunk.minima[half]);
                }
            }
            for (i, group) in groups_now.clone().enumerate() {
                let i = if F::CROSSED { cross(i) } else { i };
                let of_row = |row: usize| quants[row].as_ptr().cast::<[u8; GROUP]>();
                // SAFETY: the eight vectors of a row hold 16 groups.
                let quads = pack_quads(std::array::from_fn(|row| unsafe { &*of_row(row).add(i) }));
                self.quads[place(group) * QUADS..][..QUADS].copy_from_slice(&quads);
            }
            for half in 0..GROUP / F::RUN {
                let (scales, minima) = (avx512::transpose(scales[half]), avx512::transpose(minima[half]));
                for (i, group) in groups_now.clone().enumerate() {
                    self.scales[half][place(group)] = scales[i];
                    if F::MINIMA {
                        self.minima[half][place(group)] = minima[i];
                    }
                }
            }
        }
    }
}
