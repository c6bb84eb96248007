//! The weights that int8 activations are multiplied with: blocks, and int8 values with separate scales. AVX-512 reads
//! the same formats, two chunks at a time.

use std::arch::x86_64::*;

use super::unpack::{Chunk, GROUPS, Unpack};
use crate::backend::cpu::kernel::Rows;
use crate::backend::cpu::kernel::q8::CHUNK_GROUPS;
use llama_trace_core::ops::blocks::{Format, GROUP, Q8_0};

/// Weights that are multiplied in int8, eight groups at a time. The constants are those of [`Format`].
pub(in crate::backend::cpu::kernel) trait Source {
    const RUN: usize;
    const OFFSET: u8;
    const MOST: u8;
    const MINIMA: bool;

    /// Whether the scales are stored separately from the values. If so, the two scales of weights and activations are
    /// multiplied with each other first, and then with the integers.
    const SCALES_APART: bool;

    /// The size of a chunk of eight groups in bytes, without separate scales.
    const BYTES: usize;

    /// The number of separate scales of a chunk.
    const SCALES: usize = if Self::SCALES_APART { GROUPS } else { 0 };

    /// Unpacks the result of [`Row::part`] into `chunk`. It writes in place, because a returned chunk would be copied,
    /// and the copy would read it before its stores are complete.
    ///
    /// # Safety
    /// The processor has the features of the kernel.
    unsafe fn take(part: Part<'_>, chunk: &mut Chunk);
}

/// The stored weights of a chunk: the bytes, and a scale for each group if the scales are separate.
#[derive(Clone, Copy)]
pub(in crate::backend::cpu::kernel) struct Part<'a> {
    pub(in crate::backend::cpu::kernel) bytes: &'a [u8],
    pub(in crate::backend::cpu::kernel) scales: &'a [[u8; 4]],
}

/// The size of the largest part in bytes, which is that of `Q8_0`.
const MAX_BYTES: usize = CHUNK_GROUPS * <Q8_0 as Format>::BYTES;

/// A buffer for the last part of a row, if that part is incomplete.
pub(in crate::backend::cpu::kernel) struct Padding {
    bytes: [u8; MAX_BYTES],
    scales: [[u8; 4]; CHUNK_GROUPS],
}

impl Padding {
    pub(in crate::backend::cpu::kernel) const fn new() -> Self {
        Self { bytes: [0; MAX_BYTES], scales: [[0; 4]; CHUNK_GROUPS] }
    }

    /// Copies an incomplete part and pads it with zeros to `bytes` bytes.
    #[cold]
    #[inline(never)]
    fn fill(&mut self, part: Part<'_>, bytes: usize) -> Part<'_> {
        self.bytes.fill(0);
        self.bytes[..part.bytes.len()].copy_from_slice(part.bytes);
        self.scales.fill([0; 4]);
        self.scales[..part.scales.len()].copy_from_slice(part.scales);
        Part { bytes: &self.bytes[..bytes], scales: &self.scales }
    }
}

/// A row of weights.
#[derive(Clone, Copy)]
pub(in crate::backend::cpu::kernel) struct Row<'a> {
    pub(in crate::backend::cpu::kernel) bytes: &'a [u8],
    /// The scales of the row's groups, if they are separate.
    scales: &'a [[u8; 4]],
}

impl<'a> Row<'a> {
    /// Returns row `row` of blocks, or of int8 values in groups of 32.
    #[inline]
    pub(in crate::backend::cpu::kernel) fn of(w: Rows<'a>, row: usize) -> Self {
        let scales = w.scales.map_or(&[][..], |scales| {
            let groups = w.inputs / GROUP;
            &scales.scales[(scales.first_row + row) * groups..][..groups]
        });
        Self { bytes: w.row(row), scales }
    }

    /// Returns part number `number` of the row. A part has `bytes` bytes, and `scales` scales if they are separate. If
    /// it reaches past the end of the row, it is copied to `padding` and padded with zeros.
    #[inline(always)]
    pub(in crate::backend::cpu::kernel) fn part(
        self,
        number: usize,
        bytes: usize,
        scales: usize,
        padding: &'a mut Padding,
    ) -> Part<'a> {
        let left = Part { bytes: &self.bytes[number * bytes..], scales: &self.scales[number * scales..] };
        match left.bytes.get(..bytes) {
            Some(bytes) => Part { bytes, ..left },
            None => padding.fill(left, bytes),
        }
    }
}

impl<F: Unpack> Source for F {
    const RUN: usize = <F as Format>::RUN;
    const OFFSET: u8 = <F as Format>::OFFSET;
    const MOST: u8 = <F as Format>::MOST;
    const MINIMA: bool = <F as Format>::MINIMA;
    const SCALES_APART: bool = false;
    const BYTES: usize = Chunk::bytes::<F>();

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn take(part: Part<'_>, chunk: &mut Chunk) {
        chunk.take::<F>(part.bytes);
    }
}

/// int8 values in groups of 32, with separate scales.
pub(in crate::backend::cpu::kernel) struct Int8;

impl Source for Int8 {
    const RUN: usize = GROUP;
    const OFFSET: u8 = 128;
    const MOST: u8 = 255;
    const MINIMA: bool = false;
    const SCALES_APART: bool = true;
    const BYTES: usize = GROUPS * GROUP;

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn take(part: Part<'_>, chunk: &mut Chunk) {
        let groups = part.bytes[..Self::BYTES].as_chunks::<GROUP>().0;
        for (bytes, quants) in groups.iter().zip(&mut chunk.quants) {
            // SAFETY: a group has 32 bytes.
            let values = unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) };
            *quants = _mm256_xor_si256(values, _mm256_set1_epi8(-128));
        }
        // SAFETY: the slice has eight values.
        chunk.scales[0] = unsafe { _mm256_loadu_ps(part.scales[..GROUPS].as_ptr().cast()) };
    }
}
