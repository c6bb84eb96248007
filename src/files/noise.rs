//! Random numbers that are the same wherever they are made: here, or by a device that has the same formula.

use crate::error::Result;
use crate::stop::Stop;

/// Bytes that are made between two looks at the request to stop.
const PIECE: usize = 1 << 20;

/// Random words of 64 bits: word i is splitmix64 of seed + i (Steele, Lea and Flood, 2014), of which the bits in `keep`
/// stay as they are and those in `set` are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noise {
    /// Where the numbers start.
    pub seed: u64,
    /// The bits that are random.
    pub keep: u64,
    /// The bits that are set.
    pub set: u64,
}

impl Noise {
    /// Word number `i`.
    fn word(self, i: usize) -> u64 {
        let mut x = self.seed.wrapping_add(i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ x >> 31) & self.keep | self.set
    }

    /// Writes the words over `out`, of the last as many bytes as there is room for.
    ///
    /// # Errors
    /// [`crate::error::Error::Interrupted`] where it was asked to stop.
    pub(super) fn fill(self, out: &mut [u8], stop: &Stop) -> Result<()> {
        for (piece, out) in out.chunks_mut(PIECE).enumerate() {
            stop.check()?;
            for (i, out) in out.chunks_mut(8).enumerate() {
                let word = self.word(piece * (PIECE / 8) + i).to_le_bytes();
                out.copy_from_slice(&word[..out.len()]);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stop::tests::stops_at_every_look;

    #[test]
    fn a_large_tensor_of_random_numbers_stops_between_its_pieces() {
        let noise = Noise { seed: 1, keep: u64::MAX, set: 1 };
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
}
