//! Weight matrices in the number type of their file, and the product with them.

use std::ops::Range;

use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;

use super::MIN_PARALLEL;
use super::kernel::gemm::{Packed, Scratch};
use super::kernel::{Kernel, Rows};
use crate::checkpoint::{Dtype, Tensor};
use crate::ops::dequantize;

/// A matrix (outputs, inputs) where it lies in the file.
#[derive(Clone, Debug)]
pub struct Matrix {
    tensor: Tensor,
}

impl Matrix {
    /// Over a tensor of two axes.
    pub(super) fn new(tensor: Tensor) -> Self {
        assert_eq!(tensor.shape().len(), 2, "a matrix has two axes");
        Self { tensor }
    }

    /// Number of rows: outputs of the product.
    pub fn outputs(&self) -> usize {
        self.tensor.shape()[0]
    }

    /// Length of a row: inputs of the product.
    pub fn inputs(&self) -> usize {
        self.tensor.shape()[1]
    }

    /// Some rows, as they are stored.
    fn rows(&self, rows: Range<usize>) -> Rows<'_> {
        let bytes = self.tensor.bytes();
        let length = bytes.len() / self.outputs();
        let bytes = &bytes[rows.start * length..rows.end * length];
        Rows { bytes, dtype: self.tensor.dtype(), inputs: self.inputs() }
    }

    /// Copies row `row` as float32.
    pub(super) fn copy_row(&self, row: usize, out: &mut [f32]) {
        let rows = self.rows(row..row + 1);
        widen(rows.dtype, rows.bytes, out);
    }
}

/// `bytes` of number type `dtype` as float32: exactly where it is a float, by the formula of the format
/// where it is stored in blocks.
#[inline(always)]
pub(super) fn widen(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
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
        Dtype::F16 => match bytemuck::try_cast_slice::<u8, half::f16>(bytes) {
            Ok(values) => values.convert_to_f32_slice(out),
            Err(_) => {
                for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *out = half::f16::from_le_bytes(*bytes).to_f32();
                }
            }
        },
        Dtype::Q8_0 => dequantize::q8_0(bytes, out),
        Dtype::Q4_0 => dequantize::q4_0(bytes, out),
        Dtype::Q4_1 => dequantize::q4_1(bytes, out),
        Dtype::Q5_0 => dequantize::q5_0(bytes, out),
        Dtype::Q5_1 => dequantize::q5_1(bytes, out),
        Dtype::Q4K => dequantize::q4_k(bytes, out),
        Dtype::Q5K => dequantize::q5_k(bytes, out),
        Dtype::Q6K => dequantize::q6_k(bytes, out),
    }
}

/// Rows of activations from which packing them for [`Kernel::gemm`] pays.
const MIN_GEMM: usize = 4;

/// Weight rows that a thread takes at once: a multiple of every tile's.
const ROWS_AT_ONCE: usize = 48;

/// columns (O, rows) = (x (rows, I) · wᵀ + bias)ᵀ: column o of the output is contiguous.
pub(super) fn product(kernel: Kernel, x: &[f32], w: &Matrix, bias: Option<&Vec<f32>>, columns: &mut [f32]) {
    let inputs = w.inputs();
    let rows = x.len() / inputs;
    let packed = (rows >= MIN_GEMM).then(|| Packed::new(x, inputs, kernel.tile_tokens()));
    let part = |(row, scratch): &mut (Vec<f32>, Scratch), (part, columns): (usize, &mut [f32])| {
        let first = part * ROWS_AT_ONCE;
        let weights = w.rows(first..first + columns.len() / rows);
        match &packed {
            Some(packed) => kernel.gemm(packed, weights, columns, scratch),
            None => kernel.dots(x, weights, columns, row),
        }
        if let Some(bias) = bias {
            for (column, bias) in columns.chunks_exact_mut(rows).zip(&bias[first..]) {
                for out in column {
                    *out += bias;
                }
            }
        }
    };
    let scratch = || (vec![0.0; inputs], Scratch::default());
    if x.len() * w.outputs() < MIN_PARALLEL {
        let mut scratch = scratch();
        columns.chunks_mut(ROWS_AT_ONCE * rows).enumerate().for_each(|unit| part(&mut scratch, unit));
    } else {
        columns.par_chunks_mut(ROWS_AT_ONCE * rows).enumerate().for_each_init(scratch, part);
    }
}
