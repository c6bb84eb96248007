//! Products of many rows in bfloat16, in tiles: the kernels, and their choice by the number of rows.

use std::sync::atomic::Ordering::Relaxed;

use super::{Asked, Input, Run, blocks, gated_words, words};
use crate::Cuda;
use crate::kernels::{Kernel, Kernels};
use crate::matrix::Matrix;
use crate::memory::Buffer;
use llama_trace_core::error::Result;
use llama_trace_kernels::driver::Arguments;

/// A kernel that multiplies many rows in bfloat16. All kernels of one file give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tiles {
    file: &'static str,
    /// `matmul` computes up to three products. `swiglu` computes gate, its SiLU, up and their product.
    matmul: &'static str,
    swiglu: &'static str,
    /// Rows and outputs of a tile.
    sides: (usize, usize),
    /// Number of persistent blocks per multiprocessor, each of which computes one tile after the other. `None` if each
    /// tile has its own block.
    stay: Option<usize>,
    threads: u32,
    /// Bytes of shared memory.
    shared: usize,
}

/// Large and small tiles that every device supports.
pub(crate) const OF_WARPS: [Tiles; 2] = [
    Tiles { shared: 98_304, ..large("matmul_bf16", "matmul_bf16_256", "swiglu_bf16_256") },
    Tiles { shared: 32_768, ..small("matmul_bf16", "matmul_bf16_64", "swiglu_bf16_64") },
];

/// Tiles by warpgroups (four warps together), which are faster, for devices with wgmma.
pub(crate) const OF_WARPGROUPS: [Tiles; 3] = [
    Tiles {
        sides: (192, 256),
        stay: Some(1),
        threads: 384,
        shared: 230_400,
        ..large("matmul_wgmma", "matmul_wgmma_192", "swiglu_wgmma_192")
    },
    Tiles { stay: Some(1), shared: 197_632, ..large("matmul_wgmma", "matmul_wgmma_256", "swiglu_wgmma_256") },
    Tiles { stay: Some(3), shared: 66_560, ..small("matmul_wgmma", "matmul_wgmma_64", "swiglu_wgmma_64") },
];

const fn large(file: &'static str, matmul: &'static str, swiglu: &'static str) -> Tiles {
    Tiles { file, matmul, swiglu, sides: (128, 256), stay: None, threads: 256, shared: 0 }
}

const fn small(file: &'static str, matmul: &'static str, swiglu: &'static str) -> Tiles {
    Tiles { file, matmul, swiglu, sides: (64, 64), stay: None, threads: 128, shared: 0 }
}

impl Tiles {
    /// Launches kernel `name` for `count` tiles of products with these matrices.
    fn launch(
        &self,
        cuda: &Cuda,
        name: &'static str,
        (matrices, count): (&[&Matrix], usize),
        arguments: Arguments,
    ) -> Result<()> {
        let room = self.stay.map(|stay| stay * cuda.queue.device().about().multiprocessors as usize);
        let blocks = room.map_or(count, |room| room.min(count));
        let kernel = Kernel { file: self.file, name, weight: None };
        // The kernel starts to read its weights before the previous kernel has ended. If kernels write these weights,
        // it is launched late instead.
        let made = matrices.iter().any(|matrix| matrix.is_made());
        let launch = if made { Kernels::launch_late } else { Kernels::launch };
        launch(&cuda.kernels, kernel, (blocks, 1), self.threads, self.shared, arguments)
    }
}

/// Returns the best tiles for `rows` rows. `across(outputs)` returns how many tiles of `outputs` outputs cover all
/// outputs. The time is modelled by the number of values that the busiest multiprocessor reads: large tiles read each
/// value less often, small tiles leave no multiprocessor idle.
pub(super) fn suited(cuda: &Cuda, rows: usize, across: impl Fn(usize) -> usize) -> Tiles {
    let all: &[Tiles] = if cuda.warpgroups.load(Relaxed) { &OF_WARPGROUPS } else { &OF_WARPS };
    let multiprocessors = cuda.queue.device().about().multiprocessors as usize;
    let time = |tiles: &&Tiles| {
        let (of_rows, outputs) = tiles.sides;
        let count = rows.div_ceil(of_rows) * across(outputs);
        count.div_ceil(multiprocessors) * (of_rows + outputs)
    };
    // If two take the same time, the first is chosen: it is the larger one.
    all.iter().min_by_key(time).copied().unwrap_or(OF_WARPS[0])
}

/// Multiplies the rows in `run` with the products' matrices, in bfloat16 and in these tiles.
pub(super) fn in_tiles(cuda: &Cuda, x: &Input, products: &[Asked<'_>], run: Run, tiles: Tiles) -> Result<()> {
    let Tiles { matmul, sides: (rows, outputs), .. } = tiles;
    let narrow = x.narrow(cuda)? + (run.first * x.width * size_of::<u16>()) as u64;
    let arguments = Arguments::new().words(&words(products, run.first)).address(narrow).int(run.rows);
    let matrices: Vec<_> = products.iter().map(|product| product.matrix).collect();
    let count = run.rows.div_ceil(rows) * blocks(products, outputs);
    tiles.launch(cuda, matmul, (&matrices, count), arguments)
}

/// Computes products of one input in these tiles, whether they suit the device or not.
pub(crate) fn all_in_tiles(cuda: &Cuda, x: &Input, products: &[Asked<'_>], tiles: Tiles) -> Result<()> {
    x.runs.iter().try_for_each(|run| in_tiles(cuda, x, products, *run, tiles))
}

/// Computes [`super::gated`] for all rows in these tiles. There must be many rows, and an even number of outputs.
pub(crate) fn all_gated_in_tiles(
    cuda: &Cuda,
    x: &Input,
    gate: Asked<'_>,
    up: Asked<'_>,
    (silu, hidden): (&Buffer, &Buffer),
    tiles: Tiles,
) -> Result<()> {
    let Tiles { swiglu, sides: (rows, of_both), .. } = tiles;
    let outputs = gate.matrix.outputs();
    let arguments = Arguments::new().address(x.narrow(cuda)?).int(x.rows);
    let arguments = arguments.words(&gated_words(gate, up, (silu, hidden), 0));
    let arguments = arguments.narrow_too(hidden.at(0), x.rows * outputs, 4);
    let count = x.rows.div_ceil(rows) * outputs.div_ceil(of_both / 2);
    tiles.launch(cuda, swiglu, (&[gate.matrix, up.matrix], count), arguments)
}
