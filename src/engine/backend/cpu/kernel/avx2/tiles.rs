//! Products in int8 with many tokens, for AVX2: tiles of four tokens with panels of 16 rows of weights, one row per
//! lane.
//!
//! Without AVX-VNNI, there are two ways. An instruction multiplies bytes and adds adjacent products in 16 bits. If
//! weights have few bits, several of these sums are added in 16 bits before they are widened. Weights of eight bits are
//! widened to 16 bits in the panel instead. Then an instruction multiplies them and adds adjacent products in 32 bits.

use std::arch::asm;
use std::arch::x86_64::*;
use std::cell::RefCell;

use super::products::add_products;
use super::source::{Padding, Row, Source};
use super::transpose;
use super::unpack::{self, Chunk, GROUPS};
use crate::backend::cpu::kernel::Rows;
use crate::backend::cpu::kernel::q8::{QUADS, Tiles};
use llama_trace_core::ops::blocks::GROUP;
use llama_trace_core::ops::matmul::LANES;

/// The number of tokens in a tile.
pub(in crate::backend::cpu::kernel) const TOKENS: usize = 4;

/// The number of rows in a vector.
const WIDTH: usize = 8;

/// The number of vectors in a panel.
const VECTORS: usize = 2;

/// The number of rows in a panel.
const ROWS: usize = VECTORS * WIDTH;

thread_local! {
    static PANEL: RefCell<Panel> = RefCell::default();
}

/// 16 rows of weights, one per lane.
#[derive(Default)]
struct Panel {
    /// (group, quad): the four adjacent q of a quad. If widened, (group, quad, 2): the first and the third q of a quad,
    /// then the second and the fourth, with the offset subtracted.
    values: Vec<[__m256i; VECTORS]>,
    /// (group): the scales of the first run, and of the second run.
    scales: [Vec<[__m256; VECTORS]>; 2],
    minima: [Vec<[__m256; VECTORS]>; 2],
}

/// Whether weights are widened to 16 bits.
const fn is_wide<S: Source>(vnni: bool) -> bool {
    !vnni && S::MOST > 127
}

/// The number of quads whose sum fits into 16 bits.
const fn quads_at_once<S: Source>() -> usize {
    (i16::MAX as usize) / (2 * 127 * S::MOST as usize)
}

/// See [`super::super::Isa::q8`].
///
/// # Safety
/// If VNNI, the processor has AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn panels<S: Source, const VNNI: bool>(
    x: &Tiles,
    groups: usize,
    w: Rows<'_>,
    out: &mut [&mut [f32]],
) {
    let mut panel = PANEL.take();
    let mut sums = [[[_mm256_setzero_ps(); VECTORS]; TOKENS]; LANES];
    for first in (0..w.count()).step_by(ROWS) {
        let count = ROWS.min(w.count() - first);
        panel.fill::<S, VNNI>(w, first, count);
        for (tile, out) in out.chunks_mut(TOKENS).enumerate() {
            sums.fill([[_mm256_setzero_ps(); VECTORS]; TOKENS]);
            for group in 0..groups {
                let sums = &mut sums[group % LANES];
                // SAFETY: guaranteed by the caller.
                unsafe {
                    // Processes both vectors at once if there are registers for their sums.
                    if S::RUN == GROUP && (VNNI || is_wide::<S>(VNNI) || quads_at_once::<S>() >= QUADS) {
                        multiply::<S, VNNI, 2>(x, tile * groups + group, &panel, group, 0, sums);
                    } else {
                        multiply::<S, VNNI, 1>(x, tile * groups + group, &panel, group, 0, sums);
                        multiply::<S, VNNI, 1>(x, tile * groups + group, &panel, group, 1, sums);
                    }
                }
            }
            for (t, out) in out.iter_mut().enumerate() {
                let mut row = [0.0; ROWS];
                for v in 0..VECTORS {
                    let mut width = LANES / 2;
                    while width > 0 {
                        for lane in 0..width {
                            sums[lane][t][v] = _mm256_add_ps(sums[lane][t][v], sums[lane + width][t][v]);
                        }
                        width /= 2;
                    }
                    // SAFETY: the slice has eight values.
                    unsafe { _mm256_storeu_ps(row[v * WIDTH..][..WIDTH].as_mut_ptr(), sums[0][t][v]) };
                }
                out[first..first + count].copy_from_slice(&row[..count]);
            }
        }
    }
    PANEL.set(panel);
}

/// Multiplies group `group` of the panel with the same group of a tile of tokens, and adds the products to `sums`. It
/// uses V vectors of the panel, from `from` on. `at` is the index of the tile's group in `x`.
///
/// # Safety
/// The conditions of [`panels`].
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn multiply<S: Source, const VNNI: bool, const V: usize>(
    x: &Tiles,
    at: usize,
    panel: &Panel,
    group: usize,
    from: usize,
    sums: &mut [[__m256; VECTORS]; TOKENS],
) {
    let x_scales = &x.scales.as_chunks::<TOKENS>().0[at];
    // SAFETY: guaranteed by the caller.
    let mut terms = unsafe { sums_of_run::<S, VNNI, V>(x, at, panel, group, from, 0) };
    if S::SCALES_APART {
        let scales = &panel.scales[0][group];
        for t in 0..TOKENS {
            for v in 0..V {
                let scale = _mm256_mul_ps(_mm256_set1_ps(x_scales[t]), scales[from + v]);
                sums[t][from + v] = _mm256_fmadd_ps(terms[t][v], scale, sums[t][from + v]);
            }
        }
        return;
    }
    for t in 0..TOKENS {
        for v in 0..V {
            terms[t][v] = _mm256_mul_ps(panel.scales[0][group][from + v], terms[t][v]);
        }
    }
    if S::RUN < GROUP {
        // SAFETY: guaranteed by the caller.
        let second = unsafe { sums_of_run::<S, VNNI, V>(x, at, panel, group, from, 1) };
        for t in 0..TOKENS {
            for v in 0..V {
                terms[t][v] = _mm256_fmadd_ps(panel.scales[1][group][from + v], second[t][v], terms[t][v]);
            }
        }
    }
    if S::MINIMA && S::RUN == GROUP {
        add_minima(&mut terms, &panel.minima[0][group], from, &x.sums.as_chunks().0[at]);
    } else if S::MINIMA {
        let [first, second] = &x.half_sums.as_chunks().0.as_chunks::<2>().0[at];
        add_minima(&mut terms, &panel.minima[0][group], from, first);
        add_minima(&mut terms, &panel.minima[1][group], from, second);
    }
    for t in 0..TOKENS {
        let scale = _mm256_set1_ps(x_scales[t]);
        for v in 0..V {
            sums[t][from + v] = _mm256_fmadd_ps(scale, terms[t][v], sums[t][from + v]);
        }
    }
}

/// Returns the integer sums of run number `run` of a group. The arguments are those of [`multiply`].
///
/// # Safety
/// The conditions of [`panels`].
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn sums_of_run<S: Source, const VNNI: bool, const V: usize>(
    x: &Tiles,
    at: usize,
    panel: &Panel,
    group: usize,
    from: usize,
    run: usize,
) -> [[__m256; V]; TOKENS] {
    let quads = QUADS * S::RUN / GROUP;
    let mut whole = [[_mm256_setzero_si256(); V]; TOKENS];
    if is_wide::<S>(VNNI) {
        let w = &panel.values.as_chunks::<{ 2 * QUADS }>().0[group][2 * run * quads..][..2 * quads];
        let x = &x.pairs.as_chunks::<TOKENS>().0.as_chunks::<{ 2 * QUADS }>().0[at][2 * run * quads..];
        for (w, x) in w.iter().zip(x) {
            for t in 0..TOKENS {
                let x = _mm256_set1_epi32(x[t]);
                for v in 0..V {
                    whole[t][v] = _mm256_add_epi32(whole[t][v], _mm256_madd_epi16(w[from + v], x));
                }
            }
        }
        return floats(whole);
    }
    let w = &panel.values.as_chunks::<QUADS>().0[group][run * quads..][..quads];
    let x_quads = &x.quads.as_chunks::<TOKENS>().0.as_chunks::<QUADS>().0[at][run * quads..][..quads];
    if S::OFFSET != 0 {
        let offsets: &[i32; TOKENS] = match S::RUN {
            GROUP => &x.offsets.as_chunks().0[at],
            _ => &x.half_offsets.as_chunks().0.as_chunks::<2>().0[at][run],
        };
        for (whole, offset) in whole.iter_mut().zip(offsets) {
            // The stored offsets are for an OFFSET of 128. Every OFFSET is a power of two up to 128, so a shift
            // converts them.
            let part = _mm_cvtsi32_si128(S::OFFSET.leading_zeros() as i32);
            *whole = [_mm256_sra_epi32(broadcast(offset), part); V];
        }
    }
    if VNNI {
        for (w, x) in w.iter().zip(x_quads) {
            for t in 0..TOKENS {
                let x = broadcast(&x[t]);
                for v in 0..V {
                    // SAFETY: guaranteed by the caller.
                    whole[t][v] = unsafe { add_products(whole[t][v], w[from + v], x) };
                }
            }
        }
    } else {
        let most = quads_at_once::<S>();
        for (w, x) in w.chunks(most).zip(x_quads.chunks(most)) {
            let mut short = [[_mm256_setzero_si256(); V]; TOKENS];
            for (w, x) in w.iter().zip(x) {
                for t in 0..TOKENS {
                    let x = _mm256_set1_epi32(x[t]);
                    for v in 0..V {
                        let products = _mm256_maddubs_epi16(w[from + v], x);
                        short[t][v] = one_by_one(_mm256_add_epi16(short[t][v], products));
                    }
                }
            }
            for t in 0..TOKENS {
                for v in 0..V {
                    let products = _mm256_madd_epi16(short[t][v], _mm256_set1_epi16(1));
                    whole[t][v] = _mm256_add_epi32(whole[t][v], products);
                }
            }
        }
    }
    floats(whole)
}

/// Adds the minima of a run, times the sums of the run's activations, to `terms`.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn add_minima<const V: usize>(
    terms: &mut [[__m256; V]; TOKENS],
    minima: &[__m256; VECTORS],
    from: usize,
    x_sums: &[f32; TOKENS],
) {
    for t in 0..TOKENS {
        for v in 0..V {
            terms[t][v] = _mm256_fmadd_ps(minima[from + v], _mm256_set1_ps(x_sums[t]), terms[t][v]);
        }
    }
}

#[target_feature(enable = "avx2")]
#[inline]
fn floats<const V: usize>(whole: [[__m256i; V]; TOKENS]) -> [[__m256; V]; TOKENS] {
    let mut floats = [[_mm256_setzero_ps(); V]; TOKENS];
    for t in 0..TOKENS {
        for v in 0..V {
            floats[t][v] = _mm256_cvtepi32_ps(whole[t][v]);
        }
    }
    floats
}

/// Returns `x` in every lane. In assembly, because the compiler would use two instructions.
#[target_feature(enable = "avx2")]
#[inline]
fn broadcast(x: &i32) -> __m256i {
    let all;
    // SAFETY: reads the four bytes of `x`.
    unsafe {
        asm!(
            "vpbroadcastd {all}, [{x}]",
            x = in(reg) x,
            all = lateout(ymm_reg) all,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    all
}

/// Returns `sum`, and hides from the compiler how it was computed. Otherwise the compiler would add several sums in
/// another order, which needs more registers than there are.
#[target_feature(enable = "avx2")]
#[inline]
fn one_by_one(sum: __m256i) -> __m256i {
    let mut sum = sum;
    // SAFETY: the assembly has no instruction.
    unsafe { asm!("/* {sum} */", sum = inout(ymm_reg) sum, options(pure, nomem, nostack, preserves_flags)) };
    sum
}

impl Panel {
    /// Packs `count` rows of `w`, at most 16, from `first` on. Missing rows are replaced by the last one.
    #[target_feature(enable = "avx2,fma,f16c")]
    fn fill<S: Source, const VNNI: bool>(&mut self, w: Rows<'_>, first: usize, count: usize) {
        let rows: [Row<'_>; ROWS] = std::array::from_fn(|i| Row::of(w, first + i.min(count - 1)));
        let chunks = w.inputs.div_ceil(unpack::VALUES);
        let parts = if is_wide::<S>(VNNI) { 2 } else { 1 };
        self.values.resize(chunks * GROUPS * QUADS * parts, [_mm256_setzero_si256(); VECTORS]);
        for numbers in self.scales.iter_mut().chain(&mut self.minima) {
            numbers.resize(chunks * GROUPS, [_mm256_setzero_ps(); VECTORS]);
        }
        let mut of_rows: [Chunk; ROWS] = std::array::from_fn(|_| Chunk::zeros());
        let mut padding = Padding::new();
        for number in 0..chunks {
            for (row, chunk) in rows.iter().zip(&mut of_rows) {
                for line in (0..S::BYTES).step_by(64) {
                    // An invalid address is ignored.
                    let at = ROWS * row.bytes.len() + number * S::BYTES + line;
                    _mm_prefetch::<_MM_HINT_T1>(row.bytes.as_ptr().wrapping_add(at).cast());
                }
                // SAFETY: this function has the same features.
                unsafe { S::take(row.part(number, S::BYTES, S::SCALES, &mut padding), chunk) };
            }
            let values = &mut self.values[number * GROUPS * QUADS * parts..][..GROUPS * QUADS * parts];
            for v in 0..VECTORS {
                let of_rows = &of_rows.as_chunks::<WIDTH>().0[v];
                for (group, values) in values.chunks_exact_mut(QUADS * parts).enumerate() {
                    let of_row = |i: usize| _mm256_castsi256_ps(of_rows[i].quants[group]);
                    let quads = transpose(std::array::from_fn(of_row));
                    for (quad, values) in quads.iter().zip(values.chunks_exact_mut(parts)) {
                        let quad = _mm256_castps_si256(*quad);
                        if let [first, second] = values {
                            let signed = _mm256_xor_si256(quad, _mm256_set1_epi8(-128));
                            first[v] = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(signed));
                            second[v] = _mm256_srai_epi16::<8>(signed);
                        } else {
                            values[0][v] = quad;
                        }
                    }
                }
                for run in 0..GROUP / S::RUN {
                    let scales = transpose(std::array::from_fn(|i| of_rows[i].scales[run]));
                    for (group, scales) in scales.iter().enumerate() {
                        self.scales[run][number * GROUPS + group][v] = *scales;
                    }
                    if S::MINIMA {
                        let minima = transpose(std::array::from_fn(|i| of_rows[i].minima[run]));
                        for (group, minima) in minima.iter().enumerate() {
                            self.minima[run][number * GROUPS + group][v] = *minima;
                        }
                    }
                }
            }
        }
    }
}
