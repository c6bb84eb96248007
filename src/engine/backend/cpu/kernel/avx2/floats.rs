//! Products of few rows of activations with blocks in float32. The blocks are converted to float32 in registers.

use std::arch::x86_64::*;

use super::int8::prefetch;
use super::reduce;
use super::source::{Padding, Row, Source};
use super::unpack::{Chunk, GROUPS, Unpack, VALUES};
use crate::backend::cpu::kernel::rows::with_format;
use crate::backend::cpu::kernel::{Rows, Spaced};
use llama_trace_core::ops::blocks::{Format, GROUP};
use llama_trace_core::ops::matmul::STRETCH;

/// The number of values in a vector.
const WIDTH: usize = 8;

/// See [`super::super::Isa::dots`]. For blocks in float32 precision.
pub(in super::super) fn dots_of_floats(x: Spaced<'_>, w: Rows<'_>, out: &mut [&mut [f32]]) {
    let (mut x, mut out) = (x, out);
    while !out.is_empty() {
        let tokens = 1 << out.len().min(4).ilog2();
        let out_now;
        (out_now, out) = out.split_at_mut(tokens);
        // SAFETY: a `Kernel` for AVX2 or AVX-512 exists only if the processor has these features.
        with_format!(w.dtype, F => unsafe {
            match tokens {
                4 => rows::<F, 4>(x, w, out_now),
                2 => rows::<F, 2>(x, w, out_now),
                _ => rows::<F, 1>(x, w, out_now),
            }
        });
        x = x.skip(tokens);
    }
}

/// Multiplies the first T rows of activations with every row of `w`.
#[target_feature(enable = "avx2,fma,f16c")]
fn rows<F: Unpack, const T: usize>(x: Spaced<'_>, w: Rows<'_>, out: &mut [&mut [f32]]) {
    assert!(x.values.len() >= T * x.stride());
    let mut padding = Padding::new();
    for number in 0..w.count() {
        let row = Row::of(w, number);
        for start in (0..x.width).step_by(STRETCH) {
            let mut sums = [[_mm256_setzero_ps(); 2]; T];
            for chunk in (start..x.width.min(start + STRETCH)).step_by(VALUES) {
                prefetch(row.bytes, chunk / VALUES * Chunk::bytes::<F>(), Chunk::bytes::<F>());
                let mut w = Chunk::zeros();
                // SAFETY: this function has the same features.
                unsafe { F::take(row.part(chunk / VALUES, Chunk::bytes::<F>(), 0, &mut padding), &mut w) };
                add_chunk::<F, T>(x, chunk, &w, &mut sums);
            }
            for (out, [low, high]) in out.iter_mut().zip(sums) {
                let sum = reduce(_mm256_add_ps(low, high));
                out[number] = if start == 0 { sum } else { out[number] + sum };
            }
        }
    }
}

/// Adds the products of a chunk with the activations, from input `first` on, to `sums`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn add_chunk<F: Format, const T: usize>(x: Spaced<'_>, first: usize, w: &Chunk, sums: &mut [[__m256; 2]; T]) {
    let (mut scales, mut minima) = ([[0.0; GROUPS]; 2], [[0.0; GROUPS]; 2]);
    for run in 0..GROUP / F::RUN {
        // SAFETY: every row of `scales` and `minima` has eight values.
        unsafe {
            _mm256_storeu_ps(scales[run].as_mut_ptr(), w.scales[run]);
            if F::MINIMA {
                _mm256_storeu_ps(minima[run].as_mut_ptr(), w.minima[run]);
            }
        }
    }
    for group in 0..GROUPS.min((x.width - first) / GROUP) {
        let mut quants = [0_u8; GROUP];
        // SAFETY: `quants` has 32 bytes.
        unsafe { _mm256_storeu_si256(quants.as_mut_ptr().cast(), w.quants[group]) };
        for (eight, quants) in quants.as_chunks::<WIDTH>().0.iter().enumerate() {
            let run = eight * WIDTH / F::RUN;
            // SAFETY: `quants` has eight bytes.
            let quants = _mm256_cvtepu8_epi32(unsafe { _mm_loadl_epi64(quants.as_ptr().cast()) });
            let quants = _mm256_sub_epi32(quants, _mm256_set1_epi32(i32::from(F::OFFSET)));
            let mut values = _mm256_mul_ps(_mm256_set1_ps(scales[run][group]), _mm256_cvtepi32_ps(quants));
            if F::MINIMA {
                values = _mm256_add_ps(values, _mm256_set1_ps(minima[run][group]));
            }
            for (token, sums) in sums.iter_mut().enumerate() {
                let at = token * x.stride() + first + group * GROUP + eight * WIDTH;
                // SAFETY: the group is inside the row of each of the T tokens in `x`.
                let x = unsafe { _mm256_loadu_ps(x.values.as_ptr().add(at)) };
                sums[eight % 2] = _mm256_fmadd_ps(x, values, sums[eight % 2]);
            }
        }
    }
}
