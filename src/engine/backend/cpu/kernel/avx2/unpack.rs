//! Unpacks blocks in AVX2 vectors: eight groups at a time, which are eight small blocks or one large block. The types
//! of [`llama_trace_core::ops::blocks`] document the layouts.

use std::arch::x86_64::*;

use crate::backend::cpu::kernel::blocks::numbers;
use llama_trace_core::ops::blocks::{
    Format, GROUP, Iq4Nl, Iq4Xs, Mxfp4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0, six_bits,
};

/// The number of groups in a chunk. A vector has one sum for each of them.
pub(in crate::backend::cpu::kernel) const GROUPS: usize = 8;

/// The number of values in a chunk.
pub(super) const VALUES: usize = GROUPS * GROUP;

/// Eight groups of a row.
pub(in crate::backend::cpu::kernel) struct Chunk {
    /// For each group, its 32 q, before the offset is subtracted.
    pub(super) quants: [__m256i; GROUPS],
    /// The scales of the first run of each group, and those of the second run if a run is half a group.
    pub(super) scales: [__m256; 2],
    /// The minima of the same runs, if the format has them.
    pub(super) minima: [__m256; 2],
}

impl Chunk {
    /// The size of a chunk in bytes.
    pub(super) const fn bytes<F: Format>() -> usize {
        VALUES / F::VALUES * F::BYTES
    }

    /// Returns a chunk of zeros.
    #[target_feature(enable = "avx2")]
    #[inline]
    pub(in crate::backend::cpu::kernel) fn zeros() -> Self {
        let none = [_mm256_setzero_ps(); 2];
        Self { quants: [_mm256_setzero_si256(); GROUPS], scales: none, minima: none }
    }

    /// Unpacks the blocks of eight groups into this chunk.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub(super) fn take<F: Unpack>(&mut self, blocks: &[u8]) {
        let blocks = blocks[..Self::bytes::<F>()].as_ptr();
        // SAFETY: the slice has the bytes of a chunk.
        [self.scales, self.minima] = unsafe { F::numbers(blocks) };
        for (i, quants) in self.quants.iter_mut().enumerate() {
            let part = i % (F::VALUES / GROUP);
            // SAFETY: as above.
            *quants = unsafe { F::part(blocks.add(i * GROUP / F::VALUES * F::BYTES), part) };
        }
        if let Some(table) = F::TABLE {
            // SAFETY: the table has 16 bytes.
            let table = unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())) };
            for quants in &mut self.quants {
                *quants = _mm256_shuffle_epi8(table, *quants);
            }
        }
    }
}

/// A format whose blocks AVX2 unpacks.
pub(in crate::backend::cpu::kernel) trait Unpack: Format + Sized {
    /// Returns [`Format::codes`] of group number `part` of a block.
    ///
    /// # Safety
    /// `block` points at the block, and the processor has the features of the kernel.
    unsafe fn part(block: *const u8, part: usize) -> __m256i;

    /// Returns the scales of the runs of eight groups, and their minima, in the layout of [`Chunk`].
    ///
    /// # Safety
    /// `blocks` points at the blocks of eight groups, and the processor has the features of the kernel.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn numbers(blocks: *const u8) -> [[__m256; 2]; 2] {
        if Self::HALVES {
            // SAFETY: a block begins with a float16 value, and with a second one if the format has minima.
            let half = |at: usize| unsafe { halves(blocks.add(at), Self::BYTES) };
            let none = _mm256_setzero_ps();
            return [[half(0), none], [if Self::MINIMA { half(2) } else { none }, none]];
        }
        // SAFETY: the caller guarantees this many blocks.
        let blocks = unsafe { std::slice::from_raw_parts(blocks, Chunk::bytes::<Self>()) };
        // SAFETY: `numbers` has 16 values, two vectors of eight.
        numbers::<Self, { 2 * GROUPS }>(blocks).map(|numbers| unsafe {
            let both = [_mm256_loadu_ps(numbers.as_ptr()), _mm256_loadu_ps(numbers.as_ptr().add(8))];
            if Self::RUN == GROUP { both } else { first_and_second(both) }
        })
    }
}

/// Returns eight float16 values as float32. The first is at `first`. Each further value is `stride` bytes after the
/// previous one.
///
/// # Safety
/// The conditions of [`words`].
#[target_feature(enable = "avx2,f16c")]
#[inline]
unsafe fn halves(first: *const u8, stride: usize) -> __m256 {
    // SAFETY: guaranteed by the caller.
    let words = unsafe { words(first, stride) };
    let (low, high) = (_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
    _mm256_cvtph_ps(_mm_packus_epi32(low, high))
}

/// Returns eight pairs of bytes, one pair per lane. The first is at `first`. Each further pair is `stride` bytes after
/// the previous one. Each pair is loaded as part of a vector that has it in the right lane, because loading it alone
/// would take a shuffle.
///
/// # Safety
/// There are eight pieces of `stride` ≥ 18 bytes, one after the other. The first piece begins at most four bytes before
/// `first`.
#[target_feature(enable = "avx2")]
#[inline]
pub(in crate::backend::cpu::kernel) unsafe fn words(first: *const u8, stride: usize) -> __m256i {
    // SAFETY: lane i of vector i is i strides after `first`. The vector that ends last ends 4 bytes after the eighth
    // stride's start.
    let at = |i: usize| unsafe { _mm256_loadu_si256(first.add(i * (stride - 4)).cast()) };
    let mut words = at(0);
    words = _mm256_blend_epi32::<0b0000_0010>(words, at(1));
    words = _mm256_blend_epi32::<0b0000_0100>(words, at(2));
    words = _mm256_blend_epi32::<0b0000_1000>(words, at(3));
    words = _mm256_blend_epi32::<0b0001_0000>(words, at(4));
    words = _mm256_blend_epi32::<0b0010_0000>(words, at(5));
    words = _mm256_blend_epi32::<0b0100_0000>(words, at(6));
    words = _mm256_blend_epi32::<0b1000_0000>(words, at(7));
    _mm256_and_si256(words, _mm256_set1_epi32(0xffff))
}

/// Returns the float16 value in the first two bytes as float32, in every lane.
///
/// # Safety
/// `bytes` points at two bytes.
#[target_feature(enable = "avx2,f16c")]
#[inline]
unsafe fn half(bytes: *const u8) -> __m256 {
    // SAFETY: guaranteed by the caller.
    _mm256_cvtph_ps(_mm_set1_epi16(unsafe { bytes.cast::<i16>().read_unaligned() }))
}

/// Separates the 16 numbers of eight groups with two runs each: those of the first run of each group, and those of the
/// second.
#[target_feature(enable = "avx2")]
#[inline]
fn first_and_second([low, high]: [__m256; 2]) -> [__m256; 2] {
    let order =
        |numbers: __m256| _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(_mm256_castps_pd(numbers)));
    // Within each 128-bit part, the shuffle returns first the numbers of `low`, then those of `high`. `order` sorts the
    // parts.
    [
        order(_mm256_shuffle_ps::<0b10_00_10_00>(low, high)),
        order(_mm256_shuffle_ps::<0b11_01_11_01>(low, high)),
    ]
}

/// Returns the low four bits of 16 bytes, and then the high four bits of the same bytes.
///
/// # Safety
/// `bytes` points at 16 bytes.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn nibbles(bytes: *const u8) -> __m256i {
    // SAFETY: guaranteed by the caller.
    let twice = unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(bytes.cast())) };
    let shifted = _mm256_srlv_epi64(twice, _mm256_setr_epi64x(0, 0, 4, 4));
    _mm256_and_si256(shifted, _mm256_set1_epi8(15))
}

/// Returns `codes` with a fifth bit. The fifth bit of value j is bit j of the u32 at `fifths`.
///
/// # Safety
/// `fifths` points at four bytes.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn with_fifths(codes: __m256i, fifths: *const u8) -> __m256i {
    // SAFETY: guaranteed by the caller.
    let all = _mm256_set1_epi32(unsafe { fifths.cast::<i32>().read_unaligned() });
    // Repeats each byte for its eight values. Then selects the bit of each value.
    let order = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
    let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
    let bits = _mm256_and_si256(_mm256_shuffle_epi8(all, order), bit);
    let fifth = _mm256_and_si256(_mm256_cmpeq_epi8(bits, bit), _mm256_set1_epi8(16));
    _mm256_or_si256(codes, fifth)
}

/// Shifts bit `from` of each of 32 bytes to bit `to`, and clears the bits outside `mask`.
///
/// # Safety
/// `bytes` points at 32 bytes.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn bits(bytes: *const u8, from: usize, to: usize, mask: i8) -> __m256i {
    // SAFETY: guaranteed by the caller.
    let bytes = unsafe { _mm256_loadu_si256(bytes.cast()) };
    // One of the two counts is 0. The mask clears bits that come from a neighbouring byte.
    let right = _mm256_srl_epi64(bytes, _mm_cvtsi64_si128(from.saturating_sub(to) as i64));
    let moved = _mm256_sll_epi64(right, _mm_cvtsi64_si128(to.saturating_sub(from) as i64));
    _mm256_and_si256(moved, _mm256_set1_epi8(mask))
}

/// Returns [`Unpack::numbers`] of a block of `Q4_K` or `Q5_K`.
///
/// # Safety
/// `block` points at one block.
#[target_feature(enable = "avx2,f16c")]
#[inline]
unsafe fn six_bit_numbers(block: *const u8) -> [[__m256; 2]; 2] {
    let none = _mm256_setzero_ps();
    let float = |bytes: u64| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes.cast_signed())));
    // SAFETY: a block begins with two float16 values and twelve bytes.
    let (d, e, (s, m)) =
        unsafe { (half(block), half(block.add(2)), six_bits(std::slice::from_raw_parts(block.add(4), 12))) };
    let minima = _mm256_xor_ps(_mm256_mul_ps(e, float(m)), _mm256_set1_ps(-0.0));
    [[_mm256_mul_ps(d, float(s)), none], [minima, none]]
}

/// Implements [`Unpack`] for a format. Arguments: the code that returns its codes, and the code that returns its scales
/// and minima, if the default implementation is slow.
macro_rules! unpack {
    ($format:ty, |$block:ident, $part:pat_param| $codes:expr $(, |$blocks:ident| $numbers:expr)?) => {
        impl Unpack for $format {
            #[target_feature(enable = "avx2,fma,f16c")]
            #[inline]
            unsafe fn part($block: *const u8, $part: usize) -> __m256i {
                // SAFETY: every load is inside the block.
                unsafe { $codes }
            }
            $(
                #[target_feature(enable = "avx2,fma,f16c")]
                #[inline]
                unsafe fn numbers($blocks: *const u8) -> [[__m256; 2]; 2] {
                    // SAFETY: the caller guarantees a block.
                    unsafe { $numbers }
                }
            )?
        }
    };
}

unpack!(Q8_0, |block, _| {
    _mm256_xor_si256(_mm256_loadu_si256(block.add(2).cast()), _mm256_set1_epi8(-128))
});
unpack!(Q4_0, |block, _| nibbles(block.add(2)));
unpack!(Q4_1, |block, _| nibbles(block.add(4)));
unpack!(Q5_0, |block, _| with_fifths(nibbles(block.add(6)), block.add(2)));
unpack!(Q5_1, |block, _| with_fifths(nibbles(block.add(8)), block.add(4)));
unpack!(Iq4Nl, |block, _| nibbles(block.add(2)));
unpack!(Mxfp4, |block, _| nibbles(block.add(1)));
unpack!(Q4K, |block, part| bits(block.add(16 + 32 * (part / 2)), 4 * (part % 2), 0, 15), |block| {
    six_bit_numbers(block)
});
unpack!(
    Q5K,
    |block, part| {
        let fours = bits(block.add(48 + 32 * (part / 2)), 4 * (part % 2), 0, 15);
        _mm256_or_si256(fours, bits(block.add(16), part, 4, 16))
    },
    |block| six_bit_numbers(block)
);
unpack!(
    Q6K,
    |block, part| {
        let (half, part) = (part / 4, part % 4);
        let fours = bits(block.add(64 * half + 32 * (part % 2)), 4 * (part / 2), 0, 15);
        _mm256_or_si256(fours, bits(block.add(128 + 32 * half), 2 * part, 4, 0x30))
    },
    |block| {
        let (d, scales) = (half(block.add(208)), _mm_loadu_si128(block.add(192).cast()));
        let of = |scales| _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(scales)));
        let scales = [of(scales), of(_mm_srli_si128::<8>(scales))];
        [first_and_second(scales), [_mm256_setzero_ps(); 2]]
    }
);
unpack!(Q2K, |block, part| bits(block.add(16 + 32 * (part / 4)), 2 * (part % 4), 0, 3));
unpack!(Q3K, |block, part| {
    let twos = bits(block.add(32 + 32 * (part / 4)), 2 * (part % 4), 0, 3);
    _mm256_or_si256(twos, bits(block, part, 2, 4))
});
unpack!(Iq4Xs, |block, part| nibbles(block.add(8 + 16 * part)));
