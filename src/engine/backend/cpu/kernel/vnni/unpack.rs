//! Unpacks blocks in AVX-512 vectors: 16 groups at a time, which are 16 small blocks or two large blocks. The types of
//! [`llama_trace_core::ops::blocks`] document the layouts.

use std::arch::x86_64::*;

use crate::backend::cpu::kernel::avx2::words;
use crate::backend::cpu::kernel::blocks::numbers;
use crate::backend::cpu::kernel::q8::CHUNK_GROUPS;
use llama_trace_core::ops::blocks::{
    Format, GROUP, Iq4Nl, Iq4Xs, Mxfp4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0,
};

/// The number of values in a chunk.
pub(super) const VALUES: usize = CHUNK_GROUPS * GROUP;

/// 16 groups of a row.
pub(super) struct Chunk {
    /// The q before the offset is subtracted. Each vector has two groups, one after the other. The order of the groups
    /// is that of [`Unpack::CROSSED`].
    pub(super) quants: [__m512i; 8],
    /// The scales of the first run of each group, and those of the second run if a run is half a group.
    pub(super) scales: [__m512; 2],
    /// The minima of the same runs, if the format has them.
    pub(super) minima: [__m512; 2],
}

impl Chunk {
    /// The size of a chunk in bytes.
    pub(super) const fn bytes<F: Format>() -> usize {
        VALUES / F::VALUES * F::BYTES
    }

    /// Returns a chunk of zeros.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(super) fn zeros() -> Self {
        let none = [_mm512_setzero_ps(); 2];
        Self { quants: [_mm512_setzero_si512(); 8], scales: none, minima: none }
    }

    /// Unpacks the blocks of 16 groups into this chunk.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    #[inline]
    pub(super) fn take<F: Unpack>(&mut self, blocks: &[u8]) {
        let blocks = blocks[..Self::bytes::<F>()].as_ptr();
        // SAFETY: the slice has the bytes of a chunk.
        [self.scales, self.minima] = unsafe { F::numbers(blocks) };
        for (i, quants) in self.quants.iter_mut().enumerate() {
            let part = i % (F::VALUES / 64).max(1);
            // SAFETY: as above.
            *quants = unsafe { F::part(blocks.add(64 * i / F::VALUES * F::BYTES), part) };
        }
        if let Some(table) = F::TABLE {
            // SAFETY: the table has 16 bytes.
            let table = unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())) };
            for quants in &mut self.quants {
                *quants = _mm512_shuffle_epi8(table, *quants);
            }
        }
    }
}

/// A format whose blocks AVX-512 unpacks.
pub(super) trait Unpack: Format + Sized {
    /// Whether the second and the third of every four groups in [`Chunk::quants`] are swapped, which saves a load and a
    /// permutation. See [`cross`](crate::backend::cpu::kernel::q8::cross).
    const CROSSED: bool;

    /// Returns [`Format::codes`] of 64 values: part number `part` of a large block, or two small blocks.
    ///
    /// # Safety
    /// `block` points at the large block, or at both small blocks. The processor has the features of the kernel.
    unsafe fn part(block: *const u8, part: usize) -> __m512i;

    /// Returns the scales of the runs of 16 groups, and their minima, in the layout of [`Chunk`].
    ///
    /// # Safety
    /// `blocks` points at the blocks of 16 groups, and the processor has the features of the kernel.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    #[inline]
    unsafe fn numbers(blocks: *const u8) -> [[__m512; 2]; 2] {
        if Self::HALVES {
            // SAFETY: a block begins with a float16 value, and with a second one if the format has minima.
            let half = |at: usize| unsafe { halves(blocks.add(at), Self::BYTES) };
            let none = _mm512_setzero_ps();
            return [[half(0), none], [if Self::MINIMA { half(2) } else { none }, none]];
        }
        // SAFETY: the caller guarantees this many blocks.
        let blocks = unsafe { std::slice::from_raw_parts(blocks, Chunk::bytes::<Self>()) };
        // SAFETY: `numbers` has 32 values, two vectors of 16.
        numbers::<Self, { 2 * CHUNK_GROUPS }>(blocks).map(|numbers| unsafe {
            let both = [_mm512_loadu_ps(numbers.as_ptr()), _mm512_loadu_ps(numbers.as_ptr().add(16))];
            if Self::RUN == GROUP { both } else { first_and_second(both) }
        })
    }
}

/// Returns 16 float16 values as float32. The first is at `first`. Each further value is `stride` bytes after the
/// previous one.
///
/// # Safety
/// The conditions of [`words`], but for 16 pieces of `stride` bytes.
#[target_feature(enable = "avx2,avx512f")]
#[inline]
unsafe fn halves(first: *const u8, stride: usize) -> __m512 {
    // SAFETY: guaranteed by the caller.
    let (low, high) = unsafe { (words(first, stride), words(first.add(8 * stride), stride)) };
    let words = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
    _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words))
}

/// Separates the 32 numbers of 16 groups with two runs each: those of the first run of each group, and those of the
/// second.
#[target_feature(enable = "avx512f")]
#[inline]
fn first_and_second([low, high]: [__m512; 2]) -> [__m512; 2] {
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    let odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
    [_mm512_permutex2var_ps(low, even, high), _mm512_permutex2var_ps(low, odd, high)]
}

/// Returns the low four bits of 16 bytes, then the high four bits of the same bytes, at two places.
///
/// # Safety
/// Both places have 16 bytes.
#[target_feature(enable = "avx2,avx512f")]
#[inline]
unsafe fn nibbles(first: *const u8, second: *const u8) -> __m512i {
    // SAFETY: guaranteed by the caller.
    let both = unsafe {
        let first = _mm256_broadcastsi128_si256(_mm_loadu_si128(first.cast()));
        let second = _mm256_broadcastsi128_si256(_mm_loadu_si128(second.cast()));
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), second)
    };
    let shifted = _mm512_srlv_epi64(both, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4));
    _mm512_and_si512(shifted, _mm512_set1_epi8(15))
}

/// Returns `codes` with a fifth bit. The fifth bit of value j is bit j of the two u32 at `first` and at `second`, one
/// after the other.
///
/// # Safety
/// Both pointers point at four bytes.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn with_fifths(codes: __m512i, first: *const u8, second: *const u8) -> __m512i {
    // SAFETY: guaranteed by the caller.
    let [first, second] = [first, second].map(|at| u64::from(unsafe { at.cast::<u32>().read_unaligned() }));
    _mm512_mask_add_epi8(codes, first | second << 32, codes, _mm512_set1_epi8(16))
}

/// Returns 32 bytes twice, with their bits rotated to the right. In the first half, bit `bit` of a byte becomes bit
/// `to`. In the second half, bit `bit` + `step` becomes bit `to`. The other bits of a byte may come from its neighbour.
///
/// # Safety
/// `bytes` points at 32 bytes.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn turned(bytes: *const u8, bit: usize, step: usize, to: usize) -> __m512i {
    let (first, second) = ((64 + bit - to) as i64, (64 + bit + step - to) as i64);
    let counts = _mm512_setr_epi64(first, first, first, first, second, second, second, second);
    // SAFETY: guaranteed by the caller.
    _mm512_rorv_epi64(unsafe { _mm512_broadcast_i64x4(_mm256_loadu_si256(bytes.cast())) }, counts)
}

/// Returns the low or the high four bits of 64 bytes.
///
/// # Safety
/// `bytes` points at 64 bytes.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn nibble_of_64(bytes: *const u8, nibble: usize) -> __m512i {
    // SAFETY: guaranteed by the caller.
    let bytes = unsafe { _mm512_loadu_si512(bytes.cast()) };
    let bytes = if nibble == 0 { bytes } else { _mm512_srli_epi16::<4>(bytes) };
    _mm512_and_si512(bytes, _mm512_set1_epi8(15))
}

/// Returns [`Unpack::numbers`] of two blocks of `Q4_K` or `Q5_K`.
///
/// # Safety
/// `blocks` points at two blocks.
#[target_feature(enable = "avx2,f16c,avx512f,avx512dq,avx512vl")]
#[inline]
unsafe fn six_bit_numbers<F: Format>(blocks: *const u8) -> [[__m512; 2]; 2] {
    let none = _mm512_setzero_ps();
    // SAFETY: a block begins with 16 bytes: two float16 values and the twelve bytes of `six_bits`.
    let heads = unsafe {
        let first = _mm256_castsi128_si256(_mm_loadu_si128(blocks.cast()));
        _mm256_inserti128_si256::<1>(first, _mm_loadu_si128(blocks.add(F::BYTES).cast()))
    };
    // Each block's 128-bit part has s 0 to 3, s 4 to 7, m 0 to 3, m 4 to 7.
    let low = _mm256_shuffle_epi32::<0b11_10_11_01>(heads);
    let low = _mm256_srlv_epi32(low, _mm256_setr_epi32(0, 0, 0, 4, 0, 0, 0, 4));
    let low = _mm256_and_si256(low, _mm256_set1_epi64x(0x0f0f_0f0f_3f3f_3f3f));
    let upper = _mm256_srli_epi32::<2>(_mm256_shuffle_epi32::<0b10_10_01_01>(heads));
    let upper = _mm256_and_si256(upper, _mm256_set1_epi64x(0x3030_3030_0000_0000));
    let both = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_or_si256(low, upper));
    let float = |bytes| _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
    let (s, m) = (float(_mm256_castsi256_si128(both)), float(_mm256_extracti128_si256::<1>(both)));
    let d = _mm512_cvtph_ps(_mm256_shuffle_epi8(heads, _mm256_set1_epi16(0x0100)));
    let e = _mm512_cvtph_ps(_mm256_shuffle_epi8(heads, _mm256_set1_epi16(0x0302)));
    [[_mm512_mul_ps(d, s), none], [_mm512_xor_ps(_mm512_mul_ps(e, m), _mm512_set1_ps(-0.0)), none]]
}

/// Implements [`Unpack`] for a format. Arguments: the code that returns its codes, and the code that returns its scales
/// and minima, if the default implementation is slow.
macro_rules! unpack {
    ($format:ty, $(crossed: $crossed:literal,)? |$block:ident, $part:pat_param| $codes:expr $(, |$blocks:ident| $numbers:expr)?) => {
        impl Unpack for $format {
            const CROSSED: bool = false $(|| $crossed)?;

            #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
            #[inline]
            unsafe fn part($block: *const u8, $part: usize) -> __m512i {
                // SAFETY: every load is inside the block, or inside both small blocks.
                unsafe { $codes }
            }
            $(
                #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
                #[inline]
                unsafe fn numbers($blocks: *const u8) -> [[__m512; 2]; 2] {
                    // SAFETY: the caller guarantees two blocks.
                    unsafe { $numbers }
                }
            )?
        }
    };
}

unpack!(Q8_0, |block, _| {
    let first = _mm512_castsi256_si512(_mm256_loadu_si256(block.add(2).cast()));
    let both = _mm512_inserti64x4::<1>(first, _mm256_loadu_si256(block.add(Self::BYTES + 2).cast()));
    _mm512_xor_si512(both, _mm512_set1_epi8(-128))
});
unpack!(Q4_0, |block, _| nibbles(block.add(2), block.add(Self::BYTES + 2)));
unpack!(Q4_1, |block, _| nibbles(block.add(4), block.add(Self::BYTES + 4)));
unpack!(Q5_0, |block, _| {
    let next = block.add(Self::BYTES);
    with_fifths(nibbles(block.add(6), next.add(6)), block.add(2), next.add(2))
});
unpack!(Q5_1, |block, _| {
    let next = block.add(Self::BYTES);
    with_fifths(nibbles(block.add(8), next.add(8)), block.add(4), next.add(4))
});
unpack!(Iq4Nl, |block, _| nibbles(block.add(2), block.add(Self::BYTES + 2)));
unpack!(Mxfp4, |block, _| nibbles(block.add(1), block.add(Self::BYTES + 1)));
unpack!(
    Q4K,
    crossed: true,
    |block, part| nibble_of_64(block.add(16 + 64 * (part / 2)), part % 2),
    |blocks| six_bit_numbers::<Self>(blocks)
);
unpack!(
    Q5K,
    crossed: true,
    |block, part| {
        let (four, nibble) = (part / 2, part % 2);
        let fours = nibble_of_64(block.add(48 + 64 * four), nibble);
        let fifths = turned(block.add(16), 4 * four + nibble, 2, 4);
        _mm512_or_si512(fours, _mm512_and_si512(fifths, _mm512_set1_epi8(16)))
    },
    |blocks| six_bit_numbers::<Self>(blocks)
);
unpack!(
    Q6K,
    |block, part| {
        let (half, pair) = (part / 2, part % 2);
        let fours = _mm512_loadu_si512(block.add(64 * half).cast());
        let fours = if pair == 0 { fours } else { _mm512_srli_epi64::<4>(fours) };
        let fours = _mm512_and_si512(fours, _mm512_set1_epi8(15));
        let upper = turned(block.add(128 + 32 * half), 4 * pair, 2, 4);
        _mm512_or_si512(fours, _mm512_and_si512(upper, _mm512_set1_epi8(0x30)))
    },
    |blocks| {
        let (first, second) = (blocks, blocks.add(Self::BYTES));
        let [low, high] = [first, second].map(|block| _mm_loadu_si128(block.add(192).cast()));
        let float = |bytes| _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
        let d = |block: *const u8| {
            let half = block.add(208).cast::<i16>().read_unaligned();
            _mm512_cvtph_ps(_mm256_set1_epi16(half))
        };
        let (low_d, high_d) = (d(first), d(second));
        let scales = [_mm512_mul_ps(low_d, float(low)), _mm512_mul_ps(high_d, float(high))];
        [first_and_second(scales), [_mm512_setzero_ps(); 2]]
    }
);
unpack!(Q2K, |block, part| {
    let twos = turned(block.add(16 + 32 * (part / 2)), 4 * (part % 2), 2, 0);
    _mm512_and_si512(twos, _mm512_set1_epi8(3))
});
unpack!(Q3K, |block, part| {
    let twos = turned(block.add(32 + 32 * (part / 2)), 4 * (part % 2), 2, 0);
    let thirds = turned(block, 2 * part, 1, 2);
    let thirds = _mm512_and_si512(thirds, _mm512_set1_epi8(4));
    _mm512_or_si512(_mm512_and_si512(twos, _mm512_set1_epi8(3)), thirds)
});
unpack!(Iq4Xs, |block, part| nibbles(block.add(8 + 32 * part), block.add(24 + 32 * part)));
