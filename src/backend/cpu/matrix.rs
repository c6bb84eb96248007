//! Weight matrices in the number type of their file, and the product with them.

use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;

use super::{MIN_PARALLEL, simd};
use crate::checkpoint::{Dtype, Tensor};

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

    fn row_bytes(&self, row: usize) -> &[u8] {
        let bytes = self.tensor.bytes();
        let length = bytes.len() / self.outputs();
        &bytes[row * length..(row + 1) * length]
    }

    /// Row `row` as float32, exactly: where it is stored so, otherwise widened into `scratch`.
    fn row<'a>(&'a self, row: usize, scratch: &'a mut [f32]) -> &'a [f32] {
        let bytes = self.row_bytes(row);
        if self.tensor.dtype() == Dtype::F32
            && let Ok(values) = bytemuck::try_cast_slice(bytes)
        {
            return values;
        }
        widen(self.tensor.dtype(), bytes, scratch);
        scratch
    }

    /// Copies row `row` as float32.
    pub(super) fn copy_row(&self, row: usize, out: &mut [f32]) {
        widen(self.tensor.dtype(), self.row_bytes(row), out);
    }
}

/// `bytes` of number type `dtype` as float32: exactly where it is a float, by the formula of the format
/// where it is stored in blocks.
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
        Dtype::Q8_0 => simd::q8_0(bytes, out),
        Dtype::Q4_0 => simd::q4_0(bytes, out),
        Dtype::Q4_1 => simd::q4_1(bytes, out),
        Dtype::Q5_0 => simd::q5_0(bytes, out),
        Dtype::Q5_1 => simd::q5_1(bytes, out),
        Dtype::Q4K => simd::q4_k(bytes, out),
        Dtype::Q5K => simd::q5_k(bytes, out),
        Dtype::Q6K => simd::q6_k(bytes, out),
    }
}

/// columns (O, rows) = (x (rows, I) · wᵀ + bias)ᵀ: column o of the output is contiguous.
pub(super) fn product(x: &[f32], w: &Matrix, bias: Option<&Vec<f32>>, columns: &mut [f32]) {
    let inputs = w.inputs();
    let rows = x.len() / inputs;
    let column = |scratch: &mut Vec<f32>, (o, column): (usize, &mut [f32])| {
        let weights = w.row(o, scratch);
        simd::dots(x, weights, column);
        if let Some(bias) = bias {
            for out in column {
                *out += bias[o];
            }
        }
    };
    let scratch = || vec![0.0; inputs];
    if x.len() * w.outputs() < MIN_PARALLEL {
        let mut scratch = scratch();
        columns.chunks_exact_mut(rows).enumerate().for_each(|unit| column(&mut scratch, unit));
    } else {
        let least = (MIN_PARALLEL / 4).div_ceil(x.len());
        columns.par_chunks_exact_mut(rows).enumerate().with_min_len(least).for_each_init(scratch, column);
    }
}
