//! The register tile of products with many rows of activations, and the transposition of weights for it.
#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::{Rows, gemm};
use super::prefetch_far;
use llama_trace_core::ops::matmul::LANES;
use llama_trace_core::tensor::Dtype;

/// 48 weight rows × 8 tokens: 24 of the 32 registers hold sums.
pub(in super::super) struct Tile;

impl gemm::Tile for Tile {
    const ROWS: usize = 48;
    const TOKENS: usize = 8;

    fn pack(w: Rows<'_>, first: usize, inputs: Range<usize>, scratch: &mut [f32], panel: &mut [f32]) {
        pack(w, first, inputs, scratch, panel);
    }

    fn sum(x: &[f32], w: &[f32], earlier: &[f32], sums: &mut [f32]) {
        // SAFETY: a `Kernel` for AVX-512 exists only if the processor has these features.
        unsafe {
            match sums.len() / Self::ROWS {
                1 => sum::<1>(x, w, earlier, sums),
                2 => sum::<2>(x, w, earlier, sums),
                3 => sum::<3>(x, w, earlier, sums),
                4 => sum::<4>(x, w, earlier, sums),
                5 => sum::<5>(x, w, earlier, sums),
                6 => sum::<6>(x, w, earlier, sums),
                7 => sum::<7>(x, w, earlier, sums),
                _ => sum::<{ Self::TOKENS }>(x, w, earlier, sums),
            }
        }
    }

    #[inline(always)]
    fn prefetch(address: *const u8) {
        prefetch_far(address);
    }
}

/// The number of vectors of weight rows in a tile.
const VECTORS: usize = <Tile as gemm::Tile>::ROWS / LANES;

/// The prefetch distance of [`sum`] for activations, in values.
const X_AHEAD: usize = 1024;

/// See [`gemm::Tile::sum`], for T tokens.
#[target_feature(enable = "avx512f")]
fn sum<const T: usize>(x: &[f32], w: &[f32], earlier: &[f32], sums: &mut [f32]) {
    let (steps, size) = (x.len() / T, T * VECTORS * LANES);
    assert!(w.len() == steps * VECTORS * LANES && sums.len() == size);
    let mut tile = [[_mm512_setzero_ps(); VECTORS]; T];
    let (mut x, mut w, sums) = (x.as_ptr(), w.as_ptr(), sums.as_mut_ptr());
    // SAFETY: the assertion checks the lengths. `sums` and each of `earlier` hold T·VECTORS vectors, and each step
    // reads T values of `x` and VECTORS vectors of `w`.
    unsafe {
        let mut step = |x: *const f32, w: *const f32| {
            let mut weights = [_mm512_setzero_ps(); VECTORS];
            for v in 0..VECTORS {
                weights[v] = _mm512_loadu_ps(w.add(v * LANES));
            }
            for token in 0..T {
                let activation = _mm512_set1_ps(*x.add(token));
                for v in 0..VECTORS {
                    tile[token][v] = _mm512_fmadd_ps(activation, weights[v], tile[token][v]);
                }
            }
        };
        // One prefetch is enough for two steps: they read at most one cache line of the activations.
        for _ in 0..steps / 2 {
            // The next tile's activations follow this tile's activations in memory. They are in a cache level from
            // which the hardware prefetcher does not read beyond a page.
            _mm_prefetch::<_MM_HINT_T0>(x.wrapping_add(X_AHEAD).cast());
            step(x, w);
            step(x.add(T), w.add(VECTORS * LANES));
            x = x.add(2 * T);
            w = w.add(2 * VECTORS * LANES);
        }
        if steps % 2 == 1 {
            step(x, w);
        }
        for earlier in earlier.chunks_exact(size) {
            for token in 0..T {
                for v in 0..VECTORS {
                    let earlier = _mm512_loadu_ps(earlier.as_ptr().add((token * VECTORS + v) * LANES));
                    tile[token][v] = _mm512_add_ps(earlier, tile[token][v]);
                }
            }
        }
        for token in 0..T {
            for v in 0..VECTORS {
                _mm512_storeu_ps(sums.add((token * VECTORS + v) * LANES), tile[token][v]);
            }
        }
    }
}

/// See [`gemm::pack`]. Transposes 16 rows × 16 numbers of 32 bits in registers.
fn pack(w: Rows<'_>, first: usize, inputs: Range<usize>, scratch: &mut [f32], panel: &mut [f32]) {
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    fn inner(w: Rows<'_>, first: usize, inputs: Range<usize>, scratch: &mut [f32], panel: &mut [f32]) {
        let stride = gemm::panel_stride(inputs.len(), VECTORS * LANES);
        assert!(panel.len() == LANES * stride && scratch.len() >= LANES * gemm::BLOCK);
        // Returns the position of vector `v` of the rows for `input`.
        let at = |input: usize, v: usize| {
            let input = input - inputs.start;
            input % LANES * stride + (input / LANES * VECTORS + v) * LANES
        };
        for v in 0..VECTORS {
            let rows = first + v * LANES..first + (v + 1) * LANES;
            let mut done = inputs.start;
            if w.dtype == Dtype::BF16 && rows.end <= w.count() {
                let rows: [&[u8]; LANES] = std::array::from_fn(|row| w.row(rows.start + row));
                assert!(rows.iter().all(|row| row.len() == 2 * w.inputs));
                // The distance in a panel from one step to the next, in values.
                const STEP: usize = VECTORS * LANES;
                let odd = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
                while done + 2 * LANES <= inputs.end {
                    // SAFETY: the assertion checks that each row has 32 values from `done` on. `panel` has 16 parts of
                    // `stride` values, each of which holds VECTORS vectors for every 16 inputs.
                    unsafe {
                        let pairs = |row: usize| _mm512_loadu_ps(rows[row].as_ptr().add(2 * done).cast());
                        let pairs = transpose(std::array::from_fn(pairs));
                        let (low, high) = pairs.split_at(LANES / 2);
                        let mut to = panel.as_mut_ptr().add(at(done, v));
                        for (low, high) in low.iter().zip(high) {
                            // A bfloat16 is the upper half of a float32.
                            let [low, high] = [low, high].map(|pairs| _mm512_castps_si512(*pairs));
                            _mm512_storeu_si512(to.cast(), _mm512_slli_epi32::<16>(low));
                            _mm512_storeu_si512(to.add(STEP).cast(), _mm512_slli_epi32::<16>(high));
                            to = to.wrapping_add(stride);
                            _mm512_storeu_si512(to.cast(), _mm512_and_si512(low, odd));
                            _mm512_storeu_si512(to.add(STEP).cast(), _mm512_and_si512(high, odd));
                            to = to.wrapping_add(stride);
                        }
                    }
                    done += 2 * LANES;
                }
            }
            if w.dtype == Dtype::F32 && w.plain() && rows.end <= w.count() {
                let rows: [&[u8]; LANES] = std::array::from_fn(|row| w.row(rows.start + row));
                assert!(rows.iter().all(|row| row.len() == 4 * w.inputs));
                while done + LANES <= inputs.end {
                    // SAFETY: as above, with 16 values of each row.
                    unsafe {
                        let values = |row: usize| _mm512_loadu_ps(rows[row].as_ptr().add(4 * done).cast());
                        let mut to = panel.as_mut_ptr().add(at(done, v));
                        for column in transpose(std::array::from_fn(values)) {
                            _mm512_storeu_ps(to, column);
                            to = to.wrapping_add(stride);
                        }
                    }
                    done += LANES;
                }
            }
            for start in (done..inputs.end).step_by(gemm::BLOCK) {
                let block = start..(start + gemm::BLOCK).min(inputs.end);
                for (row, out) in rows.clone().zip(scratch.chunks_exact_mut(gemm::BLOCK)) {
                    out[block.len()..].fill(0.0);
                    match row < w.count() {
                        true => w.widen(row, block.clone(), &mut out[..block.len()]),
                        false => out[..block.len()].fill(0.0),
                    }
                }
                for step in (0..block.len()).step_by(LANES) {
                    // SAFETY: `scratch` has 16 rows of BLOCK values, and 16 values from each step on are read. For
                    // `panel`, see above.
                    unsafe {
                        let row = |row: usize| scratch.as_ptr().add(row * gemm::BLOCK + step);
                        let columns = transpose(std::array::from_fn(|i| _mm512_loadu_ps(row(i))));
                        for (i, column) in columns.into_iter().enumerate() {
                            _mm512_storeu_ps(panel.as_mut_ptr().add(at(start + step + i, v)), column);
                        }
                    }
                }
            }
        }
    }
    // SAFETY: a `Kernel` for AVX-512 exists only if the processor has these features.
    unsafe { inner(w, first, inputs, scratch, panel) }
}

/// Returns the columns of 16 rows of 16 values.
#[target_feature(enable = "avx512f")]
pub(in super::super) fn transpose(rows: [__m512; LANES]) -> [__m512; LANES] {
    let zero = _mm512_setzero_ps();
    // Each 128-bit part now gets a column of four adjacent rows.
    let mut fours = [zero; LANES];
    for i in (0..LANES).step_by(4) {
        let pair = |a, b| {
            let (low, high) = (_mm512_unpacklo_ps(rows[a], rows[b]), _mm512_unpackhi_ps(rows[a], rows[b]));
            (_mm512_castps_pd(low), _mm512_castps_pd(high))
        };
        let ((low, high), (low_2, high_2)) = (pair(i, i + 1), pair(i + 2, i + 3));
        fours[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, low_2));
        fours[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, low_2));
        fours[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high, high_2));
        fours[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high, high_2));
    }
    // Part p of `fours[4 i + c]` has rows 4 i … 4 i + 3 of column 4 p + c.
    let mut columns = [zero; LANES];
    for c in 0..4 {
        let (a, b) = (fours[c], fours[4 + c]);
        let (low, high) = (_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
        let (a, b) = (fours[8 + c], fours[12 + c]);
        let (low_2, high_2) = (_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
        columns[c] = _mm512_shuffle_f32x4::<0x88>(low, low_2);
        columns[4 + c] = _mm512_shuffle_f32x4::<0xdd>(low, low_2);
        columns[8 + c] = _mm512_shuffle_f32x4::<0x88>(high, high_2);
        columns[12 + c] = _mm512_shuffle_f32x4::<0xdd>(high, high_2);
    }
    columns
}
