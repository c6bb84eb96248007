//! Reproducible random numbers: the same formula gives the same numbers on every device.

use crate::error::Result;
use crate::stop::Stop;

/// Bytes generated between two checks for a stop request.
const PIECE: usize = 1 << 20;

/// Random bytes: 64-bit word i is splitmix64 of seed + i (Steele, Lea and Flood, 2014). In each block of `block` bytes,
/// the eight bytes from byte `at` on are masked: bits outside `keep` are cleared, those in `set` are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noise {
    /// The seed.
    pub seed: u64,
    /// The bits that stay random.
    pub keep: u64,
    /// The bits that are set.
    pub set: u64,
    /// Bytes per block, 8 or more.
    pub block: usize,
    /// The first of the eight bytes in a block.
    pub at: usize,
}

impl Noise {
    /// Random words, each made of the bits in `keep` and `set`.
    pub const fn words(seed: u64, keep: u64, set: u64) -> Self {
        Self { seed, keep, set, block: 8, at: 0 }
    }

    /// Word number `i`, before `keep` and `set`.
    fn word(self, i: usize) -> u64 {
        let mut x = self.seed.wrapping_add(i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    /// Fills `out` with the bytes.
    ///
    /// # Errors
    /// [`crate::error::Error::Interrupted`] if a stop was requested.
    pub(super) fn fill(self, out: &mut [u8], stop: &Stop) -> Result<()> {
        for (piece, out) in out.chunks_mut(PIECE).enumerate() {
            stop.check()?;
            for (i, out) in out.chunks_mut(8).enumerate() {
                let word = self.word(piece * (PIECE / 8) + i).to_le_bytes();
                out.copy_from_slice(&word[..out.len()]);
            }
            self.mask(piece * PIECE, out);
        }
        Ok(())
    }

    /// Masks the bytes in `out`, which begin with byte number `first`.
    fn mask(self, first: usize, out: &mut [u8]) {
        let (keep, set) = (self.keep.to_le_bytes(), self.set.to_le_bytes());
        // The masked bytes of the previous block may extend into `out`.
        for block in (first / self.block).saturating_sub(1)..(first + out.len()).div_ceil(self.block) {
            let place = block * self.block + self.at;
            for (byte, (keep, set)) in (place..).zip(keep.iter().zip(set)) {
                if let Some(out) = byte.checked_sub(first).and_then(|byte| out.get_mut(byte)) {
                    *out = *out & keep | set;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stop::testing::stops_at_every_look;

    #[test]
    fn a_large_tensor_of_random_numbers_stops_between_its_pieces() {
        let noise = Noise::words(1, u64::MAX, 0);
        let mut out = vec![0; 4 * PIECE + 3];
        let looks = stops_at_every_look("random numbers", 0, |stop| {
            out.fill(0);
            noise.fill(&mut out, stop)?;
            assert_eq!(out[PIECE..PIECE + 8], noise.word(PIECE / 8).to_le_bytes());
            assert_eq!(out[4 * PIECE..], noise.word(PIECE / 2).to_le_bytes()[..3]);
            Ok(())
        });
        assert_eq!(looks, 5);
    }

    #[test]
    fn bits_are_cleared_and_set_at_one_place_of_each_block() {
        let (block, at) = (17, 13);
        let noise = Noise { seed: 3, keep: 0x0123_4567_89ab_cdef, set: 0x1020_4080_0102_0408, block, at };
        let (mut out, mut all) = (vec![0; 2 * PIECE + 5], vec![0; 2 * PIECE + 5]);
        noise.fill(&mut out, &Stop::default()).unwrap();
        Noise::words(3, u64::MAX, 0).fill(&mut all, &Stop::default()).unwrap();
        let (keep, set) = (noise.keep.to_le_bytes(), noise.set.to_le_bytes());
        for (i, (out, random)) in out.iter().zip(all).enumerate() {
            let expected = match i.checked_sub(at).map(|i| i % block) {
                Some(k @ 0..8) => random & keep[k] | set[k],
                _ => random,
            };
            assert_eq!(*out, expected, "byte {i}");
        }
    }
}
