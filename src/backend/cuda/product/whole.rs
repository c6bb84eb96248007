//! Products in whole numbers of many rows, by tensor cores: activations and weights are packed as these read them
//! (`kernels/packed.cuh`), activations once for all products, weights a part of a matrix at a time.

use super::{Asked, FEW, Input};
use crate::backend::cuda::Cuda;
use crate::backend::cuda::driver::{Address, Arguments};
use crate::backend::cuda::kernels::Kernel;
use crate::backend::cuda::memory::{Growing, Vector};
use crate::checkpoint::Dtype;
use crate::error::Result;

/// Values of a row that are packed together, and rows whose numbers lie together.
const UNIT: usize = 32;
const SCALED_ROWS: usize = 32;

/// Numbers that a row of activations has for a unit: its scale, and two sums.
const OF_ROWS: usize = 3;

/// Outputs and rows of a block's tile, and bytes of shared memory that partial sums take.
const OUTPUTS: usize = 128;
const ROWS: usize = 64;
const KEPT: usize = 65_536;

/// Units of each of a tile's rows that are in shared memory at a time.
const UNITS_AT_ONCE: usize = 3 * 4;

/// Weights that are packed at once, at most: what a second-level cache holds.
const VALUES_AT_ONCE: usize = 32 << 20;

/// Packed activations.
#[derive(Default)]
pub(super) struct Packed {
    values: Growing,
    numbers: Growing,
    odd: Growing,
    /// Whether they are those of the rows that the input has now.
    there: bool,
}

impl Packed {
    /// Other rows are there. Returns where the kernel that quantises them is to write 0: whether a scale is odd is found out
    /// when they are packed. Null where so few rows are not packed.
    pub(super) fn clear(&mut self, cuda: &Cuda, rows: usize) -> Result<Address> {
        self.there = false;
        if rows <= FEW { Ok(0) } else { self.odd.room(&cuda.queue, size_of::<u32>(), false) }
    }
}

/// Whether rows in groups of `group` values are multiplied so with weights of `dtype`.
pub(super) fn takes(dtype: Dtype, group: usize) -> bool {
    dtype != Dtype::I8 || group.is_multiple_of(UNIT)
}

/// Numbers that a row of weights has for a unit: scales and minima of its runs (`OF_WEIGHTS` of the kernel).
fn of_weights(dtype: Dtype) -> usize {
    match dtype {
        Dtype::Q4_1 | Dtype::Q5_1 | Dtype::Q4K | Dtype::Q5K | Dtype::Q3K | Dtype::Q6K => 2,
        Dtype::Q2K => 4,
        _ => 1,
    }
}

/// Computes `product` of all rows of `x`, which is quantised in groups of `group` values.
pub(super) fn multiply(cuda: &Cuda, x: &Input, product: &Asked<'_>, group: usize) -> Result<()> {
    let (dtype, outputs, units) = (product.matrix.dtype(), product.matrix.outputs(), x.width / UNIT);
    let at = |growing: &Growing| growing.memory().map_or(0, |memory| memory.at());
    let mut packed = x.packed();
    let tiles = x.rows.div_ceil(ROWS);
    if !packed.there {
        let rows = tiles * ROWS;
        let values = packed.values.room(&cuda.queue, rows * x.width, false)?;
        let numbers = packed.numbers.room(&cuda.queue, rows * units * OF_ROWS * 4, false)?;
        let kernel = Kernel { file: "pack", name: "pack_rows", weight: None };
        let arguments = Arguments::new().address(at(&x.values)).address(at(&x.scales)).int(x.rows);
        let arguments = arguments.int(x.width).int(group).address(values).address(numbers);
        let arguments = arguments.address(at(&packed.odd));
        cuda.kernels.launch(kernel, (rows / 16, units.div_ceil(16)), 128, 0, arguments)?;
        packed.there = true;
    }
    let odd = at(&packed.odd);
    let of_rows = [at(&packed.values), at(&packed.numbers)];
    let of_weights = of_weights(dtype);
    let at_once = (VALUES_AT_ONCE / x.width / OUTPUTS).max(1) * OUTPUTS;
    let bias = product.bias.map_or(0, Vector::at);
    // 16 bytes each: units of 16 rows have 32 of them, numbers of 32 rows 8.
    let of_unit = (OUTPUTS + ROWS) / 16 * 32
        + (OUTPUTS * of_weights + ROWS * if has_minima(dtype) { OF_ROWS } else { 1 }) / SCALED_ROWS * 8;
    for first in (0..outputs).step_by(at_once) {
        let count = at_once.min(outputs - first);
        let padded = count.next_multiple_of(OUTPUTS);
        let (values, numbers) = {
            let mut scratch = cuda.scratch();
            let [values, numbers] = &mut scratch.weights;
            let of_values = values.room(&cuda.queue, padded * x.width, false)?;
            (of_values, numbers.room(&cuda.queue, padded * units * of_weights * 4, false)?)
        };
        let kernel = |name| Kernel { file: "matmul_q8", name, weight: Some(dtype) };
        let arguments = Arguments::new().words(&product.matrix.words()).int(first).int(count).int(group);
        let arguments = arguments.address(values).address(numbers).address(odd);
        cuda.kernels.launch(kernel("pack_weights"), (padded / 16, units.div_ceil(16)), 128, 0, arguments)?;
        let arguments = Arguments::new().words(&[values, numbers]).words(&of_rows).address(odd);
        let arguments = arguments.address(bias).address(product.out.at(0)).int(outputs).int(first);
        let arguments = arguments.int(count).int(x.rows).int(units).int(group / UNIT);
        let shared = 16 * UNITS_AT_ONCE * of_unit + KEPT;
        cuda.kernels.launch(kernel("matmul_q8"), (tiles, padded / OUTPUTS), 256, shared, arguments)?;
    }
    Ok(())
}

/// Whether runs of the format have minima.
fn has_minima(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Q4_1 | Dtype::Q5_1 | Dtype::Q2K | Dtype::Q4K | Dtype::Q5K)
}
