//! The inner loops of [`crate::ops`], written or compiled for each vector instruction set and chosen at run time.
//!
//! Every kernel computes the sums of `ops/` in the same order with the same fused multiply-adds, so the
//! choice changes the speed and not one bit of a result. The exception is [`bf16_gemm`]: where the processor
//! multiplies bfloat16, long products of many rows have another order.

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
pub(super) mod gemm;
mod limits;
mod portable;
pub(super) mod q8;
#[cfg(target_arch = "x86_64")]
mod vnni;

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use gemm::{Packed, Scratch};
use half::{bf16, f16};
pub use limits::Multiplied;

use super::matrix::widen;
use super::memory;
use crate::checkpoint::Dtype;
use crate::config::Precision;
use crate::error::Result;
use crate::ops;
use crate::ops::matmul::LANES;
use crate::ops::quantize::Quantized;
use crate::stop::Stop;

/// The inner loops for one instruction set. A value of this type exists only for a set that the processor
/// has; that is what makes calling them sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    isa: Isa,
    /// What multiplies bfloat16, where it is used.
    #[cfg(target_arch = "x86_64")]
    bf16: Option<bf16_gemm::Unit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Isa {
    /// AVX-512 F, BW, DQ and VL: 16 values at once.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// The same with VNNI: int8 products of 64 values at once.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    /// AVX2, FMA and F16C: 8 values at once.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// What the compiler makes of the plain operations; serves Arm too.
    Portable,
}

/// Rows of a weight matrix as they are stored.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    /// The bytes of the rows, one after the other.
    pub(super) bytes: &'a [u8],
    /// Their number type.
    pub(super) dtype: Dtype,
    /// Values in a row.
    pub(super) inputs: usize,
    /// The scales of the matrix, where its values are int8.
    pub(super) scales: Option<GroupScales<'a>>,
    /// What a weight is rounded to before it is used.
    pub(super) precision: Precision,
}

/// The scales of a matrix of int8 values.
#[derive(Clone, Copy)]
pub(super) struct GroupScales<'a> {
    /// float32, little-endian, one a group of the whole matrix.
    pub(super) scales: &'a [[u8; 4]],
    /// Values that share a scale.
    pub(super) group: usize,
    /// The row of the matrix that `Rows::bytes` begins with.
    pub(super) first_row: usize,
}

/// 16 values where a vector of any width loads them at once, inside one line of the cache.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
pub(super) struct Aligned(pub(super) [f32; LANES]);

/// A few rows of activations with some room between them.
#[derive(Clone, Copy)]
pub(super) struct Spaced<'a> {
    values: &'a [f32],
    width: usize,
}

impl<'a> Spaced<'a> {
    /// Values between the rows, a line of the cache: with a power of two from one row to the next, all rows
    /// would share a few lines of it.
    const ROOM: usize = 16;

    /// Lays the rows of `x` out in `buffer`.
    pub(super) fn fill(x: &[f32], width: usize, buffer: &mut Vec<Aligned>) -> Result<()> {
        let stride = Spaced::new(&[], width).stride();
        let lines = (x.len() / width * stride).div_ceil(LANES);
        buffer.clear();
        memory::grow(buffer, lines)?;
        buffer.resize(lines, Aligned::zeroed());
        let rows = bytemuck::cast_slice_mut(buffer).chunks_exact_mut(stride);
        for (x, row) in x.chunks_exact(width).zip(rows) {
            row[..width].copy_from_slice(x);
        }
        Ok(())
    }

    /// What [`Spaced::fill`] laid out.
    pub(super) fn new(values: &'a [Aligned], width: usize) -> Self {
        Self { values: bytemuck::cast_slice(values), width }
    }

    /// Values from one row to the next.
    fn stride(self) -> usize {
        self.width.next_multiple_of(LANES) + Self::ROOM
    }

    /// The rows.
    pub(super) fn rows(self) -> impl Iterator<Item = &'a [f32]> {
        self.values.chunks_exact(self.stride()).map(move |row| &row[..self.width])
    }

    /// The rows after the first `count`.
    fn skip(self, count: usize) -> Self {
        Self { values: &self.values[count * self.stride()..], ..self }
    }
}

impl<'a> Rows<'a> {
    /// Number of rows.
    pub(super) fn count(self) -> usize {
        self.bytes.len() / self.range(0..self.inputs).len()
    }

    /// The bytes of row `row`.
    pub(super) fn row(self, row: usize) -> &'a [u8] {
        let length = self.range(0..self.inputs).len();
        &self.bytes[row * length..(row + 1) * length]
    }

    /// Whether a weight is used as it lies there, without a scale or rounding.
    fn plain(self) -> bool {
        match self.dtype {
            Dtype::F32 => self.precision != Precision::Bf16,
            Dtype::F16 => self.precision != Precision::Bf16,
            Dtype::BF16 => true,
            _ => false,
        }
    }

    /// Row `row` of int8 values, with its scales.
    #[inline(always)]
    pub(super) fn quantized(self, row: usize) -> Option<Quantized<'a>> {
        let GroupScales { scales, group, first_row } = self.scales?;
        let first = (first_row + row) * self.inputs;
        Some(Quantized { values: bytemuck::cast_slice(self.row(row)), scales, group, first })
    }

    /// Some values of row `row` as float32, which begin and end with a block of the number type: exactly
    /// where they are floats, by the formula of the format where they are stored in blocks or groups, and
    /// rounded where the precision asks for it.
    #[inline(always)]
    pub(super) fn widen(self, row: usize, inputs: Range<usize>, out: &mut [f32]) {
        match self.quantized(row) {
            Some(quantized) => quantized.dequantize(inputs.start, &mut out[..inputs.len()]),
            None => widen(self.dtype, &self.row(row)[self.range(inputs)], out),
        }
        if self.dtype != Dtype::BF16 {
            ops::round::row(self.precision, out);
        }
    }

    /// Where in a row's bytes the values of `inputs` are, which begin and end with a block of the number type.
    fn range(self, inputs: Range<usize>) -> Range<usize> {
        let at = |input: usize| input / self.dtype.block() * self.dtype.block_bytes();
        at(inputs.start)..at(inputs.end)
    }
}

impl Kernel {
    /// The kernels that this processor can run, fastest first; the last is always `portable`.
    pub fn available() -> Vec<Self> {
        let mut kernels = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            let avx512 = avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            let vnni = avx512 && is_x86_feature_detected!("avx512vnni");
            let of_unit = |unit| Self { isa: Isa::Avx512Vnni, bf16: Some(unit) };
            kernels.extend((vnni && amx::available()).then_some(of_unit(bf16_gemm::Unit::Amx)));
            kernels.extend((vnni && avx512bf16::available()).then_some(of_unit(bf16_gemm::Unit::Avx512Bf16)));
            kernels.extend(vnni.then_some(Self::new(Isa::Avx512Vnni)));
            kernels.extend(avx512.then_some(Self::new(Isa::Avx512)));
            kernels.extend(avx2.then_some(Self::new(Isa::Avx2)));
        }
        kernels.push(Self::new(Isa::Portable));
        kernels
    }

    /// The plain kernel of an instruction set that the processor has.
    fn new(isa: Isa) -> Self {
        Self {
            isa,
            #[cfg(target_arch = "x86_64")]
            bf16: None,
        }
    }

    /// The fastest instruction set with plain loops in place of a unit for bfloat16: what is chosen where there is
    /// such a unit can be tested where there is none.
    #[cfg(all(test, target_arch = "x86_64"))]
    pub(crate) fn plain_unit() -> Self {
        Self { bf16: Some(bf16_gemm::Unit::Plain), ..Self::default() }
    }

    /// Its name, as `--cpu-kernel` takes it.
    pub fn name(self) -> &'static str {
        #[cfg(target_arch = "x86_64")]
        if let Some(unit) = self.bf16 {
            return unit.name();
        }
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => "avx512vnni",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => "avx2",
            Isa::Portable => "portable",
        }
    }

    /// out (rows of x)(rows of w) = x · wᵀ for a few rows of `x`, reading each weight once, in the
    /// number type in which it is stored. `scratch` is for one row of weights.
    pub(super) fn dots(self, x: Spaced<'_>, w: Rows<'_>, out: &mut [&mut [f32]], scratch: &mut Vec<f32>) {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni if !w.plain() => avx512::dots_of_blocks(x, w, out, scratch),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => avx512::dots(x, w, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::dots(x, w, out, scratch),
            Isa::Portable => portable::dots(x, w, out, scratch),
        }
    }

    /// The same for many rows of `x`, packed in the order in which they are read.
    pub(super) fn gemm(
        self,
        x: &Packed,
        w: Rows<'_>,
        out: &mut [&mut [f32]],
        scratch: &mut Scratch,
        stop: &Stop,
    ) -> Result<()> {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => gemm::gemm::<avx512::Tile>(x, w, out, scratch, stop),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => gemm::gemm::<avx2::Tile>(x, w, out, scratch, stop),
            Isa::Portable => gemm::gemm::<portable::Tile>(x, w, out, scratch, stop),
        }
    }

    /// out (rows of x)(rows of w) = x · wᵀ in int8, as [`ops::quantize::dot`] computes it.
    pub(super) fn q8(self, x: &q8::Quantized, w: Rows<'_>, out: &mut [&mut [f32]]) {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => vnni::q8(x, w, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::q8(x, w, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::q8(x, w, out),
            Isa::Portable => portable::q8(x, w, out),
        }
    }

    /// Whether [`Kernel::q8`] reads many rows of activations in tiles.
    pub(super) fn tiles_q8(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.isa == Isa::Avx512Vnni;
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// What multiplies inputs of `width` values with bfloat16 weights as bfloat16 here, where anything does.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn bf16_unit(self, precision: Precision, width: usize) -> Option<bf16_gemm::Unit> {
        self.bf16.filter(|unit| unit.takes_width(width) && unit.takes(Dtype::BF16, precision))
    }

    /// Tokens that a tile of [`Kernel::gemm`] takes at once.
    pub(super) fn tile_tokens(self) -> usize {
        use gemm::Tile;
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => avx512::Tile::TOKENS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::Tile::TOKENS,
            Isa::Portable => portable::Tile::TOKENS,
        }
    }

    /// [`ops::attention::qk`].
    pub(super) fn qk(self, query: &[f32], keys: &[f32], stride: usize, out: &mut [f32]) {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => avx512::qk(query, keys, stride, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::qk(query, keys, stride, out),
            Isa::Portable => ops::attention::qk(query, keys, stride, out),
        }
    }

    /// [`ops::attention::mix`].
    pub(super) fn mix(self, weights: &[f32], values: &[f32], stride: usize, out: &mut [f32]) {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => avx512::mix(weights, values, stride, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::mix(weights, values, stride, out),
            Isa::Portable => ops::attention::mix(weights, values, stride, out),
        }
    }

    /// out = values, exactly.
    pub(super) fn widen_f16(self, values: &[f16], out: &mut [f32]) {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => avx512::widen_f16(values, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => portable::widen_f16(values, out),
            Isa::Portable => portable::widen_f16(values, out),
        }
    }

    /// out = values, exactly.
    pub(super) fn widen_bf16(self, values: &[bf16], out: &mut [f32]) {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => avx512::widen_bf16(values, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::widen_bf16(values, out),
            Isa::Portable => portable::widen_bf16(values, out),
        }
    }

    /// [`ops::quantize::quantize`].
    pub(super) fn quantize(self, x: &[f32], group: usize, values: &mut [i8], scales: &mut [f32]) {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => avx512::quantize(x, group, values, scales),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::quantize(x, group, values, scales),
            Isa::Portable => ops::quantize::quantize(x, group, values, scales),
        }
    }

    /// [`ops::softmax::softmax`].
    pub(crate) fn softmax(self, row: &mut [f32]) {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => avx512::softmax(row),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::softmax(row),
            Isa::Portable => ops::softmax::softmax(row),
        }
    }

    /// [`ops::swiglu::silu_all`].
    pub(super) fn silu(self, gate: &[f32], out: &mut [f32]) {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => avx512::silu(gate, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::silu(gate, out),
            Isa::Portable => ops::swiglu::silu_all(gate, out),
        }
    }

    /// [`ops::rms_norm::rms_norm`].
    pub(super) fn rms_norm(self, x: &[f32], weight: &[f32], eps: f32, precision: Precision, out: &mut [f32]) {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => avx512::rms_norm(x, weight, eps, precision, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::rms_norm(x, weight, eps, precision, out),
            Isa::Portable => ops::rms_norm::rms_norm(x, weight, eps, precision, out),
        }
    }
}

impl Default for Kernel {
    /// The fastest that this processor can run.
    fn default() -> Self {
        Self::available()[0]
    }
}

#[cfg(test)]
mod tests;
