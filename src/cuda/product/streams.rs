//! Integer products of up to 16 rows, whose weights go through shared memory. For one row there are separate kernels
//! (`stream_q8.cu`; for blocks of 256, `stream_tiles.cu`, which uses tensor cores). Several rows use tensor cores
//! (`stream_q8_16.cu`).
//!
//! With one row, as in a decode pass, neighbouring operations are fused into the launch. Before the product: the norm
//! of its input and its int8 values. After it: RoPE of queries and keys, the cache of keys and values, and the
//! residual. If an intermediate value is recorded, it is computed by its own launch; the bits are the same.

use std::sync::atomic::Ordering::Relaxed;

use super::{Asked, Input, Run, gated_words, in_chunks, with_sum, with_turns, words};
use crate::Cuda;
use crate::fusable::Fusable;
use crate::kernels::Kernel;
use crate::matrix::Matrix;
use crate::memory::Buffer;
use crate::norm;
use llama_trace_core::config::CacheDtype;
use llama_trace_core::error::Result;
use llama_trace_core::tensor::Dtype;
use llama_trace_kernels::driver::{Address, Arguments, Extra, pair};
use llama_trace_kernels::sources::LARGE;

/// Number of activations that share a scale.
pub(super) const GROUP: usize = 32;

/// Maximum number of rows.
const MOST: usize = 16;

/// The files and the names of the kernels for one row. Arguments: `struct Products`, `struct Source`, units or tiles,
/// `struct Added`, the cache's number type, `struct Ring` (only for tiles), and `struct Turns`.
const OF_ONE_ROW: (&str, &str) = ("stream_q8", "stream_q8_1");
const OF_TILES: (&str, &str) = ("stream_tiles", "stream_tiles_1");

/// The kernels for one row of the gate. Arguments: `struct Gated`, `struct Source`, the addresses of the int8 result,
/// and `struct Ring` (only for tiles).
const GATED_ROW: (&str, &str) = ("stream_q8", "stream_gated_q8_1");
const GATED_TILES: (&str, &str) = ("stream_tiles", "stream_gated_tiles_1");

/// Words of `struct Source`.
const SOURCE: usize = 2 + norm::WORDS;

/// Maximum number of blocks (256 threads each) that share a multiprocessor. The rest of the multiprocessor is for the
/// first blocks of the next kernel.
const BLOCKS_OF_EACH: usize = 2;

/// Warps of a block.
const WARPS: usize = 8;

/// Rows of weights of a block, and of a warp.
const OUTPUTS: usize = 16;
const OF_WARP: usize = 2;

/// Sizes for tiles of one row of x. `SEGMENTS`: how many groups of a row one copy brings to shared memory, eight for
/// each warp. If 64 groups do not fit, 32 are copied, for half of the warps. `STAGES`: minimum and maximum number of
/// buffers. `NEXT_GROUP`: the distance in values from the terms of one group to those of the next. There are two
/// buffers of terms for all groups of a segment.
const SEGMENTS: [usize; 2] = [64, 32];
const STAGES: [usize; 2] = [2, 4];
const NEXT_GROUP: usize = OUTPUTS + 4;

/// Sizes of the other kernels: groups per copy, and the number of buffers.
const PIECE: usize = 32;
const PLACES: usize = 4;

/// Outputs of a block of the gated kernels.
const TILE: usize = 32;

/// The largest static shared memory of a kernel, plus what the device reserves for a block, in bytes: for one row, and
/// for several.
const OWN_SHARED: [usize; 2] = [2 << 10, 22 << 10];

fn up(count: usize, to: usize) -> usize {
    count.next_multiple_of(to)
}

/// Bytes of `groups` groups of a row of weights (`values_room` of `stream.cuh`, with separate scales).
fn piece(dtype: Dtype, groups: usize) -> usize {
    let bytes = groups * GROUP / dtype.block() * dtype.block_bytes();
    match dtype {
        Dtype::I8 => bytes + up(4 * groups + 12, 16),
        _ if dtype.block_bytes().is_multiple_of(16) => up(bytes, 16),
        _ => up(bytes + 15, 16),
    }
}

/// [`piece`], padded so that rows of weights lie in different banks (`row_room`).
fn room(dtype: Dtype, groups: usize) -> usize {
    16 * ((piece(dtype, groups) / 16) | 1)
}

/// The number of sums that a product of several rows needs for each group of x: 0 if the format has no minima.
fn sums(dtype: Dtype) -> usize {
    match dtype {
        Dtype::Q2K => 2,
        Dtype::Q4_1 | Dtype::Q5_1 | Dtype::Q4K | Dtype::Q5K => 1,
        _ => 0,
    }
}

/// Shared memory of a kernel for one row: the bytes, and for tiles the number of stages and of groups in a segment.
#[derive(Clone, Copy)]
struct Room {
    shared: usize,
    ring: Option<[usize; 2]>,
}

impl Room {
    /// Returns the sizes for a row of `width` values, with a `norm` or without. `None` if a block does not fit.
    fn of(cuda: &Cuda, dtype: Dtype, width: usize, norm: bool) -> Option<Self> {
        let groups = width / GROUP;
        // For one row, formats with an offset need sums too.
        let sums = match dtype {
            Dtype::Q3K | Dtype::Q6K => 2,
            Dtype::Q4_0 | Dtype::Q5_0 => 1,
            _ => sums(dtype),
        };
        let x = GROUP * groups + 4 * up(groups, 4) * (1 + sums);
        let norm = if norm { norm::shared(width) } else { 0 };
        let whole = cuda.queue.device().about().shared;
        if !is_large(dtype) {
            let shared = PLACES * WARPS * OF_WARP * piece(dtype, PIECE) + x + norm;
            return (shared + OWN_SHARED[0] <= whole).then_some(Self { shared, ring: None });
        }
        // Prefers large segments, then many blocks on a multiprocessor, then many stages.
        let fits = |blocks: usize, segment: usize| {
            let of_segment = groups.min(segment);
            let (stage, terms) = (OUTPUTS * room(dtype, of_segment), 2 * 4 * NEXT_GROUP * of_segment);
            (STAGES[0]..=STAGES[1]).rev().find_map(|stages| {
                let shared = stages * stage + x + terms.max(norm);
                let fits = blocks * (shared + OWN_SHARED[0]) <= whole;
                fits.then_some(Self { shared, ring: Some([stages, segment]) })
            })
        };
        let fitting = |segment| (1..=BLOCKS_OF_EACH).rev().find_map(|blocks| fits(blocks, segment));
        SEGMENTS.into_iter().find_map(fitting)
    }
}

/// Whether one row is multiplied by tiles on tensor cores.
fn is_large(dtype: Dtype) -> bool {
    dtype.is_blocks() && dtype.block() == LARGE
}

/// Shared memory of the kernels for 8 or 16 rows (`struct Tiles`).
fn shared_of_some(dtype: Dtype, rows: usize, width: usize) -> usize {
    PLACES * OUTPUTS * room(dtype, PIECE) + rows * (width / GROUP) * (GROUP + 4 + 4 * sums(dtype))
}

/// The maximum number of rows of one launch if there are `rows` rows in all: 1, 8 or 16. `None` if no kernel fits.
fn at_once(cuda: &Cuda, dtype: Dtype, width: usize, rows: usize) -> Option<usize> {
    let room = |shared: usize, of: usize| shared + OWN_SHARED[of] <= cuda.queue.device().about().shared;
    match rows {
        1 => Room::of(cuda, dtype, width, true).map(|_| 1),
        _ => [16, 8].into_iter().find(|rows| room(shared_of_some(dtype, *rows, width), 1)),
    }
}

/// Whether these kernels support these matrices and `x`.
fn takes<'a>(cuda: &Cuda, x: &Input, matrices: impl IntoIterator<Item = &'a Matrix>, group: usize) -> bool {
    let fits = |matrix: &Matrix| match matrix.dtype() {
        Dtype::I8 => matrix.group() == GROUP && matrix.first().is_multiple_of(GROUP),
        dtype => dtype.is_blocks(),
    };
    cuda.streams.load(Relaxed)
        && group == GROUP
        && x.width.is_multiple_of(GROUP)
        && (1..=MOST).contains(&x.rows)
        && matrices.into_iter().all(fits)
}

/// Launches a kernel over up to `blocks` blocks, as many as run at once. `shared` is its dynamic shared memory in
/// bytes; `of` is 0 for one row and 1 for several.
fn launch(
    cuda: &Cuda,
    kernel: Kernel,
    blocks: usize,
    (shared, of): (usize, usize),
    arguments: Arguments,
    fusable: Fusable,
) -> Result<()> {
    let fitting = (cuda.queue.device().about().shared / (shared + OWN_SHARED[of])).clamp(1, BLOCKS_OF_EACH);
    let room = fitting * cuda.queue.device().about().multiprocessors as usize;
    cuda.kernels.launch_fusable(kernel, (blocks.min(room), 1), 256, shared, arguments, fusable)
}

/// Adds `struct Ring`, if the kernel has one.
fn with_ring(arguments: Arguments, room: Room) -> Arguments {
    match room.ring {
        Some([stages, segment]) => arguments.words(&[pair(stages, segment)]),
        None => arguments,
    }
}

/// Whether x is the norm of the row in `struct Source`.
fn is_norm(source: &[u64; SOURCE]) -> bool {
    source[..2] == [0; 2] && source[3] != 0
}

/// Returns the input of the kernels for one row: `struct Source`.
fn source(cuda: &Cuda, x: &Input) -> Result<[u64; SOURCE]> {
    let mut words = [0; SOURCE];
    if !x.is_whole() {
        if let Some(norm) = x.norm(cuda) {
            words[2..].copy_from_slice(&norm.words());
            return Ok(words);
        }
        // Here every block quantises the whole row itself. For a wide row, a separate launch is faster. If a gate
        // kernel computes the row and is not launched yet, it can also quantise the row.
        if x.width <= norm::KEPT && !cuda.queue.offers(Extra::Int8OfGate, (x.x(), x.width)) {
            words[2] = x.x();
            return Ok(words);
        }
    }
    words[..2].copy_from_slice(&x.whole(cuda, GROUP)?);
    Ok(words)
}

/// Computes the products if these kernels support the matrices and rows. Returns whether they do.
pub(super) fn multiply(cuda: &Cuda, x: &Input, products: &[Asked<'_>], group: usize) -> Result<bool> {
    let dtype = products[0].matrix.dtype();
    let Some(at_once) = at_once(cuda, dtype, x.width, x.rows) else { return Ok(false) };
    if !takes(cuda, x, products.iter().map(|product| product.matrix), group) {
        return Ok(false);
    }
    if x.rows == 1 {
        let source = source(cuda, x)?;
        let Some(room) = Room::of(cuda, dtype, x.width, is_norm(&source)) else { return Ok(false) };
        let ((file, name), units, each) = match room.ring {
            Some(_) => (OF_TILES, super::blocks(products, OUTPUTS), 1),
            None => (OF_ONE_ROW, super::blocks(products, OF_WARP), WARPS),
        };
        let arguments = Arguments::new().words(&words(products, 0)).words(&source).int(units);
        let arguments = with_sum(arguments, products, (0, 1)).int(number_of(cuda.cache_dtype));
        let (arguments, turns) = with_turns(with_ring(arguments, room), products, true);
        let kernel = Kernel { file, name, weight: Some(dtype) };
        launch(cuda, kernel, units.div_ceil(each), (room.shared, 0), arguments, turns)?;
        return Ok(true);
    }
    let whole = x.whole(cuda, GROUP)?;
    in_chunks(Run { first: 0, rows: x.rows, many: false }, at_once, |first, rows| {
        let (name, room) = if rows <= 8 { ("stream_q8_8", 8) } else { ("stream_q8_16", 16) };
        let tiles = super::blocks(products, OUTPUTS);
        let arguments = Arguments::new().words(&words(products, first)).words(&from(whole, x.width, first));
        let arguments = with_sum(arguments.int(rows).int(tiles), products, (first, rows));
        let kernel = Kernel { file: "stream_q8_16", name, weight: Some(dtype) };
        launch(cuda, kernel, tiles, (shared_of_some(dtype, room, x.width), 1), arguments, Fusable::No)
    })?;
    Ok(true)
}

/// The number of the cache's number type in the kernel.
fn number_of(dtype: CacheDtype) -> usize {
    match dtype {
        CacheDtype::F32 => 0,
        CacheDtype::F16 => 1,
        CacheDtype::Bf16 => 2,
    }
}

/// Returns the addresses of values and scales from row `first` on.
fn from([values, scales]: [Address; 2], width: usize, first: usize) -> [Address; 2] {
    [values + (first * width) as u64, scales + (first * width / GROUP * 4) as u64]
}

/// Computes gate, its SiLU, up and their product, if these kernels support these matrices and rows. Returns whether
/// they do.
pub(super) fn gated(
    cuda: &Cuda,
    x: &Input,
    gate: Asked<'_>,
    up: Asked<'_>,
    outs: (&Buffer, &Buffer),
    group: usize,
) -> Result<bool> {
    let (dtype, tiles) = (gate.matrix.dtype(), gate.matrix.outputs().div_ceil(TILE));
    let Some(at_once) = at_once(cuda, dtype, x.width, x.rows) else { return Ok(false) };
    if dtype != up.matrix.dtype() || !takes(cuda, x, [gate.matrix, up.matrix], group) {
        return Ok(false);
    }
    if x.rows == 1 {
        let source = source(cuda, x)?;
        let Some(room) = Room::of(cuda, dtype, x.width, is_norm(&source)) else { return Ok(false) };
        let arguments = Arguments::new().words(&gated_words(gate, up, outs, 0)).words(&source);
        let arguments = with_ring(with_int8(arguments, outs.1, gate.matrix.outputs(), (0, 1)), room);
        let (file, name) = if room.ring.is_some() { GATED_TILES } else { GATED_ROW };
        launch(
            cuda,
            Kernel { file, name, weight: Some(dtype) },
            tiles,
            (room.shared, 0),
            arguments,
            Fusable::No,
        )?;
        return Ok(true);
    }
    let whole = x.whole(cuda, GROUP)?;
    in_chunks(Run { first: 0, rows: x.rows, many: false }, at_once, |first, rows| {
        let (name, room) = if rows <= 8 { ("stream_gated_q8_8", 8) } else { ("stream_gated_q8_16", 16) };
        let arguments = Arguments::new().words(&gated_words(gate, up, outs, first));
        let arguments = arguments.words(&from(whole, x.width, first)).int(rows);
        let arguments = with_int8(arguments, outs.1, gate.matrix.outputs(), (first, rows));
        let kernel = Kernel { file: "stream_q8_16", name, weight: Some(dtype) };
        launch(cuda, kernel, tiles, (shared_of_some(dtype, room, x.width), 1), arguments, Fusable::No)
    })?;
    Ok(true)
}

/// Adds the optional int8 result of a gate: `rows` rows of `hidden`, from `first` on.
fn with_int8(
    arguments: Arguments,
    hidden: &Buffer,
    outputs: usize,
    (first, rows): (usize, usize),
) -> Arguments {
    let result = outputs.is_multiple_of(TILE).then_some((hidden.at(first * outputs), rows * outputs));
    arguments.extra(Extra::Int8OfGate, result, 2)
}

/// If the last gate kernel is not launched yet, changes it so that it also quantises its result into `to`, the
/// addresses of values and scales. Returns whether it was changed.
pub(super) fn quantize_too(cuda: &Cuda, result: (Address, usize), to: [Address; 2]) -> bool {
    cuda.queue.change(|last| {
        // The kernel must not overwrite its own input.
        !last.all().contains(&to[0]) && last.request(Extra::Int8OfGate, result, &to)
    })
}
