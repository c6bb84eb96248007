//! Products with few rows of activations. Each weight is read once, widened in registers, and multiplied with all
//! tokens in registers. Two vectors hold the 16 partial sums of an output.

use std::arch::x86_64::*;

use super::super::{Rows, Spaced};
use super::{reduce, reduce_8};
use llama_trace_core::ops::matmul::{LANES, STRETCH};
use llama_trace_core::tensor::Dtype;

/// The number of values in a vector.
const WIDTH: usize = LANES / 2;

/// Maximum number of inputs of a short row. For short rows, eight sums are computed at a time and reduced together.
/// Reducing them one by one would take as long as computing them.
const SHORT: usize = 512;

/// The prefetch distance in bytes for weights that are read in address order.
const AHEAD: usize = 8192;

/// See [`super::super::Isa::dots`]. Only for number types whose values need no scale. With one token, up to `streams`
/// rows are read side by side.
pub(in super::super) fn dots(x: Spaced<'_>, w: Rows<'_>, streams: usize, out: &mut [&mut [f32]]) {
    // SAFETY: a `Kernel` for AVX2 exists only if the processor has these features.
    unsafe {
        match w.dtype {
            Dtype::F32 => dots_of::<F32>(x, w, streams, out),
            Dtype::F16 => dots_of::<F16>(x, w, streams, out),
            Dtype::BF16 => dots_of::<Bf16>(x, w, streams, out),
            other => unreachable!("dots_of_blocks computes {other}"),
        }
    }
}

/// A number type that is widened in registers.
trait Load {
    /// The size of a value in bytes.
    const SIZE: usize;

    /// Loads eight values as float32.
    ///
    /// # Safety
    /// `values` points at eight values, and the processor has the features of the kernel.
    unsafe fn load(values: *const u8) -> __m256;
}

macro_rules! load {
    ($name:ident, $size:literal, |$values:ident| $load:expr) => {
        struct $name;

        impl Load for $name {
            const SIZE: usize = $size;

            #[target_feature(enable = "avx2,fma,f16c")]
            #[inline]
            unsafe fn load($values: *const u8) -> __m256 {
                // SAFETY: guaranteed by the caller.
                unsafe { $load }
            }
        }
    };
}

load!(F32, 4, |values| _mm256_loadu_ps(values.cast()));
load!(F16, 2, |values| _mm256_cvtph_ps(_mm_loadu_si128(values.cast())));
load!(Bf16, 2, |values| {
    // A bfloat16 is the upper half of a float32.
    let halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(values.cast()));
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves))
});

#[target_feature(enable = "avx2,fma,f16c")]
fn dots_of<L: Load>(x: Spaced<'_>, w: Rows<'_>, streams: usize, out: &mut [&mut [f32]]) {
    // These numbers of tokens and rows have as many sums as fit into the registers.
    let (mut x, mut out) = (x, out);
    while !out.is_empty() {
        let tokens = 1 << out.len().min(4).ilog2();
        let out_now;
        (out_now, out) = out.split_at_mut(tokens);
        match tokens {
            4 => dots_of_tokens::<L, 4, 1>(x, w, out_now),
            2 => dots_of_tokens::<L, 2, 2>(x, w, out_now),
            _ if w.inputs <= SHORT => dots_of_short::<L>(x, w, out_now[0]),
            _ if streams == 1 => dots_of_tokens::<L, 1, 1>(x, w, out_now),
            _ => dots_of_tokens::<L, 1, 4>(x, w, out_now),
        }
        x = x.skip(tokens);
    }
}

/// Computes [`dots`] of one token with rows of at most [`SHORT`] inputs, eight rows at a time.
#[target_feature(enable = "avx2,fma,f16c")]
fn dots_of_short<L: Load>(x: Spaced<'_>, w: Rows<'_>, out: &mut [f32]) {
    let length = x.width * L::SIZE;
    let (blocks, rest) = out.as_chunks_mut::<WIDTH>();
    let (rows, rows_left) = w.bytes.split_at(blocks.len() * WIDTH * length);
    for (out, rows) in blocks.iter_mut().zip(rows.chunks_exact(WIDTH * length)) {
        let (first, second) = rows.split_at(rows.len() / 2);
        let halves = [stretch::<L, 1, 4>(x, first, 0), stretch::<L, 1, 4>(x, second, 0)];
        let sums = std::array::from_fn(|i| halves[i / 4][i % 4][0]);
        // SAFETY: `out` has eight values.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), reduce_8(sums)) };
    }
    for (out, row) in rest.iter_mut().zip(rows_left.chunks_exact(length)) {
        [[*out]] = products::<L, 1, 1>(x, row);
    }
}

/// Computes [`dots`] of T tokens, R rows at a time.
#[target_feature(enable = "avx2,fma,f16c")]
fn dots_of_tokens<L: Load, const T: usize, const R: usize>(
    x: Spaced<'_>,
    w: Rows<'_>,
    out: &mut [&mut [f32]],
) {
    let length = x.width * L::SIZE;
    let whole = w.count() / R * R;
    for first in (0..whole).step_by(R) {
        let sums = products::<L, T, R>(x, &w.bytes[first * length..(first + R) * length]);
        for (token, out) in out.iter_mut().enumerate() {
            for (out, sums) in out[first..first + R].iter_mut().zip(sums) {
                *out = sums[token];
            }
        }
    }
    for row in whole..w.count() {
        let [sums] = products::<L, T, 1>(x, w.row(row));
        for (out, sum) in out.iter_mut().zip(sums) {
            out[row] = sum;
        }
    }
}

/// Returns the dot products of the first T tokens with `rows`, R consecutive rows of weights.
#[target_feature(enable = "avx2,fma,f16c")]
fn products<L: Load, const T: usize, const R: usize>(x: Spaced<'_>, rows: &[u8]) -> [[f32; T]; R] {
    let mut out = [[0.0; T]; R];
    for start in (0..x.width).step_by(STRETCH) {
        let sums = stretch::<L, T, R>(x, rows, start);
        for (out, sums) in out.as_flattened_mut().iter_mut().zip(sums.as_flattened()) {
            let sum = reduce(*sums);
            *out = if start == 0 { sum } else { *out + sum };
        }
    }
    out
}

/// Computes [`products`] over the stretch that begins at input `start`. Returns the 16 partial sums of each output,
/// with the first eight already added to the last eight.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn stretch<L: Load, const T: usize, const R: usize>(
    x: Spaced<'_>,
    rows: &[u8],
    start: usize,
) -> [[__m256; T]; R] {
    let (x_row, length) = (x.stride(), x.width * L::SIZE);
    assert!(x.values.len() >= T * x_row && rows.len() == R * length && start < x.width);
    let mut sums = [[[_mm256_setzero_ps(); 2]; T]; R];
    // SAFETY of its uses: `w` points at 16 weights in each of R rows, `w_row` bytes apart. `x` points at 16 activations
    // of each of T tokens.
    let step = |sums: &mut [[[__m256; 2]; T]; R], x: *const f32, w: *const u8, w_row: usize| unsafe {
        let mut weights = [[_mm256_setzero_ps(); 2]; R];
        for row in 0..R {
            let w = w.wrapping_add(row * w_row);
            weights[row] = [L::load(w), L::load(w.wrapping_add(WIDTH * L::SIZE))];
        }
        for token in 0..T {
            let x = x.wrapping_add(token * x_row);
            let x = [_mm256_loadu_ps(x), _mm256_loadu_ps(x.wrapping_add(WIDTH))];
            for row in 0..R {
                for half in 0..2 {
                    let sum = &mut sums[row][token][half];
                    *sum = _mm256_fmadd_ps(x[half], weights[row][half], *sum);
                }
            }
        }
    };
    let count = STRETCH.min(x.width - start);
    let (mut x, mut w) = (x.values[start..].as_ptr(), rows[start * L::SIZE..].as_ptr());
    for _ in 0..count / LANES {
        // An invalid address is ignored.
        if (T, R) == (1, 1) {
            _mm_prefetch::<_MM_HINT_T0>(w.wrapping_add(AHEAD).cast());
        } else {
            for row in 0..R {
                // If rows are read side by side, the hardware prefetcher does not read far enough ahead.
                _mm_prefetch::<_MM_HINT_T1>(w.wrapping_add((R + row) * length).cast());
            }
        }
        step(&mut sums, x, w, length);
        (x, w) = (x.wrapping_add(LANES), w.wrapping_add(LANES * L::SIZE));
    }
    let left = count % LANES * L::SIZE;
    if left > 0 {
        // AVX2 has no masked loads of 16-bit values, so the last weights are copied. Rows of activations are already
        // padded with zeros.
        let mut padded = [[0_u8; 4 * LANES]; R];
        for (row, padded) in padded.iter_mut().enumerate() {
            let at = row * length + (start + count) * L::SIZE - left;
            padded[..left].copy_from_slice(&rows[at..at + left]);
        }
        step(&mut sums, x, padded.as_ptr().cast(), 4 * LANES);
    }
    sums.map(|sums| sums.map(|[low, high]| _mm256_add_ps(low, high)))
}
