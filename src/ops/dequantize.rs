//! Weights stored in blocks of small integers, back to float32: ggml's formats, as GGUF files hold them.
//!
//! Every function takes whole blocks and as many outputs as they stand for. A half is a little-endian
//! IEEE float16; all arithmetic is float32, in the order of the formula, so that the results are those of
//! gguf-py's `dequantize` to the bit. The layouts are those of `ggml/src/ggml-common.h`, the formulas those
//! of `dequantize_row_…` in `ggml/src/ggml-quants.c`.

use half::f16;

/// Values in a block of the older formats (`QK4_0`, …).
pub const SMALL: usize = 32;
/// Values in a block of the K formats (`QK_K`).
pub const LARGE: usize = 256;

/// The float16 at the first two of `bytes`.
#[inline(always)]
fn half(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

/// Runs `block` on each block of `N` bytes with the `V` values that it stands for.
#[inline(always)]
fn each<const N: usize, const V: usize>(
    bytes: &[u8],
    out: &mut [f32],
    block: impl Fn(&[u8; N], &mut [f32; V]),
) {
    for (bytes, out) in bytes.as_chunks::<N>().0.iter().zip(out.as_chunks_mut::<V>().0) {
        block(bytes, out);
    }
}

/// `Q8_0`: x = d·q. A block is d (half) and 32 q (int8).
#[inline(always)]
pub fn q8_0(bytes: &[u8], out: &mut [f32]) {
    each::<34, SMALL>(bytes, out, |block, out| {
        let d = half(block);
        for (out, &q) in out.iter_mut().zip(&block[2..]) {
            *out = d * f32::from(q as i8);
        }
    });
}

/// `Q4_0`: x = d·(q − 8). A block is d (half) and 16 bytes; byte i has q of value i in its low four bits
/// and of value i + 16 in its high four.
#[inline(always)]
pub fn q4_0(bytes: &[u8], out: &mut [f32]) {
    each::<18, SMALL>(bytes, out, |block, out| {
        let d = half(block);
        let (low, high) = out.split_at_mut(16);
        for ((low, high), &q) in low.iter_mut().zip(high).zip(&block[2..]) {
            *low = d * f32::from((q & 15) as i8 - 8);
            *high = d * f32::from((q >> 4) as i8 - 8);
        }
    });
}

/// `Q4_1`: x = d·q + m. A block is d and m (halves) and the 16 bytes of [`q4_0`].
#[inline(always)]
pub fn q4_1(bytes: &[u8], out: &mut [f32]) {
    each::<20, SMALL>(bytes, out, |block, out| {
        let (d, m) = (half(block), half(&block[2..]));
        let (low, high) = out.split_at_mut(16);
        for ((low, high), &q) in low.iter_mut().zip(high).zip(&block[4..]) {
            *low = d * f32::from(q & 15) + m;
            *high = d * f32::from(q >> 4) + m;
        }
    });
}

/// The two five-bit numbers of byte `i` of a `Q5_0` or `Q5_1` block: `q` has their low four bits, `fifths`
/// the fifth bit of value j at bit j.
#[inline(always)]
fn fives(q: u8, fifths: u32, i: usize) -> (u8, u8) {
    let fifth = |value: usize| ((fifths >> value) as u8 & 1) << 4;
    (q & 15 | fifth(i), q >> 4 | fifth(i + 16))
}

/// `Q5_0`: x = d·(q − 16). A block is d (half), the fifth bits of all 32 q (u32) and the 16 bytes of
/// [`q4_0`] with their low four bits.
#[inline(always)]
pub fn q5_0(bytes: &[u8], out: &mut [f32]) {
    each::<22, SMALL>(bytes, out, |block, out| {
        let d = half(block);
        let fifths = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
        let (low, high) = out.split_at_mut(16);
        for (i, ((low, high), &q)) in low.iter_mut().zip(high).zip(&block[6..]).enumerate() {
            let (a, b) = fives(q, fifths, i);
            *low = d * f32::from(a as i8 - 16);
            *high = d * f32::from(b as i8 - 16);
        }
    });
}

/// `Q5_1`: x = d·q + m. A block is d and m (halves), and then as in [`q5_0`].
#[inline(always)]
pub fn q5_1(bytes: &[u8], out: &mut [f32]) {
    each::<24, SMALL>(bytes, out, |block, out| {
        let (d, m) = (half(block), half(&block[2..]));
        let fifths = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
        let (low, high) = out.split_at_mut(16);
        for (i, ((low, high), &q)) in low.iter_mut().zip(high).zip(&block[8..]).enumerate() {
            let (a, b) = fives(q, fifths, i);
            *low = d * f32::from(a) + m;
            *high = d * f32::from(b) + m;
        }
    });
}

/// The scale and the minimum (six bits each) of the run of 32 values `run` of a `Q4_K` or `Q5_K` block, out
/// of its twelve bytes: the first four runs have theirs in the low six bits of bytes 0–3 and 4–7; the
/// others have four bits in bytes 8–11 and the upper two in the upper two of the bytes before.
#[inline(always)]
fn scale_and_minimum(packed: &[u8], run: usize) -> (f32, f32) {
    let (scale, minimum) = if run < 4 {
        (packed[run] & 63, packed[run + 4] & 63)
    } else {
        let both = packed[run + 4];
        (both & 15 | packed[run - 4] >> 6 << 4, both >> 4 | packed[run] >> 6 << 4)
    };
    (f32::from(scale), f32::from(minimum))
}

/// `Q4_K`: x = (d·s)·q − (e·m), with a scale s and a minimum m for each run of 32. A block is d and e
/// (halves), twelve bytes with the eight s and m, and 4·32 bytes: byte i of group g has q of value
/// 64g + i in its low four bits and of value 64g + 32 + i in its high four.
#[inline(always)]
pub fn q4_k(bytes: &[u8], out: &mut [f32]) {
    each::<144, LARGE>(bytes, out, |block, out| {
        let (d, e) = (half(block), half(&block[2..]));
        let (packed, quants) = block[4..].split_at(12);
        for (group, (out, quants)) in out.chunks_exact_mut(64).zip(quants.chunks_exact(32)).enumerate() {
            for (part, out) in out.chunks_exact_mut(32).enumerate() {
                let (s, m) = scale_and_minimum(packed, 2 * group + part);
                let (scale, minimum) = (d * s, e * m);
                for (out, &q) in out.iter_mut().zip(quants) {
                    *out = scale * f32::from(q >> (4 * part) & 15) - minimum;
                }
            }
        }
    });
}

/// `Q5_K`: the formula of [`q4_k`] with q of five bits. A block is d and e (halves), the twelve bytes,
/// 32 bytes with the fifth bits (run r of value i: bit r of byte i), and the 4·32 bytes of [`q4_k`].
#[inline(always)]
pub fn q5_k(bytes: &[u8], out: &mut [f32]) {
    each::<176, LARGE>(bytes, out, |block, out| {
        let (d, e) = (half(block), half(&block[2..]));
        let (packed, rest) = block[4..].split_at(12);
        let (fifths, quants) = rest.split_at(32);
        for (group, (out, quants)) in out.chunks_exact_mut(64).zip(quants.chunks_exact(32)).enumerate() {
            for (part, out) in out.chunks_exact_mut(32).enumerate() {
                let run = 2 * group + part;
                let (s, m) = scale_and_minimum(packed, run);
                let (scale, minimum) = (d * s, e * m);
                for ((out, &q), &fifth) in out.iter_mut().zip(quants).zip(fifths) {
                    *out = scale * f32::from(q >> (4 * part) & 15 | (fifth >> run & 1) << 4) - minimum;
                }
            }
        }
    });
}

/// `Q6_K`: x = (d·s)·(q − 32), with a scale s (int8) for each 16 values. A block is, for each half of 128
/// values, 64 bytes with the low four bits of q; then for each half 32 bytes with the upper two; 16 s; and
/// d (half). Of run r = 0 … 3 of a half, value i has its low bits in the low (r < 2) or high four bits of
/// byte 32·(r mod 2) + i, and its upper ones at bit 2r of byte i.
#[inline(always)]
pub fn q6_k(bytes: &[u8], out: &mut [f32]) {
    each::<210, LARGE>(bytes, out, |block, out| {
        let d = half(&block[208..]);
        for (half, out) in out.chunks_exact_mut(128).enumerate() {
            let (lows, highs) = (&block[64 * half..][..64], &block[128 + 32 * half..][..32]);
            for (run, out) in out.chunks_exact_mut(32).enumerate() {
                let lows = &lows[run % 2 * 32..][..32];
                for (part, out) in out.chunks_exact_mut(16).enumerate() {
                    let scale = d * f32::from(block[192 + 8 * half + 2 * run + part] as i8);
                    let bits = lows[16 * part..].iter().zip(&highs[16 * part..]);
                    for (out, (&low, &high)) in out.iter_mut().zip(bits) {
                        let q = low >> (run / 2 * 4) & 15 | (high >> (2 * run) & 3) << 4;
                        *out = scale * f32::from(q as i8 - 32);
                    }
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1.0, 2.0 and 0.5 as halves.
    const ONE: [u8; 2] = [0x00, 0x3c];
    const TWO: [u8; 2] = [0x00, 0x40];
    const HALF: [u8; 2] = [0x00, 0x38];

    fn block<const N: usize>(parts: &[(usize, &[u8])]) -> [u8; N] {
        let mut block = [0; N];
        for (at, bytes) in parts {
            block[*at..*at + bytes.len()].copy_from_slice(bytes);
        }
        block
    }

    #[test]
    fn eight_bits_have_a_sign() {
        let mut out = [0.0; 32];
        q8_0(&block::<34>(&[(0, &HALF), (2, &[4, 0xff])]), &mut out);
        assert_eq!(out[..3], [2.0, -0.5, 0.0]);
    }

    #[test]
    fn four_bits_fill_the_two_halves_of_a_block() {
        let mut out = [0.0; 32];
        q4_0(&block::<18>(&[(0, &TWO), (2, &[0x9f, 0x80])]), &mut out);
        assert_eq!((out[0], out[16], out[1], out[17], out[2]), (14.0, 2.0, -16.0, 0.0, -16.0));
        q4_1(&block::<20>(&[(0, &TWO), (2, &ONE), (4, &[0x9f])]), &mut out);
        assert_eq!((out[0], out[16], out[1]), (31.0, 19.0, 1.0));
    }

    #[test]
    fn the_fifth_bit_of_value_j_is_bit_j() {
        let mut out = [0.0; 32];
        // Fifth bits of values 0 and 17.
        q5_0(&block::<22>(&[(0, &ONE), (2, &[1, 0, 2, 0]), (6, &[0x21, 0x30])]), &mut out);
        assert_eq!((out[0], out[16], out[1], out[17]), (1.0, -14.0, -16.0, 3.0));
        q5_1(&block::<24>(&[(0, &ONE), (2, &HALF), (4, &[1, 0, 2, 0]), (8, &[0x21, 0x30])]), &mut out);
        assert_eq!((out[0], out[16], out[1], out[17]), (17.5, 2.5, 0.5, 19.5));
    }

    #[test]
    fn six_bit_scales_are_spread_over_twelve_bytes() {
        // Run 0: scale 1, minimum 2. Run 5: scale 0b11_0011, minimum 0b10_0001.
        let packed = block::<12>(&[(0, &[1, 0b1100_0000]), (4, &[2, 0b1000_0000]), (9, &[0b0001_0011])]);
        assert_eq!(scale_and_minimum(&packed, 0), (1.0, 2.0));
        assert_eq!(scale_and_minimum(&packed, 5), (51.0, 33.0));
        assert_eq!(scale_and_minimum(&packed, 1), (0.0, 0.0));
    }

    #[test]
    fn runs_of_a_k_block_have_their_own_scales() {
        let mut out = [0.0; 256];
        let scales = block::<12>(&[(0, &[3, 5]), (4, &[0, 1])]);
        q4_k(&block::<144>(&[(0, &TWO), (2, &HALF), (4, &scales), (16, &[0x72])]), &mut out);
        assert_eq!((out[0], out[32], out[1], out[33]), (12.0, 69.5, 0.0, -0.5));
        // The fifth bits of value 0 of run 0 and of run 1.
        q5_k(&block::<176>(&[(0, &TWO), (2, &HALF), (4, &scales), (16, &[3]), (48, &[0x72])]), &mut out);
        assert_eq!((out[0], out[32], out[1], out[33]), (108.0, 229.5, 0.0, -0.5));
    }

    #[test]
    fn six_bits_are_split_in_four_and_two() {
        let mut out = [0.0; 256];
        // Byte 0 serves runs 0 and 2, their upper bits are 1 and 3; runs 0 and 2 have scales 1 and −2.
        let parts: [(usize, &[u8]); 4] =
            [(0, &[0xa5]), (128, &[0b11_0001]), (192, &[1, 0, 0, 0, 0xfe]), (208, &TWO)];
        q6_k(&block::<210>(&parts), &mut out);
        assert_eq!((out[0], out[64], out[1], out[128]), (-22.0, -104.0, -64.0, 0.0));
    }
}
