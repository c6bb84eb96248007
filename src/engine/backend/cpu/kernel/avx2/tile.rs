//! The register tile of products with many rows of activations, and the transposition of weights for it.

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::{Rows, gemm};
use super::transpose;
use llama_trace_core::ops::matmul::LANES;
use llama_trace_core::tensor::Dtype;

/// The number of values in a vector.
const WIDTH: usize = 8;

/// 16 weight rows × 6 tokens: 12 of the 16 registers hold sums.
pub(in super::super) struct Tile;

impl gemm::Tile for Tile {
    const ROWS: usize = 16;
    const TOKENS: usize = 6;

    fn pack(w: Rows<'_>, first: usize, inputs: Range<usize>, scratch: &mut [f32], panel: &mut [f32]) {
        // SAFETY: a `Kernel` for AVX2 exists only if the processor has these features.
        unsafe { pack(w, first, inputs, scratch, panel) }
    }

    fn sum(x: &[f32], w: &[f32], earlier: &[f32], sums: &mut [f32]) {
        // SAFETY: a `Kernel` for AVX2 exists only if the processor has these features.
        unsafe {
            match sums.len() / ROWS {
                1 => sum::<1>(x, w, earlier, sums),
                2 => sum::<2>(x, w, earlier, sums),
                3 => sum::<3>(x, w, earlier, sums),
                4 => sum::<4>(x, w, earlier, sums),
                5 => sum::<5>(x, w, earlier, sums),
                _ => sum::<TOKENS>(x, w, earlier, sums),
            }
        }
    }

    #[inline(always)]
    fn prefetch(address: *const u8) {
        // SAFETY: every processor with AVX2 has SSE.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) };
    }
}

const TOKENS: usize = <Tile as gemm::Tile>::TOKENS;
const ROWS: usize = <Tile as gemm::Tile>::ROWS;

/// The number of vectors of weight rows in a tile.
const VECTORS: usize = ROWS / WIDTH;

/// The prefetch distance of [`sum`] for activations, in values.
const X_AHEAD: usize = 768;

/// The number of float32 values in a cache line, and the number of bfloat16 values.
const LINE: usize = 16;
const LINE_BF16: usize = 32;

/// See [`gemm::Tile::sum`], for T tokens.
#[target_feature(enable = "avx2,fma")]
fn sum<const T: usize>(x: &[f32], w: &[f32], earlier: &[f32], sums: &mut [f32]) {
    let (steps, size) = (x.len() / T, T * ROWS);
    assert!(w.len() == steps * ROWS && sums.len() == size);
    let mut tile = [[_mm256_setzero_ps(); VECTORS]; T];
    let (mut x, mut w, sums) = (x.as_ptr(), w.as_ptr(), sums.as_mut_ptr());
    // SAFETY: the assertion checks the lengths. `sums` and each of `earlier` hold T · VECTORS vectors, and each step
    // reads T values of `x` and VECTORS vectors of `w`.
    unsafe {
        let mut step = || {
            let weights = [_mm256_loadu_ps(w), _mm256_loadu_ps(w.add(WIDTH))];
            for token in 0..T {
                let activation = _mm256_broadcast_ss(&*x.add(token));
                for v in 0..VECTORS {
                    tile[token][v] = _mm256_fmadd_ps(activation, weights[v], tile[token][v]);
                }
            }
            x = x.add(T);
            w = w.add(ROWS);
            x
        };
        for _ in 0..steps / 4 {
            for _ in 0..3 {
                step();
            }
            // The next tile's activations follow this tile's activations in memory. They are in a cache level from
            // which the hardware prefetcher does not read beyond a page.
            let ahead = step().wrapping_add(X_AHEAD);
            _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
            _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(LINE).cast());
        }
        for _ in 0..steps % 4 {
            step();
        }
        for earlier in earlier.chunks_exact(size) {
            for token in 0..T {
                for v in 0..VECTORS {
                    let earlier = _mm256_loadu_ps(earlier.as_ptr().add(token * ROWS + v * WIDTH));
                    tile[token][v] = _mm256_add_ps(earlier, tile[token][v]);
                }
            }
        }
        for token in 0..T {
            for v in 0..VECTORS {
                _mm256_storeu_ps(sums.add(token * ROWS + v * WIDTH), tile[token][v]);
            }
        }
    }
}

/// See [`gemm::pack`]. Transposes eight rows × eight numbers of 32 bits in registers.
#[target_feature(enable = "avx2,fma,f16c")]
fn pack(w: Rows<'_>, first: usize, inputs: Range<usize>, scratch: &mut [f32], panel: &mut [f32]) {
    let stride = gemm::panel_stride(inputs.len(), ROWS);
    assert!(panel.len() == LANES * stride && scratch.len() >= LANES * gemm::BLOCK);
    // Returns the position of vector `v` of the rows for `input`.
    let at = |input: usize, v: usize| {
        let input = input - inputs.start;
        input % LANES * stride + input / LANES * ROWS + v * WIDTH
    };
    let mut done = inputs.start;
    if w.dtype == Dtype::BF16 && first + ROWS <= w.count() {
        let rows: [&[u8]; ROWS] = std::array::from_fn(|row| w.row(first + row));
        assert!(rows.iter().all(|row| row.len() == 2 * w.inputs));
        let odd = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
        // Each round reads and writes whole cache lines. Because of the distances between the rows and between the
        // parts of the panel, few of these lines stay in L1 for a later round.
        while done + LINE_BF16 <= inputs.end {
            for v in 0..VECTORS {
                for done in [done, done + LANES] {
                    // SAFETY: the assertion checks that each row has 16 values from `done` on. `panel` has 16 parts of
                    // `stride` values, each of which holds VECTORS vectors for every 16 inputs.
                    unsafe {
                        let pairs =
                            |row: usize| _mm256_loadu_ps(rows[v * WIDTH + row].as_ptr().add(2 * done).cast());
                        let mut to = panel.as_mut_ptr().add(at(done, v));
                        for pairs in transpose(std::array::from_fn(pairs)) {
                            // A bfloat16 is the upper half of a float32.
                            let pairs = _mm256_castps_si256(pairs);
                            _mm256_storeu_si256(to.cast(), _mm256_slli_epi32::<16>(pairs));
                            _mm256_storeu_si256(to.add(stride).cast(), _mm256_and_si256(pairs, odd));
                            to = to.wrapping_add(2 * stride);
                        }
                    }
                }
            }
            done += LINE_BF16;
        }
    }
    for v in 0..VECTORS {
        let rows = first + v * WIDTH..first + (v + 1) * WIDTH;
        for start in (done..inputs.end).step_by(gemm::BLOCK) {
            let block = start..(start + gemm::BLOCK).min(inputs.end);
            for (row, out) in rows.clone().zip(scratch.chunks_exact_mut(gemm::BLOCK)) {
                out[block.len()..].fill(0.0);
                match row < w.count() {
                    true => w.widen(row, block.clone(), &mut out[..block.len()]),
                    false => out[..block.len()].fill(0.0),
                }
            }
            for step in (0..block.len().next_multiple_of(LANES)).step_by(WIDTH) {
                // SAFETY: `scratch` has eight rows of BLOCK values, and eight values from each step on are read. For
                // `panel`, see above.
                unsafe {
                    let row = |row: usize| scratch.as_ptr().add(row * gemm::BLOCK + step);
                    let columns = transpose(std::array::from_fn(|i| _mm256_loadu_ps(row(i))));
                    for (i, column) in columns.into_iter().enumerate() {
                        _mm256_storeu_ps(panel.as_mut_ptr().add(at(start + step + i, v)), column);
                    }
                }
            }
        }
    }
}
