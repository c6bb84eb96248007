//! AVX512-BF16: an instruction that adds the products of two pairs of bfloat16 values to each of 16 sums.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::avx512;
use super::bf16_tiles::{Next, SIDE, STEP, Sums, TWO_TILES, Weights};
use super::limits::CHAINS;

/// Whether the processor has AVX512-BF16.
pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16")
}

/// The number of weight rows at a time. Their sums with two tiles of tokens fill the registers. Also, rows at a
/// distance of a power of two share a set of the L1 cache, and more rows than this do not fit into it.
const ROWS: usize = 8;

/// See [`super::bf16_unit::Unit`].
pub(super) fn sums(
    weights: Weights<'_>,
    x: &[u16],
    (parts, tiles): (usize, usize),
    next: Next,
    sums: &mut Sums,
) {
    // SAFETY: this unit exists only if the processor has AVX512-BF16.
    unsafe {
        match tiles {
            1 => of_tiles::<1>(weights, x, parts, next, sums),
            _ => of_tiles::<2>(weights, x, parts, next, sums),
        }
    }
}

/// Computes [`sums`] with the first TILES tiles of tokens.
#[target_feature(enable = "avx512f,avx512bf16")]
fn of_tiles<const TILES: usize>(weights: Weights<'_>, x: &[u16], parts: usize, next: Next, sums: &mut Sums) {
    const GROUPS: usize = 2 * SIDE / ROWS;
    let Weights { bytes, steps, row: to_row, step: to_step } = weights;
    assert!(steps > 0 && x.len() == parts * steps * TWO_TILES);
    assert!((2 * SIDE - 1) * to_row + (steps - 1) * to_step + 2 * STEP <= bytes.len());
    let asks = next.rows.div_ceil(GROUPS);
    for group in 0..GROUPS {
        let first = group * ROWS;
        let mut rows = [[_mm512_setzero_ps(); TILES]; ROWS];
        for part in x.chunks_exact(steps * TWO_TILES) {
            for (step, x) in part.chunks_exact(TWO_TILES).enumerate() {
                // Prefetches a few rows at a time, because the processor stalls if too many prefetches are outstanding.
                for row in group * asks..next.rows.min((group + 1) * asks) {
                    avx512::prefetch_far(next.first.wrapping_add(row * next.stride + step * 2 * STEP));
                }
                // SAFETY: a step of `x` has two tiles of 16 pairs of 16 · 2 values. A step of each of the 32 rows has
                // 16 pairs of two values. The assertion checks that the last row ends inside `bytes`.
                unsafe {
                    let weights = bytes.as_ptr().add(first * to_row + step * to_step);
                    for pair in 0..STEP / 2 {
                        let x = x.as_ptr().add(pair * 2 * SIDE);
                        let x: [__m512bh; TILES] = std::array::from_fn(|tile| {
                            let x = _mm512_loadu_si512(x.add(tile * TWO_TILES / 2).cast());
                            std::mem::transmute::<__m512i, __m512bh>(x)
                        });
                        for row in 0..ROWS {
                            let pair = weights.add(row * to_row + 4 * pair).cast::<i32>();
                            let pair = _mm512_set1_epi32(pair.read_unaligned());
                            let pair = std::mem::transmute::<__m512i, __m512bh>(pair);
                            for tile in 0..TILES {
                                rows[row][tile] = _mm512_dpbf16_ps(rows[row][tile], pair, x[tile]);
                            }
                        }
                    }
                }
            }
        }
        for (row, made) in rows.into_iter().enumerate() {
            for (tile, made) in made.into_iter().enumerate() {
                let out = sums.tile_mut(2 * tile + (first + row) / SIDE);
                // SAFETY: the slice has 16 values.
                unsafe {
                    _mm512_storeu_ps(out[(first + row) % SIDE * SIDE..][..SIDE].as_mut_ptr(), made);
                };
            }
        }
    }
}

/// See [`super::Kernel::multiply_limit`].
pub(super) fn multiply(rounds: usize) -> f32 {
    #[target_feature(enable = "avx512f,avx512bf16")]
    fn inner(rounds: usize, factor: f32) -> f32 {
        // SAFETY: both types have 64 bytes, and every bit pattern is valid for both.
        let x = unsafe { std::mem::transmute::<__m512, __m512bh>(_mm512_set1_ps(factor)) };
        let mut sums = [_mm512_set1_ps(1.0); CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_dpbf16_ps(*sum, x, x);
            }
        }
        sums.into_iter().map(|sum| _mm512_cvtss_f32(sum)).sum()
    }
    // SAFETY: this unit exists only if the processor has AVX512-BF16.
    unsafe { inner(rounds, std::hint::black_box(0.001)) }
}
