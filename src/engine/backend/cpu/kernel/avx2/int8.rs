//! Products in int8 for AVX2, 32 values per vector. A few tokens are multiplied with one row of weights at a time,
//! eight groups side by side. With AVX-VNNI, one instruction does the work of three.

use std::arch::x86_64::*;

use super::products::add_products;
use super::source::{Int8, Padding, Row, Source};
use super::unpack::{Chunk, GROUPS, VALUES};
use super::{reduce, tiles};
use crate::backend::cpu::kernel::Rows;
use crate::backend::cpu::kernel::limits::CHAINS;
use crate::backend::cpu::kernel::q8::{Padded, Quantized};
use crate::backend::cpu::kernel::rows::with_format;
use llama_trace_core::ops::blocks::GROUP;
use llama_trace_core::tensor::Dtype;

/// The maximum number of rows of activations that are multiplied at a time. For more rows, tiles are built.
const TOKENS: usize = 3;

/// The prefetch distance for weights, in bytes.
const AHEAD: usize = 6144;

/// See [`super::super::Isa::q8`]. VNNI means that the processor has AVX-VNNI.
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
    // SAFETY: a `Kernel` for AVX2 or more exists only if the processor has these features, and VNNI only with AVX-VNNI.
    unsafe {
        match x.tiles() {
            Some(x_tiles) => tiles::panels::<S, VNNI>(x_tiles, x.inputs / GROUP, w, out),
            None => rows::<S, VNNI>(x, w, out),
        }
    }
}

/// Multiplies a few rows of activations with every row of `w`.
///
/// # Safety
/// The conditions of [`add_products`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows<S: Source, const VNNI: bool>(x: &Quantized, w: Rows<'_>, out: &mut [&mut [f32]]) {
    for (i, out) in out.chunks_mut(TOKENS).enumerate() {
        let first = i * TOKENS;
        // SAFETY: guaranteed by the caller.
        unsafe {
            match out.len() {
                1 => rows_of_tokens::<S, VNNI, 1>(x, first, w, out),
                2 => rows_of_tokens::<S, VNNI, 2>(x, first, w, out),
                _ => rows_of_tokens::<S, VNNI, TOKENS>(x, first, w, out),
            }
        }
    }
}

/// Computes [`rows`] for T tokens, from `first` on. Their sums are in registers.
///
/// # Safety
/// The conditions of [`add_products`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows_of_tokens<S: Source, const VNNI: bool, const T: usize>(
    x: &Quantized,
    first: usize,
    w: Rows<'_>,
    out: &mut [&mut [f32]],
) {
    let chunks = x.inputs.div_ceil(VALUES);
    let tokens: [_; T] = std::array::from_fn(|token| Activations::of(&x.padded, first + token, chunks));
    let mut padding = Padding::new();
    for number in 0..w.count() {
        let row = Row::of(w, number);
        // Each token has two vectors of sums, which the chunks use in turn: first the vector of the next chunk, then
        // that of the chunk after it.
        let mut sums = [[_mm256_setzero_ps(); 2]; T];
        for chunk in 0..chunks {
            prefetch(row.bytes, chunk * S::BYTES, S::BYTES);
            let mut w = Chunk::zeros();
            // SAFETY: this function has the same features.
            unsafe { S::take(row.part(chunk, S::BYTES, S::SCALES, &mut padding), &mut w) };
            for t in 0..T {
                // SAFETY: `x` is alive, and each token has `chunks` chunks. The caller guarantees the rest.
                let sum = unsafe { add_chunk::<S, VNNI>(&tokens[t], chunk, &w, sums[t][0]) };
                sums[t] = [sums[t][1], sum];
            }
        }
        for t in 0..T {
            out[t][number] = reduce(_mm256_add_ps(sums[t][0], sums[t][1]));
        }
    }
}

/// A row of activations. For each chunk: the values in order and crossed, the scales of its groups, and their sums.
pub(in crate::backend::cpu::kernel) struct Activations {
    pub(in crate::backend::cpu::kernel) values: *const [i8; VALUES],
    pub(in crate::backend::cpu::kernel) crossed: *const [i8; VALUES],
    pub(in crate::backend::cpu::kernel) scales: *const [f32; GROUPS],
    pub(in crate::backend::cpu::kernel) half_sums: [*const [i32; GROUPS]; 2],
    pub(in crate::backend::cpu::kernel) sums: *const [f32; GROUPS],
}

impl Activations {
    /// Returns the first `chunks` chunks of row `row`. While `x` is alive, each pointer points at `chunks` chunks.
    pub(in crate::backend::cpu::kernel) fn of(x: &Padded, row: usize, chunks: usize) -> Self {
        let x = x.row(row);
        let values = |values: &[[i8; GROUP]]| values.as_flattened().as_chunks().0[..chunks].as_ptr();
        let half = |half: usize| x.half_sums[half].as_chunks().0[..chunks].as_ptr();
        Self {
            values: values(x.values),
            crossed: values(x.crossed),
            scales: x.scales.as_chunks().0[..chunks].as_ptr(),
            half_sums: [half(0), half(1)],
            sums: x.sums.as_chunks().0[..chunks].as_ptr(),
        }
    }
}

/// Prefetches `bytes` bytes of weights, [`AHEAD`] bytes after position `at` of `row`. They may be in a later row,
/// because the rows of a matrix are contiguous.
#[target_feature(enable = "sse")]
#[inline]
pub(in crate::backend::cpu::kernel) fn prefetch(row: &[u8], at: usize, bytes: usize) {
    for line in (at..at + bytes).step_by(64) {
        // An invalid address is ignored. The target is L2, because L1 has few buffers for lines that come from memory.
        _mm_prefetch::<_MM_HINT_T1>(row.as_ptr().wrapping_add(line + AHEAD).cast());
    }
}

/// See [`super::super::Kernel::multiply_limit`]. Computes two vectors of 32 int8 products in place of 16 float32
/// products.
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
    // SAFETY: a `Kernel` for AVX2 or more exists only if the processor has these features, and VNNI only with AVX-VNNI.
    unsafe { inner::<VNNI>(rounds, factor) as f32 }
}

/// Returns sums + the products of a chunk of weights with chunk number `chunk` of the activations, one group per lane.
///
/// # Safety
/// The activations are alive and have this chunk. If VNNI, the conditions of [`add_products`] hold.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::backend::cpu::kernel) unsafe fn add_chunk<S: Source, const VNNI: bool>(
    x: &Activations,
    chunk: usize,
    w: &Chunk,
    sums: __m256,
) -> __m256 {
    // SAFETY of their uses: the caller guarantees eight values. The loads need no alignment.
    let floats = |values: *const [f32; GROUPS]| unsafe { _mm256_loadu_ps(values.add(chunk).cast()) };
    let whole = |values: *const [i32; GROUPS]| unsafe { _mm256_loadu_si256(values.add(chunk).cast()) };
    let x_scale = floats(x.scales);
    // The instruction adds two products of bytes in 16 bits, which is exact up to 2 · 128 · 127. So q is multiplied as
    // a signed value if it can exceed 127.
    let signed = S::OFFSET == 128 && !VNNI;
    let mut products = [_mm256_setzero_si256(); GROUPS];
    for (group, product) in products.iter_mut().enumerate() {
        let q = w.quants[group];
        // SAFETY: the caller guarantees the values of eight vectors.
        let x = unsafe { _mm256_loadu_si256(x.values.add(chunk).cast::<__m256i>().add(group)) };
        *product = if VNNI {
            // SAFETY: guaranteed by the caller.
            unsafe { add_products(*product, q, x) }
        } else if signed {
            let q = _mm256_xor_si256(q, _mm256_set1_epi8(-128));
            _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(x, q))
        } else {
            _mm256_maddubs_epi16(q, x)
        };
    }
    let mut halves = half_sums::<S, VNNI>(products);
    if S::OFFSET != 0 && !signed {
        for (half, sum) in halves.iter_mut().enumerate() {
            // The shift multiplies by OFFSET, which is a power of two.
            let x_sum = whole(x.half_sums[half]);
            let offset = _mm256_sll_epi32(x_sum, _mm_cvtsi32_si128(S::OFFSET.trailing_zeros() as i32));
            *sum = _mm256_sub_epi32(*sum, offset);
        }
    }
    let float = |whole| _mm256_cvtepi32_ps(whole);
    let mut term;
    if S::SCALES_APART {
        let whole = float(_mm256_add_epi32(halves[0], halves[1]));
        return _mm256_fmadd_ps(whole, _mm256_mul_ps(x_scale, w.scales[0]), sums);
    }
    if S::RUN == GROUP {
        term = _mm256_mul_ps(w.scales[0], float(_mm256_add_epi32(halves[0], halves[1])));
        if S::MINIMA {
            term = _mm256_fmadd_ps(w.minima[0], floats(x.sums), term);
        }
    } else {
        term = _mm256_mul_ps(w.scales[0], float(halves[0]));
        term = _mm256_fmadd_ps(w.scales[1], float(halves[1]), term);
        if S::MINIMA {
            let x_sums = x.half_sums.map(|sums| float(whole(sums)));
            term = _mm256_fmadd_ps(w.minima[0], x_sums[0], term);
            term = _mm256_fmadd_ps(w.minima[1], x_sums[1], term);
        }
    }
    _mm256_fmadd_ps(x_scale, term, sums)
}

/// Returns the sums of the first 16 products of each of eight groups, and of the second 16, one group per lane.
/// `products` has one vector for each group: sums of two adjacent products in 16 bits, or of four in 32 bits if VNNI.
#[target_feature(enable = "avx2")]
#[inline]
fn half_sums<S: Source, const VNNI: bool>(products: [__m256i; GROUPS]) -> [__m256i; 2] {
    let widened = |pairs| _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    // If the sum of two sums in 16 bits also fits into 16 bits, they are added before they are widened.
    let early = 4 * 127 * S::MOST as usize <= i16::MAX as usize;
    let two = |i: usize| {
        let [a, b] = match VNNI || early {
            true => [products[2 * i], products[2 * i + 1]],
            false => [widened(products[2 * i]), widened(products[2 * i + 1])],
        };
        let (low, high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        match early && !VNNI {
            true => widened(_mm256_add_epi16(low, high)),
            false => _mm256_add_epi32(low, high),
        }
    };
    // Each 128-bit part holds one half of the groups: the sums of four groups.
    let four = |a, b| _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    let (low, high) = (four(two(0), two(1)), four(two(2), two(3)));
    [_mm256_permute2x128_si256::<0x20>(low, high), _mm256_permute2x128_si256::<0x31>(low, high)]
}
