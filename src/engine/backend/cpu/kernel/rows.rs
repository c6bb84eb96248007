//! The operands of the kernels: rows of weights as they are stored, and rows of activations.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::backend::cpu::memory;
use llama_trace_core::config::Precision;
use llama_trace_core::error::Result;
use llama_trace_core::ops;
use llama_trace_core::ops::blocks::dequantize;
use llama_trace_core::ops::matmul::LANES;
use llama_trace_core::ops::quantize::Quantized;
use llama_trace_core::tensor::Dtype;

/// Runs `$body` with `$format` as the block format of number type `$dtype`.
macro_rules! with_format {
    ($dtype:expr, $format:ident => $body:expr) => {
        with_format!($dtype, $format => $body;
            Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4K Q5K Q6K Q2K Q3K Iq4Nl Iq4Xs Mxfp4; F32 F16 BF16 I8)
    };
    ($dtype:expr, $format:ident => $body:expr; $($name:ident)*; $($other:ident)*) => {
        match $dtype {
            $(llama_trace_core::tensor::Dtype::$name => {
                type $format = llama_trace_core::ops::blocks::$name;
                $body
            })*
            $(llama_trace_core::tensor::Dtype::$other)|* => unreachable!("{} has no blocks", $dtype),
        }
    };
}
pub(in crate::backend::cpu) use with_format;

/// Rows of a weight matrix as they are stored.
#[derive(Clone, Copy)]
pub(in crate::backend::cpu) struct Rows<'a> {
    /// The bytes of the rows, one row after the other.
    pub(in crate::backend::cpu) bytes: &'a [u8],
    /// The number type of the values.
    pub(in crate::backend::cpu) dtype: Dtype,
    /// The number of values in a row.
    pub(in crate::backend::cpu) inputs: usize,
    /// The scales of the matrix, if its values are int8.
    pub(in crate::backend::cpu) scales: Option<GroupScales<'a>>,
    /// The precision to which a weight is rounded before it is multiplied.
    pub(in crate::backend::cpu) precision: Precision,
}

/// The scales of a matrix of int8 values.
#[derive(Clone, Copy)]
pub(in crate::backend::cpu) struct GroupScales<'a> {
    /// float32, little-endian, one for each group of the whole matrix.
    pub(in crate::backend::cpu) scales: &'a [[u8; 4]],
    /// The number of values that share a scale.
    pub(in crate::backend::cpu) group: usize,
    /// The index in the matrix of the first row of `Rows::bytes`.
    pub(in crate::backend::cpu) first_row: usize,
}

/// 16 values, aligned to a cache line so that one load of any vector width stays inside it.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
pub(in crate::backend::cpu) struct Aligned(pub(in crate::backend::cpu) [f32; LANES]);

/// A few rows of activations with padding between them.
#[derive(Clone, Copy)]
pub(in crate::backend::cpu) struct Spaced<'a> {
    pub(super) values: &'a [f32],
    pub(super) width: usize,
}

impl<'a> Spaced<'a> {
    /// Padding between the rows: one cache line. Without it, rows that are a power of two long would all share a few
    /// cache lines.
    const ROOM: usize = 16;

    /// Copies the rows of `x` into `buffer` with padding.
    pub(in crate::backend::cpu) fn fill(x: &[f32], width: usize, buffer: &mut Vec<Aligned>) -> Result<()> {
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

    /// Returns the rows that [`Spaced::fill`] wrote.
    pub(in crate::backend::cpu) fn new(values: &'a [Aligned], width: usize) -> Self {
        Self { values: bytemuck::cast_slice(values), width }
    }

    /// The distance from one row to the next, in values.
    pub(super) fn stride(self) -> usize {
        self.width.next_multiple_of(LANES) + Self::ROOM
    }

    /// Returns the rows, without padding.
    pub(in crate::backend::cpu) fn rows(self) -> impl Iterator<Item = &'a [f32]> {
        self.values.chunks_exact(self.stride()).map(move |row| &row[..self.width])
    }

    /// Returns the rows after the first `count` rows.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only kernels for x86-64 use it"))]
    pub(super) fn skip(self, count: usize) -> Self {
        Self { values: &self.values[count * self.stride()..], ..self }
    }
}

impl<'a> Rows<'a> {
    /// Number of rows.
    #[inline]
    pub(in crate::backend::cpu) fn count(self) -> usize {
        self.bytes.len() / self.range(0..self.inputs).len()
    }

    /// Returns the bytes of row `row`.
    #[inline]
    pub(in crate::backend::cpu) fn row(self, row: usize) -> &'a [u8] {
        let length = self.range(0..self.inputs).len();
        &self.bytes[row * length..(row + 1) * length]
    }

    /// Whether weights are used as they are stored, without a scale or rounding.
    pub(super) fn plain(self) -> bool {
        match self.dtype {
            Dtype::F32 => self.precision != Precision::Bf16,
            Dtype::F16 => self.precision != Precision::Bf16,
            Dtype::BF16 => true,
            _ => false,
        }
    }

    /// Returns row `row` with its scales, if the values are int8.
    #[inline(always)]
    pub(in crate::backend::cpu) fn quantized(self, row: usize) -> Option<Quantized<'a>> {
        let GroupScales { scales, group, first_row } = self.scales?;
        let first = (first_row + row) * self.inputs;
        Some(Quantized { values: bytemuck::cast_slice(self.row(row)), scales, group, first })
    }

    /// Converts the values of row `row` in the range `inputs` to float32. `inputs` must begin and end at a block of
    /// the number type. Floats are converted exactly; blocks and groups follow the formula of their format. The result
    /// is rounded if the precision requires it.
    #[inline(always)]
    pub(in crate::backend::cpu) fn widen(self, row: usize, inputs: Range<usize>, out: &mut [f32]) {
        match self.quantized(row) {
            Some(quantized) => quantized.dequantize(inputs.start, &mut out[..inputs.len()]),
            None => widen(self.dtype, &self.row(row)[self.range(inputs)], out),
        }
        if self.dtype != Dtype::BF16 {
            ops::round::row(self.precision, out);
        }
    }

    /// Returns the byte range of `inputs` in a row. `inputs` must begin and end at a block of the number type.
    pub(super) fn range(self, inputs: Range<usize>) -> Range<usize> {
        let at = |input: usize| input / self.dtype.block() * self.dtype.block_bytes();
        at(inputs.start)..at(inputs.end)
    }
}

/// Converts `bytes` of number type `dtype` to float32: floats exactly, blocks by the formula of their format.
#[inline(always)]
pub(in crate::backend::cpu) fn widen(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        Dtype::F32 => {
            for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *out = f32::from_le_bytes(*bytes);
            }
        }
        Dtype::BF16 => {
            for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *out = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
            }
        }
        Dtype::F16 => match bytemuck::try_cast_slice::<u8, f16>(bytes) {
            Ok(values) => values.convert_to_f32_slice(out),
            Err(_) => {
                for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *out = f16::from_le_bytes(*bytes).to_f32();
                }
            }
        },
        Dtype::I8 => unreachable!("int8 values have scales"),
        blocks => with_format!(blocks, F => dequantize::<F>(bytes, out)),
    }
}

/// See [`super::Isa::widen_f16`].
pub(super) fn widen_f16(values: &[f16], out: &mut [f32]) {
    values.convert_to_f32_slice(out);
}

/// See [`super::Isa::widen_bf16`].
#[inline(always)]
pub(super) fn widen_bf16(values: &[bf16], out: &mut [f32]) {
    for (out, value) in out.iter_mut().zip(values) {
        *out = f32::from_bits(u32::from(value.to_bits()) << 16);
    }
}
