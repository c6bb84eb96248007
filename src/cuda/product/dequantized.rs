//! Products of many rows in bfloat16 with weights that are stored as blocks or int8. The weights are first dequantised
//! to bfloat16. Then they are multiplied in the same way as bfloat16 weights.

use super::Asked;
use crate::Cuda;
use crate::kernels::Kernel;
use crate::matrix::Matrix;
use llama_trace_core::config::Precision;
use llama_trace_core::error::Result;
use llama_trace_core::tensor::Dtype;
use llama_trace_kernels::driver::Arguments;

/// Maximum number of matrix values that are dequantised together: 256 MiB in bfloat16.
const MOST_VALUES: usize = 128 << 20;

/// Whether the matrices of these products are multiplied this way.
pub(super) fn takes(cuda: &Cuda, products: &[Asked<'_>]) -> bool {
    let matrices = || products.iter().map(|product| product.matrix);
    cuda.precision == Precision::Bf16
        && matrices().all(|matrix| matrix.is_fast() && !matrix.dtype().is_float())
        && matrices().map(|matrix| matrix.outputs() * matrix.inputs()).sum::<usize>() <= MOST_VALUES
}

/// Calls `multiply` with these products, after their weights were converted to bfloat16.
pub(super) fn in_bf16<T>(
    cuda: &Cuda,
    products: &[Asked<'_>],
    multiply: impl FnOnce(&[Asked<'_>]) -> Result<T>,
) -> Result<T> {
    let widened: Vec<Matrix> = products
        .iter()
        .enumerate()
        .map(|(i, product)| widen(cuda, product.matrix, i))
        .collect::<Result<_>>()?;
    let products: Vec<_> =
        products.iter().zip(&widened).map(|(product, matrix)| Asked { matrix, ..*product }).collect();
    multiply(&products)
}

/// Converts a matrix to bfloat16, in the scratch memory with index `i`.
fn widen(cuda: &Cuda, matrix: &Matrix, i: usize) -> Result<Matrix> {
    let (outputs, inputs) = (matrix.outputs(), matrix.inputs());
    let memory = {
        let mut scratch = cuda.scratch();
        scratch.widened[i].room(&cuda.queue, outputs * inputs * size_of::<u16>(), false)?;
        scratch.widened[i].memory().cloned()
    };
    let memory = memory.unwrap_or_else(|| unreachable!("the scratch memory was just allocated"));
    // `unit`: the number of values that a thread converts at once.
    let (file, name, unit) = match matrix.dtype() {
        _ if cuda.untried.coalesced => ("coalesced", "unpack_bf16_coalesced", 8),
        Dtype::I8 => ("unpack", "unpack_bf16", 16),
        _ => ("unpack", "unpack_bf16", 32),
    };
    let kernel = Kernel { file, name, weight: Some(matrix.dtype()) };
    let arguments = Arguments::new().words(&matrix.words()).address(memory.at());
    cuda.kernels.launch(kernel, ((outputs * inputs / unit).div_ceil(256), 1), 256, 0, arguments)?;
    Ok(Matrix::over(memory, Dtype::BF16, outputs, inputs))
}
