//! Products in whole numbers of many rows, by tensor cores: activations and weights are packed as these read them
//! (`kernels/packed.cuh`), activations once for all products, weights a part of a matrix at a time.

use super::{Asked, FEW, Input};
use crate::backend::cuda::Cuda;
use crate::backend::cuda::driver::{Address, Arguments};
use crate::backend::cuda::kernels::Kernel;
use crate::backend::cuda::memory::{Growing, Vector};
use crate::checkpoint::Dtype;
use crate::error::Result;

/// Values of a row that are packed together.
const UNIT: usize = 32;

/// Numbers that a row of activations has for a unit: its scale, and two sums.
const OF_ROWS: usize = 3;

/// Outputs and rows that are packed together; those that a tile has no use for repeat the last.
const OUTPUTS: usize = 128;
const ROWS: usize = 192;

/// A kernel that multiplies what is packed. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backend::cuda) struct Tile {
    name: &'static str,
    outputs: usize,
    rows: usize,
    threads: u32,
    /// Units of each of its rows that are in shared memory at a time.
    units: usize,
}

/// The large one, and one for devices with less shared memory.
pub(in crate::backend::cuda) const TILES: [Tile; 2] = [
    Tile { name: "matmul_q8_128", outputs: 128, rows: 96, threads: 384, units: 8 },
    Tile { name: "matmul_q8_64", outputs: 64, rows: 64, threads: 128, units: 8 },
];

impl Tile {
    /// Bytes of shared memory: units with their numbers, and partial sums of three levels.
    fn shared(&self, dtype: Dtype) -> usize {
        let of_rows = if has_minima(dtype) { OF_ROWS } else { 1 };
        let numbers = self.outputs * of_weights(dtype) + self.rows * of_rows;
        let unit = (self.outputs + self.rows) * UNIT + numbers * 4;
        self.units * unit + 3 * self.outputs * self.rows * 4
    }
}

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
    let room = cuda.queue.device().about().shared;
    let fits = |tile: &&Tile| tile.shared(product.matrix.dtype()) <= room;
    multiply_in(cuda, x, product, group, *TILES.iter().find(fits).unwrap_or(&TILES[1]))
}

/// The same in these tiles, whether the device has room for them or not.
pub(in crate::backend::cuda) fn multiply_in(
    cuda: &Cuda,
    x: &Input,
    product: &Asked<'_>,
    group: usize,
    tile: Tile,
) -> Result<()> {
    let (dtype, outputs, units) = (product.matrix.dtype(), product.matrix.outputs(), x.width / UNIT);
    let at = |growing: &Growing| growing.memory().map_or(0, |memory| memory.at());
    let mut packed = x.packed();
    if !packed.there {
        let rows = x.rows.next_multiple_of(ROWS);
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
        let grid = (x.rows.div_ceil(tile.rows), count.div_ceil(tile.outputs));
        cuda.kernels.launch(kernel(tile.name), grid, tile.threads, tile.shared(dtype), arguments)?;
    }
    Ok(())
}

/// Whether runs of the format have minima.
fn has_minima(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Q4_1 | Dtype::Q5_1 | Dtype::Q2K | Dtype::Q4K | Dtype::Q5K)
}
