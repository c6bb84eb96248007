//! What int8 activations are multiplied with: blocks, and int8 values whose scales lie apart.

use std::arch::x86_64::*;

use super::unpack::{Chunk, GROUPS, Unpack};
use crate::backend::cpu::kernel::Rows;
use crate::ops::blocks::{Format, GROUP};

/// Weights that are multiplied in int8, eight groups at a time; the constants are those of [`Format`].
pub(super) trait Source {
    const RUN: usize;
    const OFFSET: u8;
    const MOST: u8;
    const MINIMA: bool;

    /// Whether the scale of a group is multiplied with that of the activations, and not with the integers, first.
    const SCALES_FIRST: bool;

    /// Bytes of a chunk, without scales that lie apart.
    const BYTES: usize;

    /// Takes chunk number `number` of a row, with zeros past its end. It is made where it is to lie: copied as a whole, it
    /// would be read before it is written.
    ///
    /// # Safety
    /// The processor has the features of the kernel.
    unsafe fn take(row: Row<'_>, number: usize, chunk: &mut Chunk);
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
    pub(super) fn of(w: Rows<'a>, row: usize) -> Self {
        let scales = w.scales.map_or(&[][..], |scales| {
            let groups = w.inputs / GROUP;
            &scales.scales[(scales.first_row + row) * groups..][..groups]
        });
        Self { bytes: w.row(row), scales }
    }
}

impl<F: Unpack> Source for F {
    const RUN: usize = <F as Format>::RUN;
    const OFFSET: u8 = <F as Format>::OFFSET;
    const MOST: u8 = <F as Format>::MOST;
    const MINIMA: bool = <F as Format>::MINIMA;
    const SCALES_FIRST: bool = false;
    const BYTES: usize = Chunk::bytes::<F>();

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn take(row: Row<'_>, number: usize, chunk: &mut Chunk) {
        chunk.take::<F>(row.bytes, number);
    }
}

/// int8 values in groups of 32, with scales that lie apart.
pub(super) struct Int8;

impl Source for Int8 {
    const RUN: usize = GROUP;
    const OFFSET: u8 = 128;
    const MOST: u8 = 255;
    const MINIMA: bool = false;
    const SCALES_FIRST: bool = true;
    const BYTES: usize = GROUPS * GROUP;

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn take(row: Row<'_>, number: usize, chunk: &mut Chunk) {
        let (bytes, _) = row.bytes[number * Self::BYTES..].as_chunks::<GROUP>();
        let scales = &row.scales[number * GROUPS..];
        let groups = bytes.len().min(GROUPS);
        for (i, quants) in chunk.quants.iter_mut().enumerate() {
            *quants = match bytes.get(i) {
                // SAFETY: 32 bytes.
                Some(bytes) => unsafe {
                    let values = _mm256_loadu_si256(bytes.as_ptr().cast());
                    _mm256_xor_si256(values, _mm256_set1_epi8(-128))
                },
                None => _mm256_setzero_si256(),
            };
        }
        let mut padded = [[0; 4]; GROUPS];
        let scales = if groups == GROUPS {
            scales.as_ptr()
        } else {
            padded[..groups].copy_from_slice(&scales[..groups]);
            padded.as_ptr()
        };
        // SAFETY: eight values.
        chunk.scales[0] = unsafe { _mm256_loadu_ps(scales.cast()) };
    }
}
