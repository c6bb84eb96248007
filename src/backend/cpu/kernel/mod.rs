//! The inner loops of [`crate::ops`], written or compiled for each vector instruction set and chosen at run time.
//!
//! Every kernel computes the sums of `ops/` in the same order with the same fused multiply-adds, so the
//! choice changes the speed and not one bit of a result.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(super) mod gemm;
mod limits;
mod portable;

use std::ops::Range;

use gemm::{Packed, Scratch};

use super::matrix::widen;
use crate::checkpoint::Dtype;
use crate::config::Precision;
use crate::ops;
use crate::ops::quantize::Quantized;

/// The inner loops for one instruction set. A value of this type exists only for a set that the processor
/// has; that is what makes calling them sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel(Isa);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Isa {
    /// AVX-512 F, BW, DQ and VL: 16 values at once.
    #[cfg(target_arch = "x86_64")]
    Avx512,
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

/// Quantised rows of activations: each with its own groups, the last of them short where it must be.
#[derive(Clone, Copy)]
pub(super) struct QuantizedRows<'a> {
    /// (rows, inputs)
    pub(super) values: &'a [i8],
    /// (rows, groups)
    pub(super) scales: &'a [f32],
    /// Values in a row.
    pub(super) inputs: usize,
    /// Values that share a scale.
    pub(super) group: usize,
}

impl<'a> QuantizedRows<'a> {
    /// Number of rows.
    pub(super) fn count(self) -> usize {
        self.values.len() / self.inputs
    }

    /// The values and the scales of row `row`.
    #[inline(always)]
    pub(super) fn row(self, row: usize) -> (&'a [i8], &'a [f32]) {
        let groups = self.inputs.div_ceil(self.group);
        (&self.values[row * self.inputs..][..self.inputs], &self.scales[row * groups..][..groups])
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
        ops::round::row(self.precision, out);
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
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            kernels.extend((avx2 && avx512).then_some(Self(Isa::Avx512)));
            kernels.extend(avx2.then_some(Self(Isa::Avx2)));
        }
        kernels.push(Self(Isa::Portable));
        kernels
    }

    /// Its name, as `--cpu-kernel` takes it.
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => "avx2",
            Isa::Portable => "portable",
        }
    }

    /// columns (rows of w, rows of x) = (x · wᵀ)ᵀ for a few rows of `x`, reading each weight once, in the
    /// number type in which it is stored. `scratch` has room for one row of weights.
    pub(super) fn dots(self, x: &[f32], w: Rows<'_>, columns: &mut [f32], scratch: &mut [f32]) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if !w.plain() => avx512::dots_of_blocks(x, w, columns, scratch),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::dots(x, w, columns),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::dots(x, w, columns, scratch),
            Isa::Portable => portable::dots(x, w, columns, scratch),
        }
    }

    /// The same for many rows of `x`, packed in the order in which they are read.
    pub(super) fn gemm(self, x: &Packed, w: Rows<'_>, columns: &mut [f32], scratch: &mut Scratch) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => gemm::gemm::<avx512::Tile>(x, w, columns, scratch),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => gemm::gemm::<avx2::Tile>(x, w, columns, scratch),
            Isa::Portable => gemm::gemm::<portable::Tile>(x, w, columns, scratch),
        }
    }

    /// columns (rows of w, rows of x) = (x · wᵀ)ᵀ in int8, as [`ops::quantize::dot`] computes it.
    pub(super) fn q8(self, x: QuantizedRows<'_>, w: Rows<'_>, columns: &mut [f32]) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::q8(x, w, columns),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::q8(x, w, columns),
            Isa::Portable => portable::q8(x, w, columns),
        }
    }

    /// Tokens that a tile of [`Kernel::gemm`] takes at once.
    pub(super) fn tile_tokens(self) -> usize {
        use gemm::Tile;
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::Tile::TOKENS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::Tile::TOKENS,
            Isa::Portable => portable::Tile::TOKENS,
        }
    }

    /// [`ops::attention::qk`].
    pub(super) fn qk(self, query: &[f32], keys: &[f32], stride: usize, out: &mut [f32]) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::qk(query, keys, stride, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::qk(query, keys, stride, out),
            Isa::Portable => ops::attention::qk(query, keys, stride, out),
        }
    }

    /// [`ops::attention::mix`].
    pub(super) fn mix(self, weights: &[f32], values: &[f32], stride: usize, out: &mut [f32]) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::mix(weights, values, stride, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::mix(weights, values, stride, out),
            Isa::Portable => ops::attention::mix(weights, values, stride, out),
        }
    }

    /// [`ops::rms_norm::rms_norm`].
    pub(super) fn rms_norm(self, x: &[f32], weight: &[f32], eps: f32, precision: Precision, out: &mut [f32]) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::rms_norm(x, weight, eps, precision, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::rms_norm(x, weight, eps, precision, out),
            Isa::Portable => ops::rms_norm::rms_norm(x, weight, eps, precision, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::matrix::widen;
    use super::*;

    /// Values without a pattern that rounding could hide behind.
    fn noise(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    /// `values` rounded to a number type, as bytes, and what they are then.
    fn stored(values: &[f32], dtype: Dtype) -> (Vec<u8>, Vec<f32>) {
        let bytes: Vec<u8> = match dtype {
            Dtype::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Dtype::F16 => values.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect(),
            Dtype::BF16 => values.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect(),
            blocks => random_blocks(values, blocks),
        };
        let mut exact = vec![0.0; values.len()];
        widen(dtype, &bytes, &mut exact);
        (bytes, exact)
    }

    /// Blocks with the bits of `values`, but scales that keep what they stand for small.
    fn random_blocks(values: &[f32], dtype: Dtype) -> Vec<u8> {
        let count = values.len() / dtype.block() * dtype.block_bytes();
        let mut bytes: Vec<u8> =
            values.iter().cycle().take(count).map(|value| (value.to_bits() >> 8) as u8).collect();
        for block in bytes.chunks_mut(dtype.block_bytes()) {
            let halves: &[usize] = match dtype {
                Dtype::Q6K => &[208],
                Dtype::Q4_1 | Dtype::Q5_1 | Dtype::Q4K | Dtype::Q5K => &[0, 2],
                _ => &[0],
            };
            for &at in halves {
                block[at..at + 2].copy_from_slice(&half::f16::from_f32(0.01).to_le_bytes());
            }
        }
        bytes
    }

    #[test]
    fn every_kernel_gives_the_bits_of_the_plain_products() {
        for dtype in Dtype::ALL {
            for (inputs, rows, tokens) in [
                (1, 1, 1),
                (7, 3, 2),
                (16, 6, 4),
                (33, 13, 9),
                (512, 5, 3),
                (1100, 7, 5),
                (32, 3, 1),
                (1280, 7, 5),
            ] {
                if dtype.bytes(inputs).is_none() || dtype == Dtype::I8 {
                    continue;
                }
                let x = noise(inputs * tokens, 1);
                let (bytes, w) = stored(&noise(inputs * rows, 2), dtype);
                let plain: Vec<f32> = w
                    .chunks(inputs)
                    .flat_map(|w| x.chunks(inputs).map(|x| ops::matmul::dot(x, w)).collect::<Vec<_>>())
                    .collect();
                let w = Rows { bytes: &bytes, dtype, inputs, scales: None, precision: Precision::F32 };
                for kernel in Kernel::available() {
                    let what = format!("{} {dtype} {inputs}×{rows}×{tokens}", kernel.name());
                    let mut columns = vec![0.0; rows * tokens];
                    kernel.dots(&x, w, &mut columns, &mut vec![0.0; inputs]);
                    assert_eq!(columns, plain, "dots {what}");
                    columns.fill(0.0);
                    let mut packed = Packed::default();
                    packed.pack(&x, inputs, kernel.tile_tokens());
                    kernel.gemm(&packed, w, &mut columns, &mut Scratch::default());
                    assert_eq!(columns, plain, "gemm {what}");
                }
            }
        }
    }

    #[test]
    fn every_kernel_gives_the_bits_of_the_plain_row_operations() {
        for width in [2, 8, 16, 31, 32, 48, 100] {
            let (x, w) = (noise(3 * width, 3), noise(width, 4));
            for kernel in Kernel::available() {
                let (mut plain, mut fast) = (vec![0.0; width], vec![0.0; width]);
                ops::rms_norm::rms_norm(&w, &x[..width], 1e-5, Precision::F32, &mut plain);
                kernel.rms_norm(&w, &x[..width], 1e-5, Precision::F32, &mut fast);
                assert_eq!(plain, fast, "rms_norm {} {width}", kernel.name());
                ops::attention::mix(&w[..2], &x, width, &mut plain);
                kernel.mix(&w[..2], &x, width, &mut fast);
                assert_eq!(plain, fast, "mix {} {width}", kernel.name());
                let (mut plain, mut fast) = (vec![0.0; 3], vec![0.0; 3]);
                ops::attention::qk(&w, &x, width, &mut plain);
                kernel.qk(&w, &x, width, &mut fast);
                assert_eq!(plain, fast, "qk {} {width}", kernel.name());
            }
        }
    }
}
