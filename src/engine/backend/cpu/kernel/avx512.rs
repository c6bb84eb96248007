//! The inner loops for AVX-512: one vector holds the 16 partial sums of one output.
#![allow(unsafe_code)]

mod attention;
mod dots;
mod exp;
pub(super) mod set;
mod tile;

use std::arch::x86_64::*;

use half::f16;
pub(super) use tile::transpose;

use super::compiled::compiled;
use super::limits::CHAINS;
use super::q8::Quantized;
use super::{Rows, Spaced, portable};
use llama_trace_core::ops::matmul::LANES;

/// The prefetch distance for weights, in bytes.
const AHEAD: usize = 2048;

/// Prefetches the weights [`AHEAD`] bytes after `at`. They may be in a later row, because the rows of a matrix are
/// contiguous. An invalid address is ignored.
#[inline]
#[target_feature(enable = "sse")]
pub(super) fn prefetch(at: *const u8) {
    _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast());
}

/// Prefetches the cache line at `address`, which need not be valid, into L1.
#[inline(always)]
fn prefetch_near(address: *const u8) {
    // SAFETY: every processor with AVX-512 has SSE.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
}

/// Prefetches the cache line at `address`, which need not be valid, into L2. L1 has few buffers for lines that come
/// from memory.
#[inline(always)]
pub(super) fn prefetch_far(address: *const u8) {
    // SAFETY: every processor with AVX-512 has SSE.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) };
}

/// Prefetches the cache line at `address`, which need not be valid, for writing.
#[inline(always)]
pub(super) fn prefetch_to_write(address: *const u8) {
    // SAFETY: the instruction is a hint, and processors that do not know it ignore it.
    unsafe { _mm_prefetch::<_MM_HINT_ET0>(address.cast()) };
}

/// Returns the mask of the lanes in use if `left` values are left.
#[inline]
fn mask(left: usize) -> __mmask16 {
    if left >= LANES { 0xffff } else { (1 << left) - 1 }
}

/// Returns the sum of the lanes, in the order of [`ops::matmul::reduce`].
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
pub(super) fn reduce(sums: __m512) -> f32 {
    let eight = _mm256_add_ps(_mm512_castps512_ps256(sums), _mm512_extractf32x8_ps::<1>(sums));
    let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
}

/// Returns the sum of the lanes of each of 16 vectors, in the order of [`ops::matmul::reduce`].
#[inline]
#[target_feature(enable = "avx512f")]
fn reduce_16(v: [__m512; LANES]) -> __m512 {
    // Each step adds the upper half of every sum's lanes to the lower half, for two vectors at once.
    reduce_8(std::array::from_fn(|i| {
        let (a, b) = (v[2 * i], v[2 * i + 1]);
        _mm512_add_ps(
            _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b),
            _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b),
        )
    }))
}

/// Computes the remaining steps of [`reduce_16`]. Each sum has 8 lanes, and each vector has two sums.
#[inline]
#[target_feature(enable = "avx512f")]
fn reduce_8(eight: [__m512; LANES / 2]) -> __m512 {
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
    // Lane 4p + i is now the sum of vector 4i + p.
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_permutexvar_ps(order, sums)
}

/// See [`super::Isa::widen_f16`].
fn widen_f16(values: &[f16], out: &mut [f32]) {
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
    // SAFETY: a `Kernel` for AVX-512 exists only if the processor has these features.
    unsafe { inner(values, out) }
}

compiled! {
    "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl", "AVX-512":
    dots_of_blocks, portable::dots, (x: Spaced<'_>, w: Rows<'_>, out: &mut [&mut [f32]], scratch: &mut Vec<f32>);
    q8, portable::q8, (x: &Quantized, w: Rows<'_>, out: &mut [&mut [f32]]);
}

/// See [`super::Kernel::read_limit`]. Returns the exclusive or of all whole 256-byte chunks.
fn read<const ASKS: bool>(bytes: &[u8]) -> u64 {
    #[target_feature(enable = "avx512f")]
    fn inner<const ASKS: bool>(bytes: &[u8]) -> u64 {
        let mut sums = [_mm512_setzero_si512(); 4];
        for chunk in bytes.as_chunks::<256>().0 {
            for (i, sum) in sums.iter_mut().enumerate() {
                if ASKS {
                    prefetch_far(chunk.as_ptr().wrapping_add(64 * i + AHEAD));
                }
                // SAFETY: the chunk has 256 bytes, four vectors of 64.
                let vector = unsafe { _mm512_loadu_si512(chunk.as_ptr().add(64 * i).cast()) };
                *sum = _mm512_xor_si512(*sum, vector);
            }
        }
        let all = _mm512_xor_si512(_mm512_xor_si512(sums[0], sums[1]), _mm512_xor_si512(sums[2], sums[3]));
        _mm512_reduce_add_epi64(all).cast_unsigned()
    }
    // SAFETY: a `Kernel` for AVX-512 exists only if the processor has these features.
    unsafe { inner::<ASKS>(bytes) }
}

/// See [`super::Kernel::multiply_limit`].
fn multiply(rounds: usize, factor: f32) -> f32 {
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
    // SAFETY: a `Kernel` for AVX-512 exists only if the processor has these features.
    unsafe { inner(rounds, factor) }
}
