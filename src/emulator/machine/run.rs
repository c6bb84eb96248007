//! Runs a launch: its blocks one after the other.

use std::collections::HashMap;

use super::operations::LANES;
use super::program::Program;
use super::warp::{Block, Stopped, Warp};

/// The size of a launch: the numbers of blocks and of threads per block, and the bytes of dynamic shared memory.
#[derive(Clone, Copy)]
pub(crate) struct Grid {
    pub(crate) blocks: [u32; 3],
    pub(crate) threads: [u32; 3],
    pub(crate) shared: u32,
}

/// The bytes of shared memory that a block can have on every device from compute capability 8.0 on; 8.6, 8.9 and 12.0
/// have the least. The second number is for kernels with wgmma, which are only for 9.0, and for large integer tiles,
/// which are only for devices with enough shared memory.
const MOST_SHARED: usize = 99 << 10;
const MOST_OF_LARGE: usize = 227 << 10;

/// Runs the kernel `name` over a grid, with arguments at these addresses. `known` returns whether bytes of the device's
/// memory are allocated. Returns false if there is no such kernel.
pub(crate) fn run(
    program: &Program,
    name: &str,
    grid: Grid,
    arguments: &[*const u8],
    known: &dyn Fn(u64, usize) -> bool,
) -> bool {
    let Some(entry) = program.entries.get(name) else { return false };
    assert_eq!(arguments.len(), entry.parameters.len(), "the parameters of {name}");
    let bytes = entry.parameters.last().map_or(0, |(first, bytes)| first + bytes);
    let mut parameters = vec![0; bytes];
    for ((first, bytes), argument) in entry.parameters.iter().zip(arguments) {
        // SAFETY: an argument has as many bytes as the kernel's parameter.
        let argument = unsafe { std::slice::from_raw_parts(*argument, *bytes) };
        parameters[*first..first + bytes].copy_from_slice(argument);
    }
    let known = |at: u64, bytes: usize| {
        let constant = |words: &[u64]| {
            let first = words.as_ptr() as u64;
            at >= first && at + bytes as u64 <= first + size_of_val(words) as u64
        };
        known(at, bytes) || program.constants.iter().any(|words| constant(words))
    };
    let shared = entry.shared + grid.shared as usize;
    let is_large = name.contains("wgmma") || ["matmul_q8_128", "matmul_q8_wide"].contains(&name);
    let most = if is_large { MOST_OF_LARGE } else { MOST_SHARED };
    assert!(
        shared <= most,
        "{name}: {shared} bytes of shared memory, and a block may not have more than {most}"
    );
    let [x, y, z] = grid.blocks;
    for block in (0..z).flat_map(|z| (0..y).flat_map(move |y| (0..x).map(move |x| [x, y, z]))) {
        run_block(Block {
            entry,
            threads: grid.threads,
            block,
            blocks: grid.blocks,
            parameters: &parameters,
            // Uninitialised memory is NaN.
            shared: vec![0xff; shared],
            arrivals: HashMap::new(),
            known: &known,
        });
    }
    true
}

fn run_block(mut block: Block) {
    let threads = block.threads.iter().product::<u32>() as usize;
    let warps = threads.div_ceil(LANES);
    let mut warps: Vec<Warp> =
        (0..warps).map(|number| Warp::new(block.entry, number, threads - number * LANES)).collect();
    loop {
        let waiting = warps.iter_mut().filter_map(|warp| match warp.run(&mut block) {
            Stopped::AtBarrier => Some(warp),
            Stopped::Ended => None,
        });
        let waiting: Vec<&mut Warp> = waiting.collect();
        if waiting.is_empty() {
            return;
        }
        waiting.into_iter().for_each(Warp::pass_barrier);
    }
}
