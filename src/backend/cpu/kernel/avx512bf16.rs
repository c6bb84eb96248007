//! AVX512-BF16: an instruction that adds to each of 16 sums the products of two bfloat16 values.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::bf16_tiles::{SIDE, STEP, Sums, TWO_TILES};
use super::limits::CHAINS;

/// Whether the processor has it.
pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16")
}

/// Weight rows whose sums with two tiles of tokens fill the registers.
const ROWS: usize = 8;

/// See [`super::bf16_gemm::Unit`].
pub(super) fn sums(weights: &[u16], x: &[u16], parts: usize, sums: &mut Sums) {
    #[target_feature(enable = "avx512f,avx512bf16")]
    fn inner(weights: &[u16], x: &[u16], parts: usize, sums: &mut Sums) {
        assert!(x.len() == parts * weights.len() && weights.len().is_multiple_of(TWO_TILES));
        for first in (0..2 * SIDE).step_by(ROWS) {
            let mut rows = [[_mm512_setzero_ps(); 2]; ROWS];
            for part in x.chunks_exact(weights.len()) {
                let steps = weights.chunks_exact(TWO_TILES).zip(part.chunks_exact(TWO_TILES));
                for (weights, x) in steps {
                    let weights = &weights[first * STEP..][..ROWS * STEP];
                    for pair in 0..STEP / 2 {
                        // SAFETY: a step of `x` has two tiles of 16 pairs of 16 · 2 values, and the rows have 16
                        // pairs of two each.
                        unsafe {
                            let x = x.as_ptr().add(pair * 2 * SIDE);
                            let x = [x, x.add(TWO_TILES / 2)].map(|x| {
                                std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(x.cast()))
                            });
                            for row in 0..ROWS {
                                let pair = weights.as_ptr().add(row * STEP + 2 * pair).cast::<i32>();
                                let pair = _mm512_set1_epi32(pair.read_unaligned());
                                let pair = std::mem::transmute::<__m512i, __m512bh>(pair);
                                for tile in 0..2 {
                                    rows[row][tile] = _mm512_dpbf16_ps(rows[row][tile], pair, x[tile]);
                                }
                            }
                        }
                    }
                }
            }
            for (row, made) in rows.into_iter().enumerate() {
                for (tile, made) in made.into_iter().enumerate() {
                    let out = &mut sums.tiles()[2 * tile + (first + row) / SIDE];
                    // SAFETY: 16 values.
                    unsafe {
                        _mm512_storeu_ps(out[(first + row) % SIDE * SIDE..][..SIDE].as_mut_ptr(), made);
                    };
                }
            }
        }
    }
    // SAFETY: this unit exists only where the processor has AVX512-BF16.
    unsafe { inner(weights, x, parts, sums) }
}

/// See [`super::Kernel::multiply_limit`].
pub(super) fn multiply(rounds: usize) -> f32 {
    #[target_feature(enable = "avx512f,avx512bf16")]
    fn inner(rounds: usize, factor: f32) -> f32 {
        // SAFETY: both types are 64 bytes without a meaning that all bits could not have.
        let x = unsafe { std::mem::transmute::<__m512, __m512bh>(_mm512_set1_ps(factor)) };
        let mut sums = [_mm512_set1_ps(1.0); CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_dpbf16_ps(*sum, x, x);
            }
        }
        sums.into_iter().map(|sum| _mm512_cvtss_f32(sum)).sum()
    }
    // SAFETY: this unit exists only where the processor has AVX512-BF16.
    unsafe { inner(rounds, std::hint::black_box(0.001)) }
}
