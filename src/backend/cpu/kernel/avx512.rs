//! The inner loops for AVX-512: one vector holds the 16 partial sums of one output.
#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::ops::Range;

use half::{bf16, f16};

use super::limits::CHAINS;
use super::q8::Quantized;
use super::{Rows, Spaced, gemm, portable};
use crate::checkpoint::Dtype;
use crate::config::Precision;
use crate::ops;
use crate::ops::matmul::{LANES, STRETCH};

/// For rows up to this long, 16 sums are made at a time and their lanes added up together: one by one, that would take
/// as long as making them.
const SHORT: usize = 512;

/// See [`super::Kernel::dots`]; for number types in which every value stands for itself.
pub(super) fn dots(x: Spaced<'_>, w: Rows<'_>, out: &mut [&mut [f32]]) {
    // So many tokens and rows at once that the sums fill the registers, and a row is widened once for them.
    let (mut x, mut out) = (x, out);
    let most = if w.inputs > SHORT { 8 } else { 4 };
    while !out.is_empty() {
        let tokens = 1 << out.len().min(most).ilog2();
        let out_now;
        (out_now, out) = out.split_at_mut(tokens);
        match (tokens, w.inputs) {
            (4, ..=SHORT) => dots_of_tokens::<4, 4>(x, w, out_now),
            (2, ..=SHORT) => dots_of_tokens::<2, 8>(x, w, out_now),
            (_, ..=SHORT) => dots_of_short(x, w, out_now),
            (8, _) => dots_of_tokens::<8, 3>(x, w, out_now),
            (4, _) => dots_of_tokens::<4, 6>(x, w, out_now),
            (2, _) => dots_of_tokens::<2, 4>(x, w, out_now),
            (_, _) => dots_of_tokens::<1, 4>(x, w, out_now),
        }
        x = x.skip(tokens);
    }
}

/// [`dots`] of one token with rows up to [`SHORT`], 16 rows at a time.
fn dots_of_short(x: Spaced<'_>, w: Rows<'_>, out: &mut [&mut [f32]]) {
    let Some((first, out)) = x.rows().next().zip(out.first_mut()) else { return };
    let length = w.bytes.len() / out.len();
    let (blocks, rest) = out.as_chunks_mut::<LANES>();
    let (rows, rows_left) = w.bytes.split_at(blocks.len() * LANES * length);
    for (out, rows) in blocks.iter_mut().zip(rows.chunks_exact(LANES * length)) {
        // SAFETY: a `Kernel` for AVX-512 exists only where the processor has these features.
        *out = unsafe {
            match w.dtype {
                Dtype::F32 => short_f32(first, rows),
                Dtype::F16 => short_f16(first, rows),
                Dtype::BF16 => short_bf16(first, rows),
                other => unreachable!("{other} is for dots_of_blocks"),
            }
        };
    }
    for (out, row) in rest.iter_mut().zip(rows_left.chunks_exact(length)) {
        [[*out]] = products::<1, 1>(x, w, row);
    }
}

/// [`dots`] of T tokens, R rows at a time.
fn dots_of_tokens<const T: usize, const R: usize>(x: Spaced<'_>, w: Rows<'_>, out: &mut [&mut [f32]]) {
    let length = w.row(0).len();
    let whole = w.count() / R * R;
    for first in (0..whole).step_by(R) {
        let rows = &w.bytes[first * length..(first + R) * length];
        let sums = products::<T, R>(x, w, rows);
        for (token, out) in out.iter_mut().enumerate() {
            for (out, sums) in out[first..first + R].iter_mut().zip(sums) {
                *out = sums[token];
            }
        }
    }
    for row in whole..w.count() {
        let [sums] = products::<T, 1>(x, w, w.row(row));
        for (out, sum) in out.iter_mut().zip(sums) {
            out[row] = sum;
        }
    }
}

/// The dot products of the first T tokens with `rows`, some R rows of `w`.
fn products<const T: usize, const R: usize>(x: Spaced<'_>, w: Rows<'_>, rows: &[u8]) -> [[f32; T]; R] {
    // SAFETY: a `Kernel` for AVX-512 exists only where the processor has these features.
    unsafe {
        match w.dtype {
            Dtype::F32 => dots_f32(x, rows),
            Dtype::F16 => dots_f16(x, rows),
            Dtype::BF16 => dots_bf16(x, rows),
            other => unreachable!("{other} is for dots_of_blocks"),
        }
    }
}

macro_rules! dots_of {
    ($name:ident, $short:ident, $size:literal, |$pointer:ident, $mask:ident| $load:expr) => {
        /// The dot products of the first T rows of activations with R rows of as many weights.
        #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
        fn $name<const T: usize, const R: usize>(x: Spaced<'_>, rows: &[u8]) -> [[f32; T]; R] {
            let (inputs, x_row, length) = (x.width, x.stride(), x.width * $size);
            assert!(x.values.len() >= T * x_row && rows.len() == R * length);
            let step = |mut sums: [[__m512; T]; R], x: *const f32, w: *const u8, $mask: __mmask16| {
                // SAFETY: masked loads touch only lanes below the end of a row; `x` and `w` point into the first of T and of R
                // rows, which follow one another, as was just checked.
                unsafe {
                    let mut weights = [_mm512_setzero_ps(); R];
                    for row in 0..R {
                        let $pointer = w.add(row * length);
                        weights[row] = $load;
                        // Of rows side by side, the processor does not read enough ahead.
                        let next = $pointer.wrapping_add(R * length);
                        match T {
                            1 => _mm_prefetch::<_MM_HINT_T0>(next.cast()),
                            _ => _mm_prefetch::<_MM_HINT_T1>(next.cast()),
                        }
                    }
                    for token in 0..T {
                        let x = _mm512_maskz_loadu_ps($mask, x.add(token * x_row));
                        for row in 0..R {
                            sums[row][token] = _mm512_fmadd_ps(x, weights[row], sums[row][token]);
                        }
                    }
                }
                sums
            };
            let mut out = [[0.0; T]; R];
            for start in (0..inputs).step_by(STRETCH) {
                let count = STRETCH.min(inputs - start);
                let mut sums = [[_mm512_setzero_ps(); T]; R];
                let (mut x, mut w) = (x.values[start..].as_ptr(), rows[start * $size..].as_ptr());
                for _ in 0..count / LANES {
                    sums = step(sums, x, w, 0xffff);
                    (x, w) = (x.wrapping_add(LANES), w.wrapping_add(LANES * $size));
                }
                if count % LANES > 0 {
                    sums = step(sums, x, w, mask(count % LANES));
                }
                for (out, sums) in out.as_flattened_mut().iter_mut().zip(sums.as_flattened()) {
                    let sum = reduce(*sums);
                    *out = if start == 0 { sum } else { *out + sum };
                }
            }
            out
        }

        /// The dot products of no more than a stretch of activations with 16 rows of as many weights, which follow one
        /// another: their sums are reduced together.
        #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
        fn $short(x: &[f32], rows: &[u8]) -> [f32; LANES] {
            let inputs = x.len();
            assert!((1..=STRETCH).contains(&inputs) && rows.len() == LANES * inputs * $size);
            let mut sums = [_mm512_setzero_ps(); LANES];
            for (sum, row) in sums.iter_mut().zip(rows.chunks_exact(inputs * $size)) {
                let mut step = |at: usize, $mask: __mmask16| {
                    // SAFETY: masked loads touch only lanes below `inputs - at`; `x` and `row` have `inputs` values.
                    unsafe {
                        let $pointer = row.as_ptr().add(at * $size);
                        // Once a line of the cache.
                        if at * $size % 64 == 0 {
                            prefetch($pointer);
                        }
                        let weights = $load;
                        *sum =
                            _mm512_fmadd_ps(_mm512_maskz_loadu_ps($mask, x.as_ptr().add(at)), weights, *sum);
                    }
                };
                let whole = inputs / LANES * LANES;
                for at in (0..whole).step_by(LANES) {
                    step(at, 0xffff);
                }
                if whole < inputs {
                    step(whole, mask(inputs - whole));
                }
            }
            let mut out = [0.0; LANES];
            // SAFETY: 16 values.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), reduce_16(sums)) };
            out
        }
    };
}

dots_of!(dots_f32, short_f32, 4, |pointer, mask| _mm512_maskz_loadu_ps(mask, pointer.cast()));
dots_of!(dots_f16, short_f16, 2, |pointer, mask| _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(
    mask,
    pointer.cast()
)));
dots_of!(dots_bf16, short_bf16, 2, |pointer, mask| {
    // The upper half of a float32 is a bfloat16.
    let halves = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, pointer.cast()));
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves))
});

/// Bytes by which weights are asked for before they are needed.
const AHEAD: usize = 2048;

/// Asks for the weights that come [`AHEAD`] after `at`: the rows of a matrix follow one another. An address that
/// is no memory of ours is ignored.
#[inline]
#[target_feature(enable = "sse")]
pub(super) fn prefetch(at: *const u8) {
    _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast());
}

/// Asks for the line at `address`, which need be no memory of ours, in the second-level cache.
#[inline(always)]
pub(super) fn prefetch_far(address: *const u8) {
    // SAFETY: every processor with AVX-512 has SSE.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) };
}

/// The lanes that are left when `left` values are.
fn mask(left: usize) -> __mmask16 {
    if left >= LANES { 0xffff } else { (1 << left) - 1 }
}

/// The sum of the lanes, in the order of [`ops::matmul::reduce`].
#[target_feature(enable = "avx512f,avx512dq")]
pub(super) fn reduce(sums: __m512) -> f32 {
    let eight = _mm256_add_ps(_mm512_castps512_ps256(sums), _mm512_extractf32x8_ps::<1>(sums));
    let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
}

/// 48 weight rows × 8 tokens: 24 of the 32 registers hold sums.
pub(super) struct Tile;

impl gemm::Tile for Tile {
    const ROWS: usize = 48;
    const TOKENS: usize = 8;

    fn pack(w: Rows<'_>, first: usize, inputs: Range<usize>, scratch: &mut [f32], panel: &mut [f32]) {
        pack(w, first, inputs, scratch, panel);
    }

    fn sum(x: &[f32], w: &[f32], earlier: &[f32], sums: &mut [f32]) {
        sum(x, w, earlier, sums);
    }

    #[inline(always)]
    fn prefetch(address: *const u8) {
        prefetch_far(address);
    }
}

/// Vectors of weight rows in a tile.
const VECTORS: usize = <Tile as gemm::Tile>::ROWS / LANES;

/// Activations by which [`sum`] asks for more before they are needed.
const X_AHEAD: usize = 1024;

/// See [`gemm::Tile::sum`].
fn sum(x: &[f32], w: &[f32], earlier: &[f32], sums: &mut [f32]) {
    #[target_feature(enable = "avx512f")]
    fn inner(x: &[f32], w: &[f32], earlier: &[f32], sums: &mut [f32]) {
        const T: usize = <Tile as gemm::Tile>::TOKENS;
        const SIZE: usize = T * VECTORS * LANES;
        let steps = x.len() / T;
        assert!(w.len() == steps * VECTORS * LANES && sums.len() == SIZE);
        let mut tile = [[_mm512_setzero_ps(); VECTORS]; T];
        let (mut x, mut w, sums) = (x.as_ptr(), w.as_ptr(), sums.as_mut_ptr());
        // SAFETY: the lengths were just checked: `sums` and each of `earlier` hold T·VECTORS vectors, and each step
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
            // Two steps read one line of the activations.
            for _ in 0..steps / 2 {
                // The next tile's follow, in a level of the cache from which the processor does not read ahead by
                // itself past a page.
                _mm_prefetch::<_MM_HINT_T0>(x.wrapping_add(X_AHEAD).cast());
                step(x, w);
                step(x.add(T), w.add(VECTORS * LANES));
                x = x.add(2 * T);
                w = w.add(2 * VECTORS * LANES);
            }
            if steps % 2 == 1 {
                step(x, w);
            }
            for earlier in earlier.chunks_exact(SIZE) {
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
    // SAFETY: a `Kernel` for AVX-512 exists only where the processor has these features.
    unsafe { inner(x, w, earlier, sums) }
}

/// See [`gemm::pack`]: 16 rows × 16 numbers of 32 bits are transposed in registers.
fn pack(w: Rows<'_>, first: usize, inputs: Range<usize>, scratch: &mut [f32], panel: &mut [f32]) {
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    fn inner(w: Rows<'_>, first: usize, inputs: Range<usize>, scratch: &mut [f32], panel: &mut [f32]) {
        let stride = gemm::panel_stride(inputs.len(), VECTORS * LANES);
        assert!(panel.len() == LANES * stride && scratch.len() >= LANES * gemm::BLOCK);
        // Where the vector of 16 rows goes that `input` and `v` name.
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
                // Values of a panel from one step to the next.
                const STEP: usize = VECTORS * LANES;
                let odd = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
                while done + 2 * LANES <= inputs.end {
                    // SAFETY: each row was just checked to have 32 values from `done` on; `panel` has 16 parts of
                    // `stride` values, each of which holds VECTORS vectors for every 16 inputs.
                    unsafe {
                        let pairs = |row: usize| _mm512_loadu_ps(rows[row].as_ptr().add(2 * done).cast());
                        let pairs = transpose(std::array::from_fn(pairs));
                        let (low, high) = pairs.split_at(LANES / 2);
                        let mut to = panel.as_mut_ptr().add(at(done, v));
                        for (low, high) in low.iter().zip(high) {
                            // The upper half of a float32 is a bfloat16.
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
                    // SAFETY: `scratch` has 16 rows of BLOCK values, of which 16 from each step on are read; for
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
    // SAFETY: a `Kernel` for AVX-512 exists only where the processor has these features.
    unsafe { inner(w, first, inputs, scratch, panel) }
}

/// The columns of 16 rows of 16 values.
#[target_feature(enable = "avx512f")]
pub(super) fn transpose(rows: [__m512; LANES]) -> [__m512; LANES] {
    let zero = _mm512_setzero_ps();
    // Within each 128 bits: columns of four neighbouring rows.
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

/// [`ops::attention::qk`]: 16 keys at a time, whose 16 sums are reduced together.
pub(super) fn qk(query: &[f32], keys: &[f32], stride: usize, out: &mut [f32]) {
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    fn inner(query: &[f32], keys: &[f32], stride: usize, out: &mut [f32]) {
        let width = query.len();
        let (blocks, rest) = out.as_chunks_mut::<LANES>();
        for (block, out) in blocks.iter_mut().enumerate() {
            let keys = &keys[block * LANES * stride..][..(LANES - 1) * stride + width];
            let mut sums = [_mm512_setzero_ps(); LANES];
            for at in (0..width).step_by(LANES) {
                let mask = mask(width - at);
                // SAFETY: the mask keeps each load inside `query` and inside the row of its key, of which the
                // last one ends where `keys` does.
                unsafe {
                    let x = _mm512_maskz_loadu_ps(mask, query.as_ptr().add(at));
                    for key in 0..LANES {
                        let row = keys.as_ptr().add(key * stride + at);
                        sums[key] = _mm512_fmadd_ps(x, _mm512_maskz_loadu_ps(mask, row), sums[key]);
                    }
                }
            }
            // SAFETY: 16 values.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), reduce_16(sums)) };
        }
        let done = blocks.len() * LANES;
        ops::attention::qk(query, &keys[(done * stride).min(keys.len())..], stride, rest);
    }
    // SAFETY: a `Kernel` for AVX-512 exists only where the processor has these features.
    unsafe { inner(query, keys, stride, out) }
}

/// The sums of the lanes of 16 vectors, each in the order of [`ops::matmul::reduce`].
#[target_feature(enable = "avx512f")]
fn reduce_16(v: [__m512; LANES]) -> __m512 {
    // Each step adds the upper half of every sum's lanes to the lower, for two vectors in one.
    let eight: [_; 8] = std::array::from_fn(|i| {
        let (a, b) = (v[2 * i], v[2 * i + 1]);
        _mm512_add_ps(
            _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b),
            _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b),
        )
    });
    let four: [_; 4] = std::array::from_fn(|i| {
        let (a, b) = (eight[2 * i], eight[2 * i + 1]);
        _mm512_add_ps(
            _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b),
            _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b),
        )
    });
    let two: [_; 2] = std::array::from_fn(|i| {
        let (a, b) = (_mm512_castps_pd(four[2 * i]), _mm512_castps_pd(four[2 * i + 1]));
        _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)))
    });
    let (a, b) = (two[0], two[1]);
    let sums =
        _mm512_add_ps(_mm512_shuffle_ps::<0b10_00_10_00>(a, b), _mm512_shuffle_ps::<0b11_01_11_01>(a, b));
    // Lane 4p + i now is the sum of vector 4i + p.
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_permutexvar_ps(order, sums)
}

/// [`ops::attention::mix`], with the sums of up to 128 components in registers.
pub(super) fn mix(weights: &[f32], values: &[f32], stride: usize, out: &mut [f32]) {
    #[target_feature(enable = "avx512f")]
    fn columns<const N: usize>(weights: &[f32], values: &[f32], stride: usize, out: &mut [f32]) {
        let Some(last) = weights.len().checked_sub(1) else { return };
        assert!(out.len() > (N - 1) * LANES && values.len() >= last * stride + out.len().min(N * LANES));
        let mask: [_; N] = std::array::from_fn(|i| mask(out.len() - i * LANES));
        // SAFETY: the masks keep loads and stores inside `out` and inside the row of each value, of which the
        // last one is inside `values`, as was just checked.
        unsafe {
            let mut sums: [_; N] =
                std::array::from_fn(|i| _mm512_maskz_loadu_ps(mask[i], out.as_ptr().add(i * LANES)));
            for (k, weight) in weights.iter().enumerate() {
                let weight = _mm512_set1_ps(*weight);
                for i in 0..N {
                    let value = values.as_ptr().add(k * stride + i * LANES);
                    sums[i] = _mm512_fmadd_ps(weight, _mm512_maskz_loadu_ps(mask[i], value), sums[i]);
                }
            }
            for i in 0..N {
                _mm512_mask_storeu_ps(out.as_mut_ptr().add(i * LANES), mask[i], sums[i]);
            }
        }
    }
    let mut at = 0;
    while at < out.len() {
        let (values, out) = (&values[at.min(values.len())..], &mut out[at..]);
        let vectors = match out.len().div_ceil(LANES) {
            8.. => 8,
            4.. => 4,
            _ => 1,
        };
        let count = out.len().min(vectors * LANES);
        let out = &mut out[..count];
        // SAFETY: a `Kernel` for AVX-512 exists only where the processor has these features.
        unsafe {
            match vectors {
                8 => columns::<8>(weights, values, stride, out),
                4 => columns::<4>(weights, values, stride, out),
                _ => columns::<1>(weights, values, stride, out),
            }
        }
        at += count;
    }
}

/// See [`super::Kernel::widen_f16`].
pub(super) fn widen_f16(values: &[f16], out: &mut [f32]) {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn inner(values: &[f16], out: &mut [f32]) {
        assert_eq!(values.len(), out.len());
        for at in (0..values.len()).step_by(LANES) {
            let mask = mask(values.len() - at);
            // SAFETY: the mask keeps the load inside `values` and the store inside `out`, which is as long.
            unsafe {
                let halves = _mm256_maskz_loadu_epi16(mask, values.as_ptr().add(at).cast());
                _mm512_mask_storeu_ps(out.as_mut_ptr().add(at), mask, _mm512_cvtph_ps(halves));
            }
        }
    }
    // SAFETY: a `Kernel` for AVX-512 exists only where the processor has these features.
    unsafe { inner(values, out) }
}

macro_rules! compiled {
    ($name:ident, $op:path, ($($argument:ident: $type:ty),*)) => {
        #[doc = concat!("[`", stringify!($op), "`], compiled for AVX-512.")]
        pub(super) fn $name($($argument: $type),*) {
            #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
            fn inner($($argument: $type),*) {
                $op($($argument),*);
            }
            // SAFETY: a `Kernel` for AVX-512 exists only where the processor has these features.
            unsafe { inner($($argument),*) }
        }
    };
}

compiled!(dots_of_blocks, portable::dots, (x: Spaced<'_>, w: Rows<'_>, out: &mut [&mut [f32]], scratch: &mut Vec<f32>));
compiled!(q8, portable::q8, (x: &Quantized, w: Rows<'_>, out: &mut [&mut [f32]]));
compiled!(quantize, ops::quantize::quantize, (x: &[f32], group: usize, values: &mut [i8], scales: &mut [f32]));
compiled!(widen_bf16, portable::widen_bf16, (values: &[bf16], out: &mut [f32]));
compiled!(softmax, ops::softmax::softmax, (row: &mut [f32]));
compiled!(silu, ops::swiglu::silu_all, (gate: &[f32], out: &mut [f32]));
compiled!(rms_norm, ops::rms_norm::rms_norm, (x: &[f32], weight: &[f32], eps: f32, precision: Precision, out: &mut [f32]));

/// See [`super::Kernel::read_limit`]: the exclusive or of every whole 256 bytes.
pub(super) fn read<const AHEAD: bool>(bytes: &[u8]) -> u64 {
    #[target_feature(enable = "avx512f")]
    fn inner<const AHEAD: bool>(bytes: &[u8]) -> u64 {
        let mut sums = [_mm512_setzero_si512(); 4];
        for chunk in bytes.as_chunks::<256>().0 {
            for (i, sum) in sums.iter_mut().enumerate() {
                if AHEAD {
                    prefetch(chunk.as_ptr().wrapping_add(64 * i));
                }
                // SAFETY: the chunk has 256 bytes, four vectors of 64.
                let vector = unsafe { _mm512_loadu_si512(chunk.as_ptr().add(64 * i).cast()) };
                *sum = _mm512_xor_si512(*sum, vector);
            }
        }
        let all = _mm512_xor_si512(_mm512_xor_si512(sums[0], sums[1]), _mm512_xor_si512(sums[2], sums[3]));
        _mm512_reduce_add_epi64(all).cast_unsigned()
    }
    // SAFETY: a `Kernel` for AVX-512 exists only where the processor has these features.
    unsafe { inner::<AHEAD>(bytes) }
}

/// See [`super::Kernel::multiply_limit`].
pub(super) fn multiply(rounds: usize, factor: f32) -> f32 {
    #[target_feature(enable = "avx512f")]
    fn inner(rounds: usize, factor: f32) -> f32 {
        let (x, y) = (_mm512_set1_ps(factor), _mm512_set1_ps(1.0 - factor));
        let mut sums = [_mm512_set1_ps(1.0); CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, x, y);
            }
        }
        sums.into_iter().map(|sum| _mm512_cvtss_f32(sum)).sum()
    }
    // SAFETY: a `Kernel` for AVX-512 exists only where the processor has these features.
    unsafe { inner(rounds, factor) }
}
