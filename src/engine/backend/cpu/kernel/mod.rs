//! The inner loops of [`llama_trace_core::ops`], written or compiled for each vector instruction set. The instruction
//! set is chosen at run time.
//!
//! Every kernel computes the sums of `ops/` in the same order with the same fused multiply-adds. So the choice changes
//! the speed, but no bit of a result. There are two exceptions. [`bf16_gemm`]: if the processor multiplies bfloat16, long
//! products of many rows have another order of summation. The kernel `wasm` has the same order, but rounds each product
//! before it is added ([`portable`]).

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512bf16;
#[cfg(target_arch = "x86_64")]
pub(super) mod bf16_gemm;
#[cfg(target_arch = "x86_64")]
pub(super) mod bf16_packed;
#[cfg(target_arch = "x86_64")]
pub(super) mod bf16_tiles;
#[cfg(target_arch = "x86_64")]
pub(super) mod bf16_unit;
mod blocks;
#[cfg(target_arch = "x86_64")]
mod compiled;
#[cfg(target_arch = "x86_64")]
mod emulated;
pub(super) mod gemm;
mod isa;
mod limits;
mod portable;
mod processor;
pub(super) mod q8;
mod readings;
mod rows;
#[cfg(target_arch = "x86_64")]
mod vectors;
#[cfg(target_arch = "x86_64")]
mod vnni;

use std::sync::OnceLock;

pub(super) use isa::Isa;
use limits::CHAINS;
pub use limits::Multiplied;
use processor::{Processor, Reading};
pub(super) use rows::{Aligned, GroupScales, Rows, Spaced, widen, with_format};

use llama_trace_core::config::Precision;
use llama_trace_core::ops::matmul::LANES;
use llama_trace_core::tensor::Dtype;

/// The inner loops for one instruction set. A value of this type exists only for a set that the processor supports.
/// This makes calling the loops sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    pub(super) isa: &'static dyn Isa,
    /// The unit that multiplies bfloat16, if one is used.
    #[cfg(target_arch = "x86_64")]
    bf16: Option<bf16_unit::Unit>,
    reading: Reading,
}

impl Kernel {
    /// Returns the kernel `wasm`, for processors without a fused multiply-add. Its arithmetic is
    /// [`Arithmetic::Separate`](llama_trace_core::config::Arithmetic::Separate), so its results have other bits
    /// than those of all other kernels. They are the same on every processor.
    pub fn wasm() -> Self {
        Self::new(&portable::WASM)
    }

    /// Returns the kernels that a user can select: those of [`Self::available`], and `wasm`.
    pub fn selectable() -> Vec<Self> {
        let mut kernels = Self::available();
        kernels.push(Self::wasm());
        kernels
    }

    /// Returns the kernels that this processor can run and that have the default arithmetic. The presumably fastest is
    /// the first. The last is always `portable`.
    pub fn available() -> Vec<Self> {
        let mut kernels = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let [avx2, avx512, vnni] = vectors::vectors();
            let of_unit = |unit| Self { bf16: Some(unit), ..Self::new(&avx512::set::VNNI) };
            kernels.extend((vnni && amx::available()).then_some(of_unit(bf16_unit::Unit::Amx)));
            let of_vectors = bf16_unit::Unit::Avx512Bf16 { in_place: Reading::here().in_place };
            kernels.extend((vnni && avx512bf16::available()).then_some(of_unit(of_vectors)));
            kernels.extend(vnni.then_some(Self::new(&avx512::set::VNNI)));
            kernels.extend(avx512.then_some(Self::new(&avx512::set::AVX512)));
            let avxvnni = avx2 && (is_x86_feature_detected!("avxvnni") || emulated::on());
            kernels.extend(avxvnni.then_some(Self::new(&avx2::VNNI)));
            kernels.extend(avx2.then_some(Self::new(&avx2::AVX2)));
        }
        kernels.push(Self::new(&portable::PORTABLE));
        kernels
    }

    /// Returns the kernel of an instruction set that the processor supports, without a bfloat16 unit.
    fn new(isa: &'static dyn Isa) -> Self {
        Self {
            isa,
            #[cfg(target_arch = "x86_64")]
            bf16: None,
            reading: Reading::here(),
        }
    }

    /// Returns the fastest instruction set, with plain loops in place of a bfloat16 unit. With this kernel, a machine
    /// without such a unit can test the code that chooses between unit and loops.
    #[cfg(all(any(test, feature = "testing"), target_arch = "x86_64"))]
    pub fn plain_unit() -> Self {
        Self { bf16: Some(bf16_unit::Unit::Plain), ..Self::default() }
    }

    /// The kernel's name, as `--cpu-kernel` takes it.
    pub fn name(self) -> &'static str {
        #[cfg(target_arch = "x86_64")]
        if let Some(unit) = self.bf16 {
            return unit.name();
        }
        self.isa.name()
    }

    /// [`Isa::dots`] with the number of rows that this kernel reads side by side.
    pub(super) fn dots(self, x: Spaced<'_>, w: Rows<'_>, out: &mut [&mut [f32]], scratch: &mut Vec<f32>) {
        self.isa.dots(x, w, self.reading.streams, out, scratch);
    }

    /// Returns the tiling in which int8 products read many rows of activations, if they use tiles.
    pub(super) fn tiles_q8(self) -> Option<q8::Tiling> {
        #[cfg(target_arch = "x86_64")]
        if self.has_int8_tiles() {
            return Some(vnni::TILING_AMX);
        }
        self.isa.tiling()
    }

    /// Whether this kernel multiplies int8 values of many tokens with AMX.
    #[cfg(target_arch = "x86_64")]
    fn has_int8_tiles(self) -> bool {
        self.bf16 == Some(bf16_unit::Unit::Amx) && amx::multiplies_int8()
    }

    /// Returns the unit that multiplies bfloat16 weights with rows of `width` inputs, if there is one.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn bf16_unit(self, precision: Precision, width: usize) -> Option<bf16_unit::Unit> {
        self.bf16.filter(|unit| unit.takes_width(width) && unit.takes(Dtype::BF16, precision))
    }

    /// Returns the number of weight rows in a tile for products of many tokens without a bfloat16 unit.
    pub(super) fn tile_rows(self, precision: Precision) -> usize {
        if cfg!(target_arch = "x86_64") && precision.group().is_some() { LANES } else { self.isa.tile().0 }
    }

    /// [`ops::softmax::softmax`](llama_trace_core::ops::softmax::softmax).
    pub(crate) fn softmax(self, row: &mut [f32]) {
        self.isa.softmax(row);
    }
}

impl Kernel {
    /// Reads `bytes` once (to the last multiple of 256) with the widest loads of this instruction set. Returns a value
    /// computed from all bytes that were read, so the compiler cannot remove the reads. `ahead` adds prefetches, if the
    /// kernel has any.
    pub fn read_limit(self, bytes: &[u8], ahead: bool) -> u64 {
        self.isa.read(bytes, ahead)
    }

    /// The number of bytes that one load of [`Kernel::read_limit`] reads. Kernels with the same width have the same
    /// loop.
    pub fn read_width(self) -> usize {
        self.isa.read_width()
    }

    /// Returns the kind of multiplication in products of many rows with a matrix of number type `dtype` in `precision`.
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "there is no bfloat16 unit"))]
    pub fn multiplied(self, precision: Precision, dtype: Dtype) -> Multiplied {
        #[cfg(target_arch = "x86_64")]
        if self.bf16.is_some_and(|unit| unit.takes(dtype, precision)) {
            return match precision {
                Precision::Bf16 => Multiplied::BFloat16,
                _ => Multiplied::ThreeBFloat16,
            };
        }
        match precision {
            Precision::Q8 { .. } if self.tiles_q8().is_some() => Multiplied::Int8,
            _ => Multiplied::Float32,
        }
    }

    /// Multiplies and adds values in registers with the kernel's widest multiply instruction for `multiplied`. Returns
    /// a value computed from the results. [`Kernel::multiply_round`] gives the work of one round.
    pub fn multiply_limit(self, multiplied: Multiplied, rounds: usize) -> f32 {
        #[cfg(target_arch = "x86_64")]
        match (multiplied, self.bf16) {
            (Multiplied::Int8, _) if self.has_int8_tiles() => {
                return amx::multiply::<true>(rounds / bf16_unit::AMX_ROUNDS);
            }
            (Multiplied::BFloat16 | Multiplied::ThreeBFloat16, Some(unit)) => return unit.multiply(rounds),
            _ => {}
        }
        match multiplied {
            Multiplied::Int8 => self.isa.multiply_int8(rounds, std::hint::black_box(0x0102_0304)),
            _ => self.isa.multiply(rounds, std::hint::black_box(0.999)),
        }
    }

    /// The number of multiplications and additions in one round of [`Kernel::multiply_limit`], as they count for a
    /// product. If a product takes three multiplications, this is a third of the executed multiplications.
    pub fn multiply_round(self, multiplied: Multiplied) -> f64 {
        let operations = (2 * CHAINS * LANES) as f64;
        #[cfg(target_arch = "x86_64")]
        let bf16 = self.bf16.map_or(operations, |unit| unit.multiply_round() as f64);
        #[cfg(target_arch = "x86_64")]
        // A tile holds twice as many int8 values as bfloat16 values.
        let int8 = if self.has_int8_tiles() { 2.0 * bf16 } else { 4.0 * operations };
        #[cfg(not(target_arch = "x86_64"))]
        let (bf16, int8) = (operations, 4.0 * operations);
        match multiplied {
            Multiplied::Float32 => operations,
            Multiplied::BFloat16 => bf16,
            Multiplied::ThreeBFloat16 => bf16 / 3.0,
            Multiplied::Int8 => int8,
        }
    }
}

impl Default for Kernel {
    /// The fastest kernel in the table for this kind of processor, or else the first of [`Kernel::available`].
    fn default() -> Self {
        static DEFAULT: OnceLock<Kernel> = OnceLock::new();
        *DEFAULT.get_or_init(|| {
            let available = Self::available();
            let found = Processor::here().and_then(|processor| processor.fastest());
            let found = available.iter().find(|kernel| found.is_some_and(|(name, _)| kernel.name() == name));
            *found.unwrap_or(&available[0])
        })
    }
}

#[cfg(test)]
mod tests;
