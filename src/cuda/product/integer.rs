//! Integer products of many rows, by tensor cores. Activations and weights are packed for the tensor cores
//! (`kernels/packed.cuh`): activations once for all products, weights one part of a matrix at a time.

use super::{Asked, Input};
use crate::Cuda;
use crate::fusable::Fusable;
use crate::kernels::Kernel;
use crate::memory::{Growing, Vector};
use llama_trace_core::error::Result;
use llama_trace_core::tensor::Dtype;
use llama_trace_kernels::driver::{Address, Arguments, Extra};

/// Values of a row that are packed together.
const UNIT: usize = 32;

/// Numbers that are stored with each unit of a row of activations: the unit's scale and three sums (`ALL_OF_ROWS` of
/// the kernels).
const OF_ROWS: usize = 4;

/// Numbers of outputs and of rows that are packed together. Padding outputs repeat the last output. Padding rows may
/// have any contents. The rows are a multiple of each tile's; `ROWS_FOR_WIDE` also of [`WIDE`]'s.
const OUTPUTS: usize = 128;
const ROWS: usize = 192;
const ROWS_FOR_WIDE: usize = 384;

/// A kernel that multiplies packed operands. All such kernels give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    file: &'static str,
    name: &'static str,
    outputs: usize,
    /// Rows of a tile: for a format with one run in a unit, and with two.
    rows: [usize; 2],
    /// Number of sums of a warp.
    of_warp: usize,
    /// Levels of partial sums in shared memory.
    levels: usize,
}

/// What the tiles of `matmul_q8.cu` have in common.
const OF_32: Tile =
    Tile { file: "matmul_q8", name: "", outputs: 0, rows: [0; 2], of_warp: 32 * 32, levels: 3 };

/// The large tile, and one for devices with less shared memory.
pub(crate) const TILES: [Tile; 2] = [
    Tile { name: "matmul_q8_128", outputs: 128, rows: [96, 64], ..OF_32 },
    Tile { name: "matmul_q8_64", outputs: 64, rows: [64, 64], ..OF_32 },
];

/// A tile that no GPU has run yet (`Untried::wide`). It is used only if the user asks for it, and only for groups of
/// [`UNIT`] values.
pub(crate) const WIDE: Tile = Tile {
    file: "matmul_q8_wide",
    name: "matmul_q8_wide",
    outputs: 128,
    rows: [128, 128],
    of_warp: 64 * 32,
    levels: 2,
};

/// Units of each row of a tile that are in shared memory at once.
const UNITS_AT_ONCE: usize = 8;

impl Tile {
    fn rows(&self, dtype: Dtype) -> usize {
        self.rows[runs(dtype) - 1]
    }

    /// Threads of a block.
    fn threads(&self, dtype: Dtype) -> u32 {
        (self.outputs * self.rows(dtype) / self.of_warp * 32) as u32
    }

    /// Bytes of shared memory: units with their numbers, and the partial sums.
    fn shared(&self, dtype: Dtype) -> usize {
        let (outputs, rows) = (self.outputs, self.rows(dtype));
        let of_rows = if has_minima(dtype) { 1 + runs(dtype) } else { 1 };
        let unit = (outputs + rows) * UNIT + (outputs * of_weights(dtype) + rows * of_rows) * 4;
        UNITS_AT_ONCE * unit + self.levels * outputs * rows * 4
    }
}

/// Maximum number of weights that are packed at once. This number fits in the second-level cache.
const VALUES_AT_ONCE: usize = 32 << 20;

/// Packed activations.
#[derive(Default)]
pub(super) struct Packed {
    values: Growing,
    numbers: Growing,
    /// Two flags that alternate: whether a scale is too small or too large for the fast path (`is_plain` of the
    /// kernels). The packing kernel writes one and clears the other for the next call.
    odd: Growing,
    turn: bool,
    /// Whether the packed activations are those of the input's current rows.
    there: bool,
}

impl Packed {
    /// Marks the packed activations as out of date.
    pub(super) fn clear(&mut self) {
        self.there = false;
    }
}

/// Whether products with rows in groups of `group` values and weights of `dtype` are computed this way.
pub(super) fn takes(dtype: Dtype, group: usize) -> bool {
    dtype != Dtype::I8 || group.is_multiple_of(UNIT)
}

/// Numbers that are stored with each unit of a row of weights: scales and minima of its runs (`OF_WEIGHTS` of the
/// kernel).
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
    let wide = (cuda.untried.wide && group == UNIT).then_some(&WIDE);
    multiply_in(cuda, x, product, group, *wide.into_iter().chain(&TILES).find(fits).unwrap_or(&TILES[1]))
}

/// [`multiply`] with the tiles that the caller chooses. Does not check that they fit in shared memory.
pub(crate) fn multiply_in(
    cuda: &Cuda,
    x: &Input,
    product: &Asked<'_>,
    group: usize,
    tile: Tile,
) -> Result<()> {
    let (dtype, outputs, units) = (product.matrix.dtype(), product.matrix.outputs(), x.width / UNIT);
    let [of_values, of_numbers, odd] = pack(cuda, x, group)?;
    let of_rows = [of_values, of_numbers];
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
        let kernel = |file, name| Kernel { file, name, weight: Some(dtype) };
        let (pack, rows, threads) = match cuda.untried.coalesced {
            true => (kernel("coalesced", "pack_weights_coalesced"), 32, 256),
            false => (kernel("matmul_q8", "pack_weights"), 16, 128),
        };
        let arguments = Arguments::new().words(&product.matrix.words()).int(first).int(count).int(group);
        let arguments = arguments.address(values).address(numbers).address(odd);
        cuda.kernels.launch(pack, (padded / rows, units.div_ceil(16)), threads, 0, arguments)?;
        let arguments = Arguments::new().words(&[values, numbers]).words(&of_rows).address(odd);
        let arguments = arguments.address(bias).address(product.out.at(0)).int(outputs).int(first);
        let arguments = arguments.int(count).int(x.rows).int(units).int(group / UNIT);
        let grid = (x.rows.div_ceil(tile.rows(dtype)), count.div_ceil(tile.outputs));
        let multiply = kernel(tile.file, tile.name);
        cuda.kernels.launch(multiply, grid, tile.threads(dtype), tile.shared(dtype), arguments)?;
    }
    Ok(())
}

/// Returns the addresses of the packed rows of `x`, of their numbers, and of the flag for a scale that is not plain. If
/// the launch that computes the rows is still in the queue, it also packs them. Otherwise a separate kernel does.
fn pack(cuda: &Cuda, x: &Input, group: usize) -> Result<[Address; 3]> {
    let mut packed = x.packed();
    let together = if cuda.untried.wide { ROWS_FOR_WIDE } else { ROWS };
    let (rows, units) = (x.rows.next_multiple_of(together), x.width / UNIT);
    // Allocate before the launches are changed: freeing or clearing memory sends the queue. Padding rows may have any
    // contents.
    let values = packed.values.room(&cuda.queue, rows * x.width, false)?;
    let numbers = packed.numbers.room(&cuda.queue, rows * units * OF_ROWS * 4, false)?;
    let both = packed.odd.room(&cuda.queue, 2 * size_of::<u32>(), true)?;
    packed.turn ^= !packed.there;
    let (other, own) = (u64::from(packed.turn), u64::from(!packed.turn));
    let [odd, next] = [own, other].map(|which| both + 4 * which);
    if !packed.there {
        make(cuda, x, group, [values, numbers, odd, next])?;
        packed.there = true;
    }
    Ok([values, numbers, odd])
}

/// Packs the rows of `x` to `to`, `struct PackedRows` of the kernels.
fn make(cuda: &Cuda, x: &Input, group: usize, to: [Address; 4]) -> Result<()> {
    let kernel = |name| Kernel { file: "pack", name, weight: None };
    if group != UNIT {
        let [values, scales] = x.whole(cuda, group)?;
        let arguments = Arguments::new().address(values).address(scales).int(x.rows).int(x.width);
        let grid = (x.rows.div_ceil(16), x.width.div_ceil(512));
        return cuda.kernels.launch(kernel("pack_rows"), grid, 128, 0, arguments.int(group).words(&to));
    }
    if cuda.queue.request(Extra::PackedNorm, (x.x(), x.rows * x.width), &to) {
        return Ok(());
    }
    let gated = cuda.queue.withdraw(|last| match last {
        Fusable::SiluMul { inputs: [gate, up], count, silu, hidden }
            if (count, hidden) == (x.rows * x.width, x.x()) =>
        {
            Some([gate, up, silu, hidden])
        }
        _ => None,
    });
    let (name, arguments) = match gated {
        Some([gate, up, silu, hidden]) => {
            let arguments = Arguments::new().address(gate).address(up).int(x.rows).int(x.width);
            ("silu_mul_pack", arguments.address(silu).address(hidden))
        }
        None => ("pack_floats", Arguments::new().address(x.x()).int(x.rows).int(x.width)),
    };
    let grid = (x.width.div_ceil(256), x.rows.div_ceil(16));
    cuda.kernels.launch(kernel(name), grid, 256, 0, arguments.words(&to))
}

/// Runs of a unit, each with its own scale.
fn runs(dtype: Dtype) -> usize {
    1 + usize::from(matches!(dtype, Dtype::Q2K | Dtype::Q3K | Dtype::Q6K))
}

/// Whether runs of the format have minima.
fn has_minima(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Q4_1 | Dtype::Q5_1 | Dtype::Q2K | Dtype::Q4K | Dtype::Q5K)
}
