//! The plain loops, compiled for AVX2 with FMA and F16C: two vectors hold the 16 partial sums of an output.
#![allow(unsafe_code)]

mod blocks;
mod unpack;

use std::arch::x86_64::*;
use std::ops::Range;

pub(super) use blocks::blocks;
use half::bf16;

use super::limits::CHAINS;
use super::q8::Quantized;
use super::{Rows, Spaced, gemm, portable};
use crate::config::Precision;
use crate::ops;

macro_rules! compiled {
    ($name:ident, $op:path, ($($argument:ident: $type:ty),*)) => {
        #[doc = concat!("[`", stringify!($op), "`], compiled for AVX2.")]
        pub(super) fn $name($($argument: $type),*) {
            #[target_feature(enable = "avx2,fma,f16c")]
            fn inner($($argument: $type),*) {
                $op($($argument),*);
            }
            // SAFETY: a `Kernel` for AVX2 exists only where the processor has these features.
            unsafe { inner($($argument),*) }
        }
    };
}

compiled!(dots, portable::dots, (x: Spaced<'_>, w: Rows<'_>, out: &mut [&mut [f32]], scratch: &mut Vec<f32>));
compiled!(sum, portable::sum::<16, 6>, (x: &[f32], w: &[f32], earlier: &[f32], sums: &mut [f32]));
compiled!(qk, ops::attention::qk, (query: &[f32], keys: &[f32], stride: usize, out: &mut [f32]));
compiled!(mix, ops::attention::mix, (weights: &[f32], values: &[f32], stride: usize, out: &mut [f32]));
compiled!(q8, portable::q8, (x: &Quantized, w: Rows<'_>, out: &mut [&mut [f32]]));
compiled!(pack, gemm::pack::<16>, (w: Rows<'_>, first: usize, inputs: Range<usize>, scratch: &mut [f32], panel: &mut [f32]));
compiled!(quantize, ops::quantize::quantize, (x: &[f32], group: usize, values: &mut [i8], scales: &mut [f32]));
compiled!(widen_bf16, portable::widen_bf16, (values: &[bf16], out: &mut [f32]));
compiled!(softmax, ops::softmax::softmax, (row: &mut [f32]));
compiled!(silu, ops::swiglu::silu_all, (gate: &[f32], out: &mut [f32]));
compiled!(rms_norm, ops::rms_norm::rms_norm, (x: &[f32], weight: &[f32], eps: f32, precision: Precision, out: &mut [f32]));

/// See [`super::Kernel::read_limit`]: the exclusive or of every whole 128 bytes.
pub(super) fn read(bytes: &[u8]) -> u64 {
    #[target_feature(enable = "avx2")]
    fn inner(bytes: &[u8]) -> u64 {
        let mut sums = [_mm256_setzero_si256(); 4];
        for chunk in bytes.as_chunks::<128>().0 {
            for (i, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the chunk has 128 bytes, four vectors of 32.
                let vector = unsafe { _mm256_loadu_si256(chunk.as_ptr().add(32 * i).cast()) };
                *sum = _mm256_xor_si256(*sum, vector);
            }
        }
        let all = _mm256_xor_si256(_mm256_xor_si256(sums[0], sums[1]), _mm256_xor_si256(sums[2], sums[3]));
        (_mm256_extract_epi64::<0>(all) ^ _mm256_extract_epi64::<3>(all)).cast_unsigned()
    }
    // SAFETY: a `Kernel` for AVX2 exists only where the processor has these features.
    unsafe { inner(bytes) }
}

/// See [`super::Kernel::multiply_limit`]: two vectors of 8 for each 16 values.
pub(super) fn multiply(rounds: usize, factor: f32) -> f32 {
    #[target_feature(enable = "avx2,fma")]
    fn inner(rounds: usize, factor: f32) -> f32 {
        let (x, y) = (_mm256_set1_ps(factor), _mm256_set1_ps(1.0 - factor));
        let mut sums = [_mm256_set1_ps(1.0); CHAINS];
        for _ in 0..2 * rounds {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, x, y);
            }
        }
        sums.into_iter().map(|sum| _mm256_cvtss_f32(sum)).sum()
    }
    // SAFETY: a `Kernel` for AVX2 exists only where the processor has these features.
    unsafe { inner(rounds, factor) }
}

/// 16 weight rows × 6 tokens: 12 of the 16 registers hold sums.
pub(super) struct Tile;

impl gemm::Tile for Tile {
    const ROWS: usize = 16;
    const TOKENS: usize = 6;

    fn pack(w: Rows<'_>, first: usize, inputs: Range<usize>, scratch: &mut [f32], panel: &mut [f32]) {
        pack(w, first, inputs, scratch, panel);
    }

    fn sum(x: &[f32], w: &[f32], earlier: &[f32], sums: &mut [f32]) {
        sum(x, w, earlier, sums);
    }

    #[inline(always)]
    fn prefetch(address: *const u8) {
        // SAFETY: every processor with AVX2 has SSE.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) };
    }
}
