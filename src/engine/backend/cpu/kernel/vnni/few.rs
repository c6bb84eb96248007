//! Products of a few tokens with blocks or int8 values for AVX-512 VNNI: one row of weights at a time, 16 groups side
//! by side. The rest of a row uses the loops of AVX2, eight groups at a time.

use std::arch::x86_64::*;

use super::unpack::{Chunk, Unpack, VALUES};
use crate::backend::cpu::kernel::avx2::{self, Activations, Int8, Padding, Part, Row, Source};
use crate::backend::cpu::kernel::q8::{CHUNK_GROUPS, Quantized};
use crate::backend::cpu::kernel::{Rows, avx512};
use llama_trace_core::ops::blocks::GROUP;
use llama_trace_core::ops::matmul::LANES;

/// The maximum number of rows of activations that are multiplied at a time. For more rows, tiles are built.
const TOKENS: usize = 3;

/// The number of AVX2 chunks in an AVX-512 chunk.
const HALVES: usize = CHUNK_GROUPS / avx2::GROUPS;

/// Weights that are multiplied in int8, 16 groups at a time.
pub(super) trait Wide: Source {
    /// See [`Unpack::CROSSED`].
    const CROSSED: bool;

    /// Unpacks the result of [`Row::part`] for 16 groups.
    ///
    /// # Safety
    /// The processor has the features of the kernel.
    unsafe fn take_wide(part: Part<'_>, chunk: &mut Chunk);
}

impl<F: Unpack + Source> Wide for F {
    const CROSSED: bool = <F as Unpack>::CROSSED;

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    #[inline]
    unsafe fn take_wide(part: Part<'_>, chunk: &mut Chunk) {
        chunk.take::<F>(part.bytes);
    }
}

impl Wide for Int8 {
    const CROSSED: bool = false;

    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn take_wide(part: Part<'_>, chunk: &mut Chunk) {
        let (values, scales) = (&part.bytes[..VALUES], &part.scales[..CHUNK_GROUPS]);
        for (values, quants) in values.as_chunks::<64>().0.iter().zip(&mut chunk.quants) {
            // SAFETY: `values` has 64 bytes.
            let values = unsafe { _mm512_loadu_si512(values.as_ptr().cast()) };
            *quants = _mm512_xor_si512(values, _mm512_set1_epi8(-128));
        }
        // SAFETY: `scales` has 16 values.
        chunk.scales[0] = unsafe { _mm512_loadu_ps(scales.as_ptr().cast()) };
    }
}

/// Multiplies every row of activations with every row of `w`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn rows<S: Wide>(x: &Quantized, w: Rows<'_>, out: &mut [&mut [f32]]) {
    for (i, out) in out.chunks_mut(TOKENS).enumerate() {
        let first = i * TOKENS;
        match out.len() {
            1 => rows_of_tokens::<S, 1>(x, first, w, out),
            2 => rows_of_tokens::<S, 2>(x, first, w, out),
            _ => rows_of_tokens::<S, TOKENS>(x, first, w, out),
        }
    }
}

/// Computes [`rows`] for T tokens, from `first` on. Their sums are in registers.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn rows_of_tokens<S: Wide, const T: usize>(x: &Quantized, first: usize, w: Rows<'_>, out: &mut [&mut [f32]]) {
    let groups = x.inputs / GROUP;
    let (whole, halves) = (groups / CHUNK_GROUPS, groups.div_ceil(avx2::GROUPS));
    let tokens: [_; T] = std::array::from_fn(|token| Activations::of(&x.padded, first + token, halves));
    let mut padding = Padding::new();
    for number in 0..w.count() {
        let row = Row::of(w, number);
        let mut sums = [_mm512_setzero_ps(); T];
        for chunk in 0..whole {
            avx2::prefetch(row.bytes, chunk * HALVES * S::BYTES, HALVES * S::BYTES);
            let mut w = Chunk::zeros();
            let part = row.part(chunk, HALVES * S::BYTES, HALVES * S::SCALES, &mut padding);
            // SAFETY: this function has the same features.
            unsafe { S::take_wide(part, &mut w) };
            for t in 0..T {
                // SAFETY: `x` is alive, and each token has this chunk.
                sums[t] = unsafe { add_chunk::<S>(&tokens[t], chunk, &w, sums[t]) };
            }
        }
        for half in whole * HALVES..halves {
            avx2::prefetch(row.bytes, half * S::BYTES, S::BYTES);
            let mut w = avx2::Chunk::zeros();
            // SAFETY: this function has the required features, and more.
            unsafe { S::take(row.part(half, S::BYTES, S::SCALES, &mut padding), &mut w) };
            for t in 0..T {
                let [low, high] = [_mm512_castps512_ps256(sums[t]), _mm512_extractf32x8_ps::<1>(sums[t])];
                // SAFETY: `x` is alive, and each token has this chunk.
                let add = |sums| unsafe { avx2::add_chunk::<S, false>(&tokens[t], half, &w, sums) };
                let [low, high] = match half % HALVES {
                    0 => [add(low), high],
                    _ => [low, add(high)],
                };
                sums[t] = _mm512_insertf32x8::<1>(_mm512_castps256_ps512(low), high);
            }
        }
        for t in 0..T {
            out[t][number] = avx512::reduce(sums[t]);
        }
    }
}

/// Returns sums + the products of a chunk of weights with chunk number `chunk` of the activations, one group per lane.
///
/// # Safety
/// The activations are alive and have this chunk.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
unsafe fn add_chunk<S: Wide>(x: &Activations, chunk: usize, w: &Chunk, sums: __m512) -> __m512 {
    let at = HALVES * chunk;
    // SAFETY of the two closures below: the caller guarantees 16 values at `at`. The loads need no alignment.
    let floats = |values: *const [f32; avx2::GROUPS]| unsafe { _mm512_loadu_ps(values.add(at).cast()) };
    let whole = |values: *const [i32; avx2::GROUPS]| unsafe { _mm512_loadu_si512(values.add(at).cast()) };
    let x_scale = floats(x.scales);
    let values = if S::CROSSED { x.crossed } else { x.values };
    let mut products = [_mm512_setzero_si512(); 8];
    for (i, product) in products.iter_mut().enumerate() {
        // SAFETY: the caller guarantees the values of eight vectors.
        let x = unsafe { _mm512_loadu_si512(values.add(at).cast::<__m512i>().add(i)) };
        *product = _mm512_dpbusd_epi32(*product, w.quants[i], x);
    }
    // Multiplies by OFFSET, which is a power of two or 0.
    let offset = |sum| match S::OFFSET {
        0 => _mm512_setzero_si512(),
        offset => _mm512_sll_epi32(sum, _mm_cvtsi32_si128(offset.trailing_zeros() as i32)),
    };
    let float = |sum, offset| _mm512_cvtepi32_ps(_mm512_sub_epi32(sum, offset));
    let of_x = x.half_sums;
    let [even, odd] = half_sums::<S>(products);
    let order = group_order::<S>();
    let mut term;
    if S::RUN == GROUP {
        let sum = _mm512_permutexvar_epi32(order, _mm512_add_epi32(even, odd));
        let sum = float(sum, offset(_mm512_add_epi32(whole(of_x[0]), whole(of_x[1]))));
        if S::SCALES_APART {
            return _mm512_fmadd_ps(sum, _mm512_mul_ps(x_scale, w.scales[0]), sums);
        }
        term = _mm512_mul_ps(w.scales[0], sum);
        if S::MINIMA {
            term = _mm512_fmadd_ps(w.minima[0], floats(x.sums), term);
        }
    } else {
        let [first, second] = [even, odd].map(|sums| _mm512_permutexvar_epi32(order, sums));
        term = _mm512_mul_ps(w.scales[0], float(first, offset(whole(of_x[0]))));
        term = _mm512_fmadd_ps(w.scales[1], float(second, offset(whole(of_x[1]))), term);
        if S::MINIMA {
            for half in 0..2 {
                term = _mm512_fmadd_ps(w.minima[half], _mm512_cvtepi32_ps(whole(of_x[half])), term);
            }
        }
    }
    _mm512_fmadd_ps(x_scale, term, sums)
}

/// Returns the permutation from the order of [`half_sums`] to the order of the groups.
#[target_feature(enable = "avx512f")]
#[inline]
fn group_order<S: Wide>() -> __m512i {
    match S::CROSSED {
        false => _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15),
        true => _mm512_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15),
    }
}

/// Returns the sums of the first halves of 16 groups, and of the second halves. In the results, the groups of the
/// vectors `v` have the order 0 2 4 6, 1 3 5 7, 8 10 12 14, 9 11 13 15. Each vector of `v` holds two groups, with eight
/// sums of four products each.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn half_sums<S: Wide>(v: [__m512i; LANES / 2]) -> [__m512i; 2] {
    // Whether sums of this many products fit into 16 bits. If they do, adding neighbours takes one shuffle instead of
    // two.
    let short = |products: usize| products * 127 * usize::from(S::MOST) <= i16::MAX as usize;
    let packed = |a, b| _mm512_madd_epi16(_mm512_packs_epi32(a, b), _mm512_set1_epi16(1));
    let neighbours = |a, b| match short(4) {
        true => packed(a, b),
        false => _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b)),
    };
    // Each 128-bit part of the result holds the sums of the same part of four vectors.
    let four = |v: &[__m512i]| {
        let (a, b) = (neighbours(v[0], v[1]), neighbours(v[2], v[3]));
        if short(8) {
            return packed(a, b);
        }
        let (low, high) = match short(4) {
            true => {
                let (a, b) = (_mm512_castsi512_ps(a), _mm512_castsi512_ps(b));
                let even = _mm512_shuffle_ps::<0b10_00_10_00>(a, b);
                (_mm512_castps_si512(even), _mm512_castps_si512(_mm512_shuffle_ps::<0b11_01_11_01>(a, b)))
            }
            false => (_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b)),
        };
        _mm512_add_epi32(low, high)
    };
    let (low, high) = (four(&v[..4]), four(&v[4..]));
    [_mm512_shuffle_i32x4::<0b10_00_10_00>(low, high), _mm512_shuffle_i32x4::<0b11_01_11_01>(low, high)]
}
