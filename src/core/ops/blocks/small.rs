//! Blocks of 32 values.

use super::{Format, half};

/// The low four bits of 16 bytes, then the high four.
#[inline(always)]
pub(super) fn nibbles(bytes: &[u8], out: &mut [u8]) {
    let (low, high) = out.split_at_mut(16);
    for ((low, high), &q) in low.iter_mut().zip(high).zip(bytes) {
        (*low, *high) = (q & 15, q >> 4);
    }
}

/// [`nibbles`] with a fifth bit: bit j of `fifths` for value j.
#[inline(always)]
fn fives(fifths: &[u8], bytes: &[u8], out: &mut [u8]) {
    nibbles(bytes, out);
    let fifths = u32::from_le_bytes([fifths[0], fifths[1], fifths[2], fifths[3]]);
    for (j, out) in out.iter_mut().enumerate() {
        *out |= ((fifths >> j) as u8 & 1) << 4;
    }
}

/// `Q8_0`: x = d·q. A block is d (half) and 32 q (int8). The codes of this format are q + 128.
pub struct Q8_0;

impl Format for Q8_0 {
    const VALUES: usize = 32;
    const BYTES: usize = 34;
    const RUN: usize = 32;
    const OFFSET: u8 = 128;
    const MOST: u8 = 255;
    const MINIMA: bool = false;
    const HALVES: bool = true;

    #[inline(always)]
    fn codes(block: &[u8], out: &mut [u8]) {
        for (out, q) in out.iter_mut().zip(&block[2..]) {
            *out = q ^ 128;
        }
    }

    #[inline(always)]
    fn scales(block: &[u8], scales: &mut [f32], _: &mut [f32]) {
        scales[0] = half(block);
    }
}

/// `Q4_0`: x = d·(q − 8). A block is d (half) and 16 bytes with q. Byte i has q of value i in its low four bits, and q
/// of value i + 16 in its high four.
pub struct Q4_0;

impl Format for Q4_0 {
    const VALUES: usize = 32;
    const BYTES: usize = 18;
    const RUN: usize = 32;
    const OFFSET: u8 = 8;
    const MOST: u8 = 15;
    const MINIMA: bool = false;
    const HALVES: bool = true;

    #[inline(always)]
    fn codes(block: &[u8], out: &mut [u8]) {
        nibbles(&block[2..], out);
    }

    #[inline(always)]
    fn scales(block: &[u8], scales: &mut [f32], _: &mut [f32]) {
        scales[0] = half(block);
    }
}

/// `Q4_1`: x = d·q + m. A block is d and m (halves) and the 16 bytes of [`Q4_0`].
pub struct Q4_1;

impl Format for Q4_1 {
    const VALUES: usize = 32;
    const BYTES: usize = 20;
    const RUN: usize = 32;
    const OFFSET: u8 = 0;
    const MOST: u8 = 15;
    const MINIMA: bool = true;
    const HALVES: bool = true;

    #[inline(always)]
    fn codes(block: &[u8], out: &mut [u8]) {
        nibbles(&block[4..], out);
    }

    #[inline(always)]
    fn scales(block: &[u8], scales: &mut [f32], minima: &mut [f32]) {
        (scales[0], minima[0]) = (half(block), half(&block[2..]));
    }
}

/// `Q5_0`: x = d·(q − 16). A block is d (half), the fifth bits of all 32 q (u32) and the 16 bytes of
/// [`Q4_0`] with their low four bits.
pub struct Q5_0;

impl Format for Q5_0 {
    const VALUES: usize = 32;
    const BYTES: usize = 22;
    const RUN: usize = 32;
    const OFFSET: u8 = 16;
    const MOST: u8 = 31;
    const MINIMA: bool = false;
    const HALVES: bool = true;

    #[inline(always)]
    fn codes(block: &[u8], out: &mut [u8]) {
        fives(&block[2..6], &block[6..], out);
    }

    #[inline(always)]
    fn scales(block: &[u8], scales: &mut [f32], _: &mut [f32]) {
        scales[0] = half(block);
    }
}

/// `Q5_1`: x = d·q + m. A block is d and m (halves), then the bytes of [`Q5_0`] after its d.
pub struct Q5_1;

impl Format for Q5_1 {
    const VALUES: usize = 32;
    const BYTES: usize = 24;
    const RUN: usize = 32;
    const OFFSET: u8 = 0;
    const MOST: u8 = 31;
    const MINIMA: bool = true;
    const HALVES: bool = true;

    #[inline(always)]
    fn codes(block: &[u8], out: &mut [u8]) {
        fives(&block[4..8], &block[8..], out);
    }

    #[inline(always)]
    fn scales(block: &[u8], scales: &mut [f32], minima: &mut [f32]) {
        (scales[0], minima[0]) = (half(block), half(&block[2..]));
    }
}

/// The sixteen values of `IQ4_NL` and `IQ4_XS` (`kvalues_iq4nl`), plus 128. They are finer near zero.
pub(super) const NON_LINEAR: [u8; 16] =
    [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241];

/// `IQ4_NL`: x = d·t, with t one of sixteen numbers. A block is d (half) and the 16 bytes of [`Q4_0`], which hold the
/// indices.
pub struct Iq4Nl;

impl Format for Iq4Nl {
    const VALUES: usize = 32;
    const BYTES: usize = 18;
    const RUN: usize = 32;
    const OFFSET: u8 = 128;
    const MOST: u8 = 241;
    const MINIMA: bool = false;
    const HALVES: bool = true;
    const TABLE: Option<[u8; 16]> = Some(NON_LINEAR);

    #[inline(always)]
    fn codes(block: &[u8], out: &mut [u8]) {
        nibbles(&block[2..], out);
    }

    #[inline(always)]
    fn scales(block: &[u8], scales: &mut [f32], _: &mut [f32]) {
        scales[0] = half(block);
    }
}

/// Twice the values of the 4-bit floats of `MXFP4` (E2M1), plus 16.
const E2M1: [u8; 16] = [16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4];

/// `MXFP4` (Open Compute Project, Microscaling Formats, 2023): x = 2^(e − 128) · t, with t twice a float of four bits.
/// A block is e (one byte) and the 16 bytes of [`Q4_0`], which hold the floats.
pub struct Mxfp4;

impl Format for Mxfp4 {
    const VALUES: usize = 32;
    const BYTES: usize = 17;
    const RUN: usize = 32;
    const OFFSET: u8 = 16;
    const MOST: u8 = 28;
    const MINIMA: bool = false;
    const TABLE: Option<[u8; 16]> = Some(E2M1);

    #[inline(always)]
    fn codes(block: &[u8], out: &mut [u8]) {
        nibbles(&block[1..], out);
    }

    #[inline(always)]
    fn scales(block: &[u8], scales: &mut [f32], _: &mut [f32]) {
        let bits = match u32::from(block[0]) {
            // 2^-128 and 2^-127 are below the smallest normal number.
            e @ 0..2 => 0x0020_0000 << e,
            e => (e - 1) << 23,
        };
        scales[0] = f32::from_bits(bits);
    }
}
