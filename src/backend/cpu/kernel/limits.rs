//! Loops that do nothing but reach the machine's limits, to measure the kernels by.

use super::{Isa, Kernel};
use crate::ops::matmul::LANES;

/// Words that [`read`] takes in one go: four vectors of 64 bytes.
pub(super) const WORDS: usize = 32;

/// Reads every whole 256 bytes of `bytes` once and returns their exclusive or, so that no read is left out.
#[inline(always)]
pub(super) fn read(bytes: &[u8], out: &mut [u64; WORDS]) {
    for chunk in bytes.as_chunks::<{ WORDS * 8 }>().0 {
        for (out, word) in out.iter_mut().zip(chunk.as_chunks::<8>().0) {
            *out ^= u64::from_ne_bytes(*word);
        }
    }
}

/// `rounds` fused multiply-adds on N·16 values that stay in registers.
#[inline(always)]
pub(super) fn multiply<const N: usize>(rounds: usize, factor: f32, out: &mut [f32]) {
    let mut sums = [[1.0_f32; LANES]; N];
    let (x, y) = ([factor; LANES], [1.0 - factor; LANES]);
    for _ in 0..rounds {
        for sums in &mut sums {
            for lane in 0..LANES {
                sums[lane] = sums[lane].mul_add(x[lane], y[lane]);
            }
        }
    }
    for (out, sums) in out.iter_mut().zip(sums) {
        *out = sums.iter().sum();
    }
}

/// Independent sums that [`Kernel::multiply_limit`] keeps under way, in groups of 16 values.
pub(super) const CHAINS: usize = 8;

impl Kernel {
    /// Reads `bytes` once as fast as this instruction set can.
    pub fn read_limit(self, bytes: &[u8]) -> u64 {
        let mut out = [0; WORDS];
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => super::avx512::read(bytes, &mut out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => super::avx2::read(bytes, &mut out),
            Isa::Portable => read(bytes, &mut out),
        }
        out.iter().fold(0, |all, word| all ^ word)
    }

    /// Does `rounds` · 8 · 16 multiply-adds on values in registers, and returns something made of them.
    pub fn multiply_limit(self, rounds: usize) -> f32 {
        let mut out = [0.0; CHAINS];
        let factor = std::hint::black_box(0.999);
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => super::avx512::multiply(rounds, factor, &mut out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => super::avx2::multiply(rounds, factor, &mut out),
            Isa::Portable => multiply::<CHAINS>(rounds, factor, &mut out),
        }
        out.iter().sum()
    }

    /// Floating-point operations of one round of [`Kernel::multiply_limit`].
    pub const MULTIPLY_ROUND: usize = 2 * CHAINS * LANES;
}
