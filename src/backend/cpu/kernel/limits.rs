//! Loops that do nothing but reach the machine's limits, to measure the kernels by.

use std::fmt;

use super::{Isa, Kernel};
use crate::checkpoint::Dtype;
use crate::config::Precision;
use crate::ops::matmul::LANES;

/// Independent sums that [`Kernel::multiply_limit`] keeps under way, in groups of 16 values: as many as
/// hide the latency of a multiply-add.
pub(super) const CHAINS: usize = 12;

impl Kernel {
    /// Reads `bytes` once (to the last 256) with the widest loads of this instruction set, and returns something made
    /// of all of them, so that no read is left out. With `ahead`, where it can, it asks for what comes later too.
    pub fn read_limit(self, bytes: &[u8], ahead: bool) -> u64 {
        match (self.isa, ahead) {
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512 | Isa::Avx512Vnni, true) => super::avx512::read::<true>(bytes),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512 | Isa::Avx512Vnni, false) => super::avx512::read::<false>(bytes),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, _) => super::avx2::read(bytes),
            (Isa::Portable, _) => {
                let words = bytes.as_chunks::<8>().0.iter();
                words.fold(0, |all, word| all ^ u64::from_ne_bytes(*word))
            }
        }
    }

    /// What the products of many rows with a matrix of number type `dtype` are made of in `precision`.
    pub fn multiplied(self, precision: Precision, dtype: Dtype) -> Multiplied {
        #[cfg(target_arch = "x86_64")]
        if self.bf16.is_some_and(|unit| unit.takes(dtype, precision)) {
            return match precision {
                Precision::Bf16 => Multiplied::BFloat16,
                _ => Multiplied::ThreeBFloat16,
            };
        }
        match precision {
            Precision::Q8 { .. } if self.tiles_q8() => Multiplied::Int8,
            _ => Multiplied::Float32,
        }
    }

    /// Multiplies and adds values in registers with the widest multiply that this kernel has for `multiplied`, and
    /// returns something made of them. A round is [`Kernel::multiply_round`].
    pub fn multiply_limit(self, multiplied: Multiplied, rounds: usize) -> f32 {
        #[cfg(target_arch = "x86_64")]
        match (multiplied, self.bf16) {
            (Multiplied::Int8, _) => return super::vnni::multiply(rounds, std::hint::black_box(0x0102_0304)),
            (Multiplied::BFloat16 | Multiplied::ThreeBFloat16, Some(unit)) => return unit.multiply(rounds),
            _ => {}
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

    /// Multiplications and additions of one round of [`Kernel::multiply_limit`], as many as count for a product:
    /// where it takes three, a third of those that are done.
    pub fn multiply_round(self, multiplied: Multiplied) -> f64 {
        let operations = (2 * CHAINS * LANES) as f64;
        #[cfg(target_arch = "x86_64")]
        let bf16 = self.bf16.map_or(operations, |unit| unit.multiply_round() as f64);
        #[cfg(not(target_arch = "x86_64"))]
        let bf16 = operations;
        match multiplied {
            Multiplied::Float32 => operations,
            Multiplied::BFloat16 => bf16,
            Multiplied::ThreeBFloat16 => bf16 / 3.0,
            Multiplied::Int8 => 4.0 * operations,
        }
    }
}

/// What products are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Multiplied {
    /// Products in float32.
    Float32,
    /// Products in bfloat16, summed in float32.
    BFloat16,
    /// Products in float32, each made of three in bfloat16.
    ThreeBFloat16,
    /// Products in int8, summed in int32.
    Int8,
}

impl fmt::Display for Multiplied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Float32 => "float32",
            Self::BFloat16 => "bfloat16",
            Self::ThreeBFloat16 => "float32 made of bfloat16",
            Self::Int8 => "int8",
        })
    }
}
