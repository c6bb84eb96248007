//! Loops that do nothing but reach the machine's limits, to measure the kernels by.

use super::{Isa, Kernel};
use crate::ops::matmul::LANES;

/// Independent sums that [`Kernel::multiply_limit`] keeps under way, in groups of 16 values: as many as
/// hide the latency of a multiply-add.
pub(super) const CHAINS: usize = 12;

impl Kernel {
    /// Reads `bytes` once (to the last 256) as fast as this instruction set can, and returns something made
    /// of all of them, so that no read is left out.
    pub fn read_limit(self, bytes: &[u8]) -> u64 {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => super::avx512::read(bytes),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => super::avx2::read(bytes),
            Isa::Portable => {
                let words = bytes.as_chunks::<8>().0.iter();
                words.fold(0, |all, word| all ^ u64::from_ne_bytes(*word))
            }
        }
    }

    /// Does `rounds` · 12 · 16 multiply-adds on values in registers, and returns something made of them.
    pub fn multiply_limit(self, rounds: usize) -> f32 {
        let factor = std::hint::black_box(0.999);
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => super::avx512::multiply(rounds, factor),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => super::avx2::multiply(rounds, factor),
            Isa::Portable => {
                let mut sums = [1.0_f32; CHAINS * LANES];
                for _ in 0..rounds {
                    for sum in &mut sums {
                        *sum = sum.mul_add(factor, 1.0 - factor);
                    }
                }
                sums.iter().sum()
            }
        }
    }

    /// Floating-point operations of one round of [`Kernel::multiply_limit`].
    pub const MULTIPLY_ROUND: usize = 2 * CHAINS * LANES;
}
