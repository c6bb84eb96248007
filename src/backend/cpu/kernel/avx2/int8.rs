//! Products in int8 for AVX2: 32 values a vector; a few tokens with a row of weights at a time, eight groups side by side.
//! Where the processor has AVX-VNNI too, one instruction does what takes three without it.

use std::arch::x86_64::*;

use super::products::add_products;
use super::source::{Int8, Row, Source};
use super::unpack::{self, Chunk, GROUPS};
use super::{reduce, tiles};
use crate::backend::cpu::kernel::Rows;
use crate::backend::cpu::kernel::limits::CHAINS;
use crate::backend::cpu::kernel::q8::{Padded, Quantized};
use crate::backend::cpu::kernel::rows::with_format;
use crate::checkpoint::Dtype;
use crate::ops::blocks::GROUP;

/// Bytes by which weights are asked for before they are needed.
const AHEAD: usize = 2048;

/// See [`super::super::Kernel::q8`]; VNNI where the processor has AVX-VNNI.
pub(in crate::backend::cpu::kernel) fn q8<const VNNI: bool>(
    x: &Quantized,
    w: Rows<'_>,
    out: &mut [&mut [f32]],
) {
    if w.dtype != Dtype::I8 {
        with_format!(w.dtype, F => product::<F, VNNI>(x, w, out));
    } else if x.is_regular() && w.scales.is_some_and(|scales| scales.group == GROUP) {
        product::<Int8, VNNI>(x, w, out);
    } else {
        super::q8_of_odd_groups(x, w, out);
    }
}

fn product<S: Source, const VNNI: bool>(x: &Quantized, w: Rows<'_>, out: &mut [&mut [f32]]) {
    // SAFETY: a `Kernel` for AVX2 or more exists only where the processor has these features, and VNNI is its AVX-VNNI.
    unsafe {
        match x.tiles() {
            Some(x_tiles) => tiles::panels::<S, VNNI>(x_tiles, x.inputs / GROUP, w, out),
            None => rows::<S, VNNI>(x, w, out),
        }
    }
}

/// A few rows of activations with every row of `w`.
///
/// # Safety
/// As for [`add_products`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows<S: Source, const VNNI: bool>(x: &Quantized, w: Rows<'_>, out: &mut [&mut [f32]]) {
    let mut sums = vec![[_mm256_setzero_ps(); 2]; out.len()];
    for number in 0..w.count() {
        let row = Row::of(w, number);
        for chunk in 0..x.inputs.div_ceil(unpack::VALUES) {
            prefetch(row.bytes, chunk * S::BYTES, S::BYTES);
            let mut w = Chunk::zeros();
            // SAFETY: the features are those of this function.
            unsafe { S::take(row, chunk, &mut w) };
            for (token, sums) in sums.iter_mut().enumerate() {
                let sum = &mut sums[chunk % 2];
                let group = token * x.padded.groups + chunk * GROUPS;
                // SAFETY: as the caller says.
                *sum = unsafe { add_chunk::<S, VNNI>(&x.padded, group, &w, *sum) };
            }
        }
        for (out, sums) in out.iter_mut().zip(&mut sums) {
            out[number] = reduce(_mm256_add_ps(sums[0], sums[1]));
            *sums = [_mm256_setzero_ps(); 2];
        }
    }
}

/// Asks for what comes [`AHEAD`] after the `bytes` bytes of `row` from `at` on: the rows of a matrix follow one another.
#[target_feature(enable = "sse")]
#[inline]
pub(super) fn prefetch(row: &[u8], at: usize, bytes: usize) {
    for line in (at..at + bytes).step_by(64) {
        // An address that is no memory of ours is ignored.
        _mm_prefetch::<_MM_HINT_T0>(row.as_ptr().wrapping_add(line + AHEAD).cast());
    }
}

/// See [`super::super::Kernel::multiply_limit`]: twice 32 products of int8 values for each 16 values.
pub(in crate::backend::cpu::kernel) fn multiply<const VNNI: bool>(rounds: usize, factor: i32) -> f32 {
    #[target_feature(enable = "avx2")]
    fn inner<const VNNI: bool>(rounds: usize, factor: i32) -> i32 {
        let x = _mm256_set1_epi32(factor);
        let mut sums = [_mm256_setzero_si256(); CHAINS];
        for _ in 0..2 * rounds {
            for sum in &mut sums {
                *sum = match VNNI {
                    // SAFETY: as below.
                    true => unsafe { add_products(*sum, x, x) },
                    false => _mm256_add_epi16(*sum, _mm256_maddubs_epi16(*sum, x)),
                };
            }
        }
        sums.into_iter().fold(0, |all, sum| all ^ _mm256_extract_epi32::<0>(sum))
    }
    // SAFETY: a `Kernel` for AVX2 or more exists only where the processor has these features, and VNNI is its AVX-VNNI.
    unsafe { inner::<VNNI>(rounds, factor) as f32 }
}

/// sums + the products of a chunk with the activations from group number `group` of all on, one group a lane.
///
/// # Safety
/// As for [`add_products`], where VNNI.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn add_chunk<S: Source, const VNNI: bool>(
    x: &Padded,
    group: usize,
    w: &Chunk,
    sums: __m256,
) -> __m256 {
    let values = &x.values[group * GROUP..][..unpack::VALUES];
    let x_scales = &x.scales[group..][..GROUPS];
    let x_sums = [&x.sums[0][group..][..GROUPS], &x.sums[1][group..][..GROUPS]];
    // SAFETY: eight values each; no load needs alignment.
    let (x_scale, x_sums) = unsafe {
        let x_sums = x_sums.map(|sums| _mm256_loadu_si256(sums.as_ptr().cast()));
        (_mm256_loadu_ps(x_scales.as_ptr()), x_sums)
    };
    // Two bytes' products have room in 16 bits up to 2 · 128 · 127: past 127 q is taken with its sign.
    let signed = S::OFFSET == 128 && !VNNI;
    let mut products = [_mm256_setzero_si256(); GROUPS];
    for (group, product) in products.iter_mut().enumerate() {
        let q = w.quants[group];
        // SAFETY: the values are those of eight vectors.
        let x = unsafe { _mm256_loadu_si256(values.as_ptr().add(GROUP * group).cast()) };
        if VNNI {
            // SAFETY: as the caller says.
            *product = unsafe { add_products(*product, q, x) };
            continue;
        }
        let pairs = if signed {
            let q = _mm256_xor_si256(q, _mm256_set1_epi8(-128));
            _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(x, q))
        } else {
            _mm256_maddubs_epi16(q, x)
        };
        *product = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    }
    let four =
        |s: &[__m256i]| _mm256_hadd_epi32(_mm256_hadd_epi32(s[0], s[1]), _mm256_hadd_epi32(s[2], s[3]));
    let (low, high) = (four(&products[..4]), four(&products[4..]));
    // The first 16 values of each of the eight groups, and the second.
    let mut halves =
        [_mm256_permute2x128_si256::<0x20>(low, high), _mm256_permute2x128_si256::<0x31>(low, high)];
    if S::OFFSET != 0 && !signed {
        for (half, sum) in halves.iter_mut().enumerate() {
            // OFFSET is a power of two.
            let offset = _mm256_sll_epi32(x_sums[half], _mm_cvtsi32_si128(S::OFFSET.trailing_zeros() as i32));
            *sum = _mm256_sub_epi32(*sum, offset);
        }
    }
    let float = |whole| _mm256_cvtepi32_ps(whole);
    let mut term;
    if S::SCALES_FIRST {
        let whole = float(_mm256_add_epi32(halves[0], halves[1]));
        return _mm256_fmadd_ps(whole, _mm256_mul_ps(x_scale, w.scales[0]), sums);
    }
    if S::RUN == GROUP {
        term = _mm256_mul_ps(w.scales[0], float(_mm256_add_epi32(halves[0], halves[1])));
        if S::MINIMA {
            let sum = _mm256_add_epi32(x_sums[0], x_sums[1]);
            term = _mm256_fmadd_ps(w.minima[0], float(sum), term);
        }
    } else {
        term = _mm256_mul_ps(w.scales[0], float(halves[0]));
        term = _mm256_fmadd_ps(w.scales[1], float(halves[1]), term);
        if S::MINIMA {
            term = _mm256_fmadd_ps(w.minima[0], float(x_sums[0]), term);
            term = _mm256_fmadd_ps(w.minima[1], float(x_sums[1]), term);
        }
    }
    _mm256_fmadd_ps(x_scale, term, sums)
}
