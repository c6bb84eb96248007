//! Blocks of 256 values: the K formats, and `IQ4_XS`.

use super::small::{NON_LINEAR, nibbles};
use super::{Format, half};

/// Scale and minimum (six bits each) of all eight runs of a `Q4_K` or `Q5_K` block, from its twelve bytes. In each of
/// the two results, byte r, counted from the lowest, belongs to run r.
///
/// - Runs 0–3 have their scales in the low six bits of bytes 0–3, and their minima in those of bytes 4–7.
/// - Runs 4–7 have the low four bits of both in bytes 8–11: the scale in the low half of the byte, the minimum in the
///   high half. The upper two bits of the scales are the upper two bits of bytes 0–3, those of the minima the upper two
///   bits of bytes 4–7.
#[inline(always)]
pub fn six_bits(packed: &[u8]) -> (u64, u64) {
    let word = |at: usize| u32::from_le_bytes([packed[at], packed[at + 1], packed[at + 2], packed[at + 3]]);
    let (first, second, third) = (word(0), word(4), word(8));
    let upper = |word: u32| word >> 2 & 0x3030_3030;
    let scales = u64::from(third & 0x0f0f_0f0f | upper(first)) << 32 | u64::from(first & 0x3f3f_3f3f);
    let minima = u64::from(third >> 4 & 0x0f0f_0f0f | upper(second)) << 32 | u64::from(second & 0x3f3f_3f3f);
    (scales, minima)
}

/// The factors of [`Q4K`] and [`Q5K`]: d·s and −(e·m) of each run.
#[inline(always)]
fn scales_and_minima(block: &[u8], scales: &mut [f32], minima: &mut [f32]) {
    let (d, e) = (half(block), half(&block[2..]));
    let (s, m) = six_bits(&block[4..16]);
    for (scale, s) in scales.iter_mut().zip(s.to_le_bytes()) {
        *scale = d * f32::from(s);
    }
    for (minimum, m) in minima.iter_mut().zip(m.to_le_bytes()) {
        *minimum = -(e * f32::from(m));
    }
}

/// `Q4_K`: x = (d·s)·q − (e·m), with a scale s and a minimum m for each run of 32. A block is, in this order:
///
/// - d and e (halves);
/// - twelve bytes with the s and m of all eight runs (`six_bits`);
/// - q in four parts of 32 bytes. Byte i of part p has q of value 64p + i in its low four bits, and q of value
///   64p + 32 + i in its high four.
pub struct Q4K;

impl Format for Q4K {
    const VALUES: usize = 256;
    const BYTES: usize = 144;
    const RUN: usize = 32;
    const OFFSET: u8 = 0;
    const MOST: u8 = 15;
    const MINIMA: bool = true;

    #[inline(always)]
    fn codes(block: &[u8], out: &mut [u8]) {
        for (out, bytes) in out.chunks_exact_mut(64).zip(block[16..].chunks_exact(32)) {
            let (low, high) = out.split_at_mut(32);
            for ((low, high), q) in low.iter_mut().zip(high).zip(bytes) {
                (*low, *high) = (q & 15, q >> 4);
            }
        }
    }

    #[inline(always)]
    fn scales(block: &[u8], scales: &mut [f32], minima: &mut [f32]) {
        scales_and_minima(block, scales, minima);
    }
}

/// `Q5_K`: the formula of [`Q4K`] with q of five bits. A block is, in this order:
///
/// - d and e (halves), and the twelve bytes of [`Q4K`];
/// - 32 bytes with the fifth bits of q: bit r of byte i is that of value i of run r;
/// - the 4·32 bytes of [`Q4K`] with the low four bits of q.
pub struct Q5K;

impl Format for Q5K {
    const VALUES: usize = 256;
    const BYTES: usize = 176;
    const RUN: usize = 32;
    const OFFSET: u8 = 0;
    const MOST: u8 = 31;
    const MINIMA: bool = true;

    #[inline(always)]
    fn codes(block: &[u8], out: &mut [u8]) {
        let (fifths, rest) = block[16..].split_at(32);
        for (part, (out, bytes)) in out.chunks_exact_mut(64).zip(rest.chunks_exact(32)).enumerate() {
            let (low, high) = out.split_at_mut(32);
            for (((low, high), q), fifths) in low.iter_mut().zip(high).zip(bytes).zip(fifths) {
                let fifths = fifths >> (2 * part);
                (*low, *high) = (q & 15 | (fifths & 1) << 4, q >> 4 | (fifths & 2) << 3);
            }
        }
    }

    #[inline(always)]
    fn scales(block: &[u8], scales: &mut [f32], minima: &mut [f32]) {
        scales_and_minima(block, scales, minima);
    }
}

/// `Q6_K`: x = (d·s)·(q − 32), with a scale s (int8) for each run of 16. The 256 values are two halves, each of four
/// parts of 32 values. A block is, in this order:
///
/// - for each half, 64 bytes with the low four bits of q. Value i of part p has them in byte 32·(p mod 2) + i: in its
///   low four bits if p < 2, else in its high four;
/// - for each half, 32 bytes with the upper two bits of q. Value i of part p has them at bit 2p of byte i;
/// - the sixteen s;
/// - d (float16).
pub struct Q6K;

impl Format for Q6K {
    const VALUES: usize = 256;
    const BYTES: usize = 210;
    const RUN: usize = 16;
    const OFFSET: u8 = 32;
    const MOST: u8 = 63;
    const MINIMA: bool = false;

    #[inline(always)]
    fn codes(block: &[u8], out: &mut [u8]) {
        let (lows, rest) = block.split_at(128);
        let halves = lows.chunks_exact(64).zip(rest[..64].chunks_exact(32));
        for ((lows, highs), out) in halves.zip(out.chunks_exact_mut(128)) {
            for (part, out) in out.chunks_exact_mut(32).enumerate() {
                let lows = &lows[part % 2 * 32..][..32];
                for (out, (low, high)) in out.iter_mut().zip(lows.iter().zip(highs)) {
                    *out = low >> (part / 2 * 4) & 15 | (high >> (2 * part) & 3) << 4;
                }
            }
        }
    }

    #[inline(always)]
    fn scales(block: &[u8], scales: &mut [f32], _: &mut [f32]) {
        let d = half(&block[208..]);
        for (scale, s) in scales.iter_mut().zip(&block[192..208]) {
            *scale = d * f32::from(s.cast_signed());
        }
    }
}

/// The low two bits of q of each value of a `Q2_K` or `Q3_K` block, from its 64 bytes: 32 for each half of 128 values.
/// In part p = 0 … 3 of a half, value i has them at bit 2p of byte i.
#[inline(always)]
fn two_bits(bytes: &[u8], out: &mut [u8]) {
    for (bytes, out) in bytes.chunks_exact(32).zip(out.chunks_exact_mut(128)) {
        for (part, out) in out.chunks_exact_mut(32).enumerate() {
            for (out, byte) in out.iter_mut().zip(bytes) {
                *out = byte >> (2 * part) & 3;
            }
        }
    }
}

/// `Q2_K`: x = (d·s)·q − (e·m), with a scale s and a minimum m for each run of 16. A block is, in this order:
///
/// - a byte for each run, with s in its low four bits and m in its high four;
/// - 64 bytes with q, two bits a value (`two_bits`);
/// - d and e (halves).
pub struct Q2K;

impl Format for Q2K {
    const VALUES: usize = 256;
    const BYTES: usize = 84;
    const RUN: usize = 16;
    const OFFSET: u8 = 0;
    const MOST: u8 = 3;
    const MINIMA: bool = true;

    #[inline(always)]
    fn codes(block: &[u8], out: &mut [u8]) {
        two_bits(&block[16..80], out);
    }

    #[inline(always)]
    fn scales(block: &[u8], scales: &mut [f32], minima: &mut [f32]) {
        let (d, e) = (half(&block[80..]), half(&block[82..]));
        for ((scale, minimum), both) in scales.iter_mut().zip(minima).zip(&block[..16]) {
            (*scale, *minimum) = (d * f32::from(both & 15), -(e * f32::from(both >> 4)));
        }
    }
}

/// `Q3_K`: x = (d·(s − 32))·(q − 4), with a scale s (six bits) for each run of 16. A block is, in this order:
///
/// - 32 bytes with the third bits of q: bit 4h + p of byte i is that of value i of part p = 0 … 3 of half h;
/// - 64 bytes with the low two bits of q (`two_bits`);
/// - twelve bytes with the sixteen s. Run r has the low four bits of s in byte r mod 8: in its low half if r < 8, else
///   in its high half. The upper two bits are at bit 2·⌊r / 4⌋ of byte 8 + r mod 4;
/// - d (float16).
pub struct Q3K;

impl Format for Q3K {
    const VALUES: usize = 256;
    const BYTES: usize = 110;
    const RUN: usize = 16;
    const OFFSET: u8 = 4;
    const MOST: u8 = 7;
    const MINIMA: bool = false;

    #[inline(always)]
    fn codes(block: &[u8], out: &mut [u8]) {
        let (thirds, rest) = block.split_at(32);
        two_bits(&rest[..64], out);
        for (part, out) in out.chunks_exact_mut(32).enumerate() {
            for (out, thirds) in out.iter_mut().zip(thirds) {
                *out |= (thirds >> part & 1) << 2;
            }
        }
    }

    #[inline(always)]
    fn scales(block: &[u8], scales: &mut [f32], _: &mut [f32]) {
        let (d, packed) = (half(&block[108..]), &block[96..108]);
        for (run, scale) in scales[..16].iter_mut().enumerate() {
            let low = packed[run % 8] >> (run / 8 * 4) & 15;
            let upper = packed[8 + run % 4] >> (run / 4 * 2) & 3;
            *scale = d * (f32::from(low | upper << 4) - 32.0);
        }
    }
}

/// `IQ4_XS`: x = (d·(s − 32))·t, with t one of the sixteen numbers of [`super::Iq4Nl`], and a scale s (six bits) for
/// each run of 32. A block is, in this order:
///
/// - d (half);
/// - two bytes with the upper two bits of each s, those of run r at bit 2r;
/// - four bytes with the low four bits of each s, two runs a byte;
/// - for each run, the 16 bytes of [`super::Q4_0`], which hold the indices of t.
pub struct Iq4Xs;

impl Format for Iq4Xs {
    const VALUES: usize = 256;
    const BYTES: usize = 136;
    const RUN: usize = 32;
    const OFFSET: u8 = 128;
    const MOST: u8 = 241;
    const MINIMA: bool = false;
    const TABLE: Option<[u8; 16]> = Some(NON_LINEAR);

    #[inline(always)]
    fn codes(block: &[u8], out: &mut [u8]) {
        for (out, bytes) in out.chunks_exact_mut(32).zip(block[8..].chunks_exact(16)) {
            nibbles(bytes, out);
        }
    }

    #[inline(always)]
    fn scales(block: &[u8], scales: &mut [f32], _: &mut [f32]) {
        let (d, uppers) = (half(block), u16::from_le_bytes([block[2], block[3]]));
        for (run, scale) in scales[..8].iter_mut().enumerate() {
            let low = block[4 + run / 2] >> (run % 2 * 4) & 15;
            let upper = (uppers >> (2 * run) & 3) as u8;
            *scale = d * (f32::from(low | upper << 4) - 32.0);
        }
    }
}
