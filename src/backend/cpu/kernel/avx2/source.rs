//! What int8 activations are multiplied with: blocks, and int8 values whose scales lie apart.

use std::arch::x86_64::*;

use super::unpack::{Chunk, GROUPS, MAX_BYTES, Unpack};
use crate::backend::cpu::kernel::Rows;
use crate::ops::blocks::{Format, GROUP};

/// Weights that are multiplied in int8, eight groups at a time; the constants are those of [`Format`].
pub(super) trait Source {
    const RUN: usize;
    const OFFSET: u8;
    const MOST: u8;
    const MINIMA: bool;

    /// Whether the scales lie apart from the values. Such a scale is multiplied with that of the activations first, and not
    /// with the integers.
    const SCALES_APART: bool;

    /// Bytes of a chunk, without scales that lie apart.
    const BYTES: usize;

    /// Takes what [`Row::part`] gave. It is made where it is to lie: copied as a whole, it would be read before it is
    /// written.
    ///
    /// # Safety
    /// The processor has the features of the kernel.
    unsafe fn take(part: Part<'_>, chunk: &mut Chunk);
}

/// The weights of a chunk as they are stored: so many bytes, and a scale for each group where they lie apart.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    bytes: &'a [u8],
    scales: &'a [[u8; 4]],
}

/// Where the last part of a row is laid out that is no whole chunk.
pub(super) struct Padding {
    bytes: [u8; MAX_BYTES],
    scales: [[u8; 4]; GROUPS],
}

impl Padding {
    pub(super) const fn new() -> Self {
        Self { bytes: [0; MAX_BYTES], scales: [[0; 4]; GROUPS] }
    }

    /// What there is of a part of `bytes` bytes, and zeros.
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
pub(super) struct Row<'a> {
    pub(super) bytes: &'a [u8],
    /// The scales of its groups, where they lie apart.
    scales: &'a [[u8; 4]],
}

impl<'a> Row<'a> {
    /// Row `row` of blocks, or of int8 values in groups of 32.
    #[inline]
    pub(super) fn of(w: Rows<'a>, row: usize) -> Self {
        let scales = w.scales.map_or(&[][..], |scales| {
            let groups = w.inputs / GROUP;
            &scales.scales[(scales.first_row + row) * groups..][..groups]
        });
        Self { bytes: w.row(row), scales }
    }

    /// Chunk number `number`; past the end of the row are zeros, laid out in `padding`.
    #[inline(always)]
    pub(super) fn part<S: Source>(self, number: usize, padding: &'a mut Padding) -> Part<'a> {
        let scales = if S::SCALES_APART { &self.scales[number * GROUPS..] } else { &[] };
        let left = Part { bytes: &self.bytes[number * S::BYTES..], scales };
        match left.bytes.get(..S::BYTES) {
            Some(bytes) => Part { bytes, ..left },
            None => padding.fill(left, S::BYTES),
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

/// int8 values in groups of 32, with scales that lie apart.
pub(super) struct Int8;

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
            // SAFETY: 32 bytes.
            let values = unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) };
            *quants = _mm256_xor_si256(values, _mm256_set1_epi8(-128));
        }
        // SAFETY: eight values.
        chunk.scales[0] = unsafe { _mm256_loadu_ps(part.scales[..GROUPS].as_ptr().cast()) };
    }
}
