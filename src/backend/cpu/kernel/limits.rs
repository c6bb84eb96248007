//! Loops that do nothing but reach the machine's limits, to measure the kernels by.

use super::{Isa, Kernel};
use crate::config::Precision;
use crate::ops::matmul::LANES;

/// Independent sums that [`Kernel::multiply_limit`] keeps under way, in groups of 16 values: as many as
/// hide the latency of a multiply-add.
pub(super) const CHAINS: usize = 12;

impl Kernel {
    /// Reads `bytes` once (to the last 256) as fast as this instruction set can, and returns something made
    /// of all of them, so that no read is left out.
    pub fn read_limit(self, bytes: &[u8]) -> u64 {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => super::avx512::read(bytes),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => super::avx2::read(bytes),
            Isa::Portable => {
                let words = bytes.as_chunks::<8>().0.iter();
                words.fold(0, |all, word| all ^ u64::from_ne_bytes(*word))
            }
        }
    }

    /// Multiplies and adds values in registers, `rounds` times 12 vectors of the widest multiply that this
    /// instruction set has for `precision`, and returns something made of them.
    pub fn multiply_limit(self, precision: Precision, rounds: usize) -> f32 {
        #[cfg(target_arch = "x86_64")]
        if self.multiplies_int8(precision) {
            return super::vnni::multiply(rounds, std::hint::black_box(0x0102_0304));
        }
        let factor = std::hint::black_box(0.999);
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => super::avx512::multiply(rounds, factor),
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

    /// Multiplications and additions of one round of [`Kernel::multiply_limit`].
    pub fn multiply_round(self, precision: Precision) -> usize {
        let operations = 2 * CHAINS * LANES;
        if self.multiplies_int8(precision) { 4 * operations } else { operations }
    }

    /// Whether products of `precision` are made of int8 multiplications here; else they are float32's.
    pub fn multiplies_int8(self, precision: Precision) -> bool {
        precision.group().is_some() && self.tiles_q8()
    }
}
