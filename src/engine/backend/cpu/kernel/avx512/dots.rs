//! Products with few rows of activations. Each weight is read once, widened in registers, and multiplied with all
//! tokens in registers.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::super::{Rows, Spaced};
use super::{mask, prefetch, prefetch_far, prefetch_near, reduce, reduce_16};
use llama_trace_core::ops::matmul::{LANES, STRETCH};
use llama_trace_core::tensor::Dtype;

/// Maximum number of inputs of a short row. For short rows, 16 sums are computed at a time and reduced together.
/// Reducing them one by one would take as long as computing them.
const SHORT: usize = 512;

/// The prefetch distance in bytes for weights that are read in address order.
const AHEAD: usize = 8192;

/// See [`super::super::Isa::dots`]. Only for number types whose values need no scale. With one token, up to `streams`
/// rows are read side by side.
pub(in super::super) fn dots(x: Spaced<'_>, w: Rows<'_>, streams: usize, out: &mut [&mut [f32]]) {
    // The numbers of tokens and rows are chosen so that the sums fill the registers. Each row of weights is widened
    // only once for all these tokens.
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
            (_, _) => match streams {
                1 => dots_of_tokens::<1, 1>(x, w, out_now),
                ..8 => dots_of_tokens::<1, 4>(x, w, out_now),
                _ => dots_of_tokens::<1, 8>(x, w, out_now),
            },
        }
        x = x.skip(tokens);
    }
}

/// Computes [`dots`] of one token with rows of at most [`SHORT`] inputs, 16 rows at a time.
fn dots_of_short(x: Spaced<'_>, w: Rows<'_>, out: &mut [&mut [f32]]) {
    let Some((first, out)) = x.rows().next().zip(out.first_mut()) else { return };
    let length = w.bytes.len() / out.len();
    let (blocks, rest) = out.as_chunks_mut::<LANES>();
    let (rows, rows_left) = w.bytes.split_at(blocks.len() * LANES * length);
    for (out, rows) in blocks.iter_mut().zip(rows.chunks_exact(LANES * length)) {
        // SAFETY: a `Kernel` for AVX-512 exists only if the processor has these features.
        *out = unsafe {
            match w.dtype {
                Dtype::F32 => short_f32(first, rows),
                Dtype::F16 => short_f16(first, rows),
                Dtype::BF16 => short_bf16(first, rows),
                other => unreachable!("dots_of_blocks computes {other}"),
            }
        };
    }
    for (out, row) in rest.iter_mut().zip(rows_left.chunks_exact(length)) {
        [[*out]] = products::<1, 1>(x, w, row);
    }
}

/// Computes [`dots`] of T tokens, R rows at a time.
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

/// Returns the dot products of the first T tokens with `rows`, which are R rows of `w`.
fn products<const T: usize, const R: usize>(x: Spaced<'_>, w: Rows<'_>, rows: &[u8]) -> [[f32; T]; R] {
    // SAFETY: a `Kernel` for AVX-512 exists only if the processor has these features.
    unsafe {
        match w.dtype {
            Dtype::F32 => dots_f32(x, rows),
            Dtype::F16 => dots_f16(x, rows),
            Dtype::BF16 => dots_bf16(x, rows),
            other => unreachable!("dots_of_blocks computes {other}"),
        }
    }
}

macro_rules! dots_of {
    ($name:ident, $short:ident, $size:literal, |$pointer:ident, $mask:ident| $load:expr, $line:expr) => {
        /// Returns the dot products of the first T rows of activations with R rows of weights of the same length.
        #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
        fn $name<const T: usize, const R: usize>(x: Spaced<'_>, rows: &[u8]) -> [[f32; T]; R] {
            /// The number of weights in a cache line.
            const LINE: usize = 64 / $size;
            let (inputs, x_row, length) = (x.width, x.stride(), x.width * $size);
            assert!(x.values.len() >= T * x_row && rows.len() == R * length);
            let step = |mut sums: [[__m512; T]; R], x: *const f32, w: *const u8, lanes: u64| {
                // SAFETY: masked loads access only lanes below the end of a row. `x` points into the first of T
                // consecutive rows, and `w` into the first of R. The assertion checks that all these rows are there.
                unsafe {
                    let mut weights = [[_mm512_setzero_ps(); LINE / LANES]; R];
                    for row in 0..R {
                        let $pointer = w.add(row * length);
                        if lanes == u64::MAX {
                            weights[row] = $line;
                            continue;
                        }
                        for part in 0..LINE / LANES {
                            let $pointer = $pointer.wrapping_add(part * LANES * $size);
                            let $mask = (lanes >> (part * LANES)) as __mmask16;
                            weights[row][part] = $load;
                        }
                    }
                    for token in 0..T {
                        for part in 0..LINE / LANES {
                            let x = x.wrapping_add(token * x_row + part * LANES);
                            let x = _mm512_maskz_loadu_ps((lanes >> (part * LANES)) as __mmask16, x);
                            for row in 0..R {
                                sums[row][token] = _mm512_fmadd_ps(x, weights[row][part], sums[row][token]);
                            }
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
                // If rows are read side by side, the hardware prefetcher does not read far enough ahead. So the next
                // rows are prefetched, in address order.
                let mut ahead = rows.as_ptr().wrapping_add(rows.len() + R * start * $size);
                for _ in 0..count / LINE {
                    if (T, R) == (1, 1) {
                        prefetch_near(w.wrapping_add(AHEAD));
                    } else {
                        for _ in 0..R {
                            // Four rows side by side is the setting for Cascade Lake. There, it was measured with
                            // prefetches into L1.
                            let ask = if (T, R) == (1, 4) { prefetch_near } else { prefetch_far };
                            ask(ahead);
                            ahead = ahead.wrapping_add(64);
                        }
                    }
                    sums = step(sums, x, w, u64::MAX);
                    (x, w) = (x.wrapping_add(LINE), w.wrapping_add(64));
                }
                if count % LINE > 0 {
                    sums = step(sums, x, w, (1 << (count % LINE)) - 1);
                }
                for (out, sums) in out.as_flattened_mut().iter_mut().zip(sums.as_flattened()) {
                    let sum = reduce(*sums);
                    *out = if start == 0 { sum } else { *out + sum };
                }
            }
            out
        }

        /// Returns the dot products of at most one stretch of activations with 16 consecutive rows of weights of the
        /// same length. The 16 sums are reduced together.
        #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
        fn $short(x: &[f32], rows: &[u8]) -> [f32; LANES] {
            let inputs = x.len();
            assert!((1..=STRETCH).contains(&inputs) && rows.len() == LANES * inputs * $size);
            let mut sums = [_mm512_setzero_ps(); LANES];
            for (sum, row) in sums.iter_mut().zip(rows.chunks_exact(inputs * $size)) {
                let mut step = |at: usize, $mask: __mmask16| {
                    // SAFETY: masked loads access only lanes below `inputs - at`; `x` and `row` have `inputs` values.
                    unsafe {
                        let $pointer = row.as_ptr().add(at * $size);
                        // Prefetches once per cache line.
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
            // SAFETY: `out` has 16 values.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), reduce_16(sums)) };
            out
        }
    };
}

dots_of!(
    dots_f32,
    short_f32,
    4,
    |pointer, mask| _mm512_maskz_loadu_ps(mask, pointer.cast()),
    [_mm512_loadu_ps(pointer.cast())]
);
dots_of!(
    dots_f16,
    short_f16,
    2,
    |pointer, mask| _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, pointer.cast())),
    [pointer, pointer.add(32)].map(|half| _mm512_cvtph_ps(_mm256_loadu_si256(half.cast())))
);
dots_of!(
    dots_bf16,
    short_bf16,
    2,
    |pointer, mask| {
        // A bfloat16 is the upper half of a float32.
        let halves = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, pointer.cast()));
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves))
    },
    [widen_bf16::<0>(pointer), widen_bf16::<1>(pointer)]
);

/// For each half of a line of 32 values: position i receives value i / 2 of that half.
const PLACES: [[i16; 2 * LANES]; 2] = {
    let mut places = [[0; 2 * LANES]; 2];
    let mut i = 0;
    while i < 2 * LANES {
        places[0][i] = (i / 2) as i16;
        places[1][i] = (LANES + i / 2) as i16;
        i += 1;
    }
    places
};

/// Widens half HALF of a line of bfloat16 values. Each value becomes the upper half of its float32.
///
/// # Safety
/// `line` points at 32 values.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn widen_bf16<const HALF: usize>(line: *const u8) -> __m512 {
    const UPPER: __mmask32 = 0xaaaa_aaaa;
    let upper: __m512;
    // One instruction loads the values, moves them and sets the zeros. With fewer instructions that wait for memory,
    // the processor reads further ahead. The intrinsic compiles to three instructions.
    // SAFETY: reads the 64 bytes at `line`, and the 32 values of `PLACES[HALF]`.
    unsafe {
        std::arch::asm!(
            "vpermw {upper}{{{mask}}}{{z}}, {places}, [{line}]",
            upper = out(zmm_reg) upper,
            mask = in(kreg) UPPER,
            places = in(zmm_reg) _mm512_loadu_si512(PLACES[HALF].as_ptr().cast()),
            line = in(reg) line,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    upper
}
