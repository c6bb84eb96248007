//! The inner loops for AVX2 with FMA and F16C: two vectors hold the 16 partial sums of an output. If the processor also
//! has AVX-VNNI, the int8 products use it.
#![allow(unsafe_code)]

mod attention;
mod dots;
mod exp;
mod floats;
mod int8;
mod products;
mod source;
mod tile;
mod tiles;
mod unpack;

use std::arch::x86_64::*;
use std::ops::Range;

pub(super) use floats::dots_of_floats;
use half::bf16;
pub(super) use int8::{Activations, add_chunk, multiply as multiply_int8, prefetch, q8};
pub(super) use source::{Int8, Padding, Part, Row, Source};
use tile::Tile;
use tiles::TOKENS;
pub(super) use unpack::{Chunk, GROUPS, words};

use super::compiled::{compiled, compiled_methods, row_operations};
use super::gemm::{self, Tile as _};
use super::isa::{Isa, MIN_QUERIES};
use super::limits::CHAINS;
use super::q8::{Quantized, Tiling};
use super::{Aligned, Rows, Spaced, portable, rows};
use llama_trace_core::config::{Pairing, Precision};
use llama_trace_core::error::Result;
use llama_trace_core::ops;
use llama_trace_core::ops::matmul::STRETCH;
use llama_trace_core::stop::Stop;

compiled! {
    "avx2,fma,f16c", "AVX2":
    dots_of_blocks, portable::dots, (x: Spaced<'_>, w: Rows<'_>, out: &mut [&mut [f32]], scratch: &mut Vec<f32>);
    q8_of_odd_groups, portable::q8, (x: &Quantized, w: Rows<'_>, out: &mut [&mut [f32]]);
}

/// AVX2, FMA and F16C: 8 values at once.
pub(super) static AVX2: Avx2 = Avx2 { vnni: false };

/// The same with AVX-VNNI: int8 products have 32 values at once.
pub(super) static VNNI: Avx2 = Avx2 { vnni: true };

#[derive(Debug)]
pub(super) struct Avx2 {
    vnni: bool,
}

impl Isa for Avx2 {
    fn name(&self) -> &'static str {
        if self.vnni { "avxvnni" } else { "avx2" }
    }

    fn dots(
        &self,
        x: Spaced<'_>,
        w: Rows<'_>,
        streams: usize,
        out: &mut [&mut [f32]],
        scratch: &mut Vec<f32>,
    ) {
        if w.plain() {
            dots::dots(x, w, streams, out);
        } else if w.dtype.is_blocks() && w.precision != Precision::Bf16 {
            dots_of_floats(x, w, out);
        } else {
            dots_of_blocks(x, w, out, scratch);
        }
    }

    fn streams(&self) -> &'static [usize] {
        &[1, 4]
    }

    fn gemm(
        &self,
        x: &gemm::Packed,
        w: Rows<'_>,
        out: &mut [&mut [f32]],
        scratch: &mut gemm::Scratch,
        stop: &Stop,
    ) -> Result<()> {
        gemm::gemm::<Tile>(x, w, out, scratch, stop)
    }

    fn tile(&self) -> (usize, usize) {
        (Tile::ROWS, Tile::TOKENS)
    }

    fn q8(&self, x: &Quantized, w: Rows<'_>, out: &mut [&mut [f32]]) {
        if self.vnni { q8::<true>(x, w, out) } else { q8::<false>(x, w, out) }
    }

    fn tiling(&self) -> Option<Tiling> {
        Some(Tiling { widths: &[TOKENS], pairs: !self.vnni, lines: None })
    }

    fn packs_keys(&self, queries: usize, width: usize) -> bool {
        queries >= MIN_QUERIES && width <= STRETCH && width.is_multiple_of(8)
    }

    row_operations!("avx2,fma,f16c");
    compiled_methods! {
        "avx2,fma,f16c":
        qk, attention::qk, (query: &[f32], keys: &[f32], stride: usize, out: &mut [f32]);
        pack_keys, attention::pack_keys, (keys: &[f32], stride: usize, count: usize, width: usize, packed: &mut Vec<Aligned>);
        qk_packed, attention::qk_packed, (queries: &[f32], width: usize, packed: &[Aligned], part: &Range<usize>, out: (&mut [f32], usize));
        mix, attention::mix, (weights: &[f32], of_row: (usize, usize), values: &[f32], stride: usize, width: usize, out: &mut [f32]);
        softmax, exp::softmax, (row: &mut [f32]);
        silu, exp::silu, (gate: &[f32], out: &mut [f32]);
    }

    fn read(&self, bytes: &[u8], _ahead: bool) -> u64 {
        read(bytes)
    }

    fn read_width(&self) -> usize {
        32
    }

    fn multiply(&self, rounds: usize, factor: f32) -> f32 {
        multiply(rounds, factor)
    }

    fn multiply_int8(&self, rounds: usize, factor: i32) -> f32 {
        if self.vnni { multiply_int8::<true>(rounds, factor) } else { multiply_int8::<false>(rounds, factor) }
    }
}

/// Returns the sum of the 16 partial sums, in the order of [`ops::matmul::reduce`]. The first eight are already added
/// to the last eight, lane by lane.
#[target_feature(enable = "avx2")]
#[inline]
fn reduce(eight: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
}

/// Computes [`reduce`] for eight vectors.
#[target_feature(enable = "avx2")]
#[inline]
fn reduce_8(v: [__m256; 8]) -> __m256 {
    // Each step adds the upper half of every sum's lanes to the lower half, for two vectors at once.
    let four: [_; 4] = std::array::from_fn(|i| {
        let (a, b) = (v[i], v[i + 4]);
        _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b))
    });
    let two: [_; 2] = std::array::from_fn(|i| {
        let (a, b) = (_mm256_castps_pd(four[2 * i]), _mm256_castps_pd(four[2 * i + 1]));
        _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)), _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)))
    });
    let [a, b] = two;
    _mm256_add_ps(_mm256_shuffle_ps::<0b10_00_10_00>(a, b), _mm256_shuffle_ps::<0b11_01_11_01>(a, b))
}

/// Transposes eight rows of eight values.
#[target_feature(enable = "avx2")]
#[inline]
fn transpose(rows: [__m256; 8]) -> [__m256; 8] {
    // Each 128-bit part now gets a column of four adjacent rows.
    let zero = _mm256_setzero_ps();
    let mut fours = [zero; 8];
    for i in [0, 4] {
        let pair = |a: __m256, b: __m256| {
            let (low, high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            (_mm256_castps_pd(low), _mm256_castps_pd(high))
        };
        let ((low, high), (low_2, high_2)) = (pair(rows[i], rows[i + 1]), pair(rows[i + 2], rows[i + 3]));
        fours[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(low, low_2));
        fours[i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(low, low_2));
        fours[i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(high, high_2));
        fours[i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(high, high_2));
    }
    let mut columns = [zero; 8];
    for c in 0..4 {
        columns[c] = _mm256_permute2f128_ps::<0x20>(fours[c], fours[4 + c]);
        columns[4 + c] = _mm256_permute2f128_ps::<0x31>(fours[c], fours[4 + c]);
    }
    columns
}

/// See [`super::Kernel::read_limit`]. Returns the exclusive or of all whole 128-byte chunks.
fn read(bytes: &[u8]) -> u64 {
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
    // SAFETY: a `Kernel` for AVX2 exists only if the processor has these features.
    unsafe { inner(bytes) }
}

/// See [`super::Kernel::multiply_limit`]. Uses two vectors of 8 for each 16 values.
fn multiply(rounds: usize, factor: f32) -> f32 {
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
    // SAFETY: a `Kernel` for AVX2 exists only if the processor has these features.
    unsafe { inner(rounds, factor) }
}
