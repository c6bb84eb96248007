//! Products with many rows of activations: the blocking that all instruction sets share.
//!
//! A tile of outputs (many weight rows × a few tokens) keeps one partial sum of each output in registers, one row per
//! lane. A partial sum adds the inputs whose index has the same remainder modulo 16.
//! [`llama_trace_core::ops::matmul::dot`] sums in the same way, so the order of summation is the same. The partial sums
//! are independent of one another.
//!
//! `dot` then adds the partial sums by halves: those of remainders 0 and 8, those of 4 and 12, then these two results,
//! and so on. The remainders are processed in this order ([`ORDER`]). A sum is added to its partner as soon as both are
//! complete, while the second one is still in registers. At most four sums of a tile wait in memory.
//!
//! Inputs are processed one [`STRETCH`] at a time, as in `dot`. A panel of weights is packed once for all tokens. The
//! tokens are processed in blocks of [`BLOCK_TOKENS`], whose sums fit into the L2 cache.

use std::ops::Range;

use bytemuck::Zeroable;

use super::{Aligned, Rows};
use crate::backend::cpu::{MIN_PARALLEL, memory};
use llama_trace_core::error::Result;
use llama_trace_core::ops;
use llama_trace_core::ops::matmul::{LANES, STRETCH};
use llama_trace_core::stop::Stop;
use llama_trace_core::threads::prelude::*;

/// The maximum number of tokens in a block.
const BLOCK_TOKENS: usize = 128;

/// The number of remainders that a thread packs at once.
const REMAINDERS: usize = 4;

/// The number of inputs that are widened at once. It is a multiple of every number type's block size.
pub(super) const BLOCK: usize = 256;

/// The remainders, in an order in which the two sums of each pair are computed one after the other.
pub(super) const ORDER: [usize; LANES] = [0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15];

/// The number of sums that a tile keeps: four that wait for their partner, and the current one.
const LEVELS: usize = LANES.ilog2() as usize + 1;

/// The size of a cache line in bytes.
const LINE: usize = 64;

/// The register tile of an instruction set.
pub(super) trait Tile {
    /// The number of weight rows in a tile.
    const ROWS: usize;
    /// The maximum number of tokens in a tile.
    const TOKENS: usize;

    /// [`pack`] for panels of ROWS.
    fn pack(w: Rows<'_>, first: usize, inputs: Range<usize>, scratch: &mut [f32], panel: &mut [f32]);

    /// Computes sums (tokens, ROWS) = Σ over the steps, in order, of x (steps, tokens) · w (steps, ROWS), with fused
    /// multiply-adds. Then adds each of the `earlier` sums (…, tokens, ROWS), in order.
    fn sum(x: &[f32], w: &[f32], earlier: &[f32], sums: &mut [f32]);

    /// Prefetches the cache line at `address`. The address need not be valid.
    fn prefetch(address: *const u8);
}

/// Activations in the order in which a tile reads them: (stretch, block of tokens, remainder, tile of tokens, step,
/// token). Steps that are not full are padded with zeros.
#[derive(Debug, Default)]
pub(in crate::backend::cpu) struct Packed {
    values: Vec<f32>,
    inputs: usize,
    tokens: usize,
    tile_tokens: usize,
}

impl Packed {
    /// Packs `x` (tokens, inputs) for tiles of `tile_tokens`.
    pub(in crate::backend::cpu) fn pack(
        &mut self,
        x: &[f32],
        inputs: usize,
        tile_tokens: usize,
        stop: &Stop,
    ) -> Result<()> {
        let tokens = x.len() / inputs;
        (self.inputs, self.tokens, self.tile_tokens) = (inputs, tokens, tile_tokens);
        let size = stretches(inputs).map(|stretch| part_size(&(0..tokens), &stretch)).sum();
        self.values.clear();
        memory::grow(&mut self.values, size)?;
        self.values.resize(size, 0.0);
        // A part holds REMAINDERS remainders of one stretch of one block.
        let mut parts = Vec::new();
        let mut rest = &mut self.values[..];
        for stretch in stretches(inputs) {
            for block in blocks(tokens, tile_tokens) {
                let all;
                (all, rest) = rest.split_at_mut(part_size(&block, &stretch));
                let size = all.len() / LANES * REMAINDERS;
                for (part, out) in all.chunks_mut(size).enumerate() {
                    parts.push((block.clone(), stretch.clone(), part * REMAINDERS, out));
                }
            }
        }
        let fill = |(block, stretch, first, part): (Range<usize>, Range<usize>, usize, &mut [f32])| {
            stop.check()?;
            let steps = steps(&stretch);
            let remainder_size = part.len() / REMAINDERS;
            for rows in tiles(&block, tile_tokens) {
                let at = (rows.start - block.start) * steps;
                for remainder in 0..REMAINDERS {
                    let out = &mut part[remainder * remainder_size + at..][..rows.len() * steps];
                    let inputs_now = (stretch.start + first + remainder..stretch.end).step_by(LANES);
                    for (out, input) in out.chunks_exact_mut(rows.len()).zip(inputs_now) {
                        for (out, row) in out.iter_mut().zip(rows.clone()) {
                            *out = x[row * inputs + input];
                        }
                    }
                }
            }
            Ok(())
        };
        if x.len() < MIN_PARALLEL {
            parts.into_iter().try_for_each(fill)
        } else {
            parts.into_par_iter().try_for_each(fill)
        }
    }
}

/// Returns the stretches of `inputs` inputs.
fn stretches(inputs: usize) -> impl Iterator<Item = Range<usize>> {
    (0..inputs).step_by(STRETCH).map(move |start| start..(start + STRETCH).min(inputs))
}

/// Returns the blocks of `tokens` tokens.
fn blocks(tokens: usize, tile_tokens: usize) -> impl Iterator<Item = Range<usize>> {
    let size = BLOCK_TOKENS.next_multiple_of(tile_tokens);
    (0..tokens).step_by(size).map(move |start| start..(start + size).min(tokens))
}

/// Returns the tiles of a block's tokens. There are as few as possible, of sizes as equal as possible, because a small
/// tile takes as long as a large one.
fn tiles(block: &Range<usize>, tile_tokens: usize) -> impl Iterator<Item = Range<usize>> {
    let count = block.len().div_ceil(tile_tokens).max(1);
    let (tokens, larger) = (block.len() / count, block.len() % count);
    let mut end = block.start;
    (0..count).map(move |tile| {
        let start = end;
        end += tokens + usize::from(tile < larger);
        start..end
    })
}

/// The number of inputs in a stretch with the same remainder.
fn steps(stretch: &Range<usize>) -> usize {
    stretch.len().div_ceil(LANES)
}

/// Returns the number of values of one stretch of a block in [`Packed`].
fn part_size(block: &Range<usize>, stretch: &Range<usize>) -> usize {
    block.len() * steps(stretch) * LANES
}

/// The buffers of one thread, kept between calls.
#[derive(Debug, Default)]
pub(in crate::backend::cpu) struct Scratch {
    widened: Vec<Aligned>,
    panel: Vec<Aligned>,
    sums: Vec<Aligned>,
}

/// Returns the first `count` values of `buffer`, which grows if necessary and keeps its contents.
fn take(buffer: &mut Vec<Aligned>, count: usize) -> &mut [f32] {
    if buffer.len() * LANES < count {
        buffer.resize(count.div_ceil(LANES), Aligned::zeroed());
    }
    &mut bytemuck::cast_slice_mut(buffer)[..count]
}

/// The distance between the parts of two remainders in a panel, in values: the size of a part plus one cache line.
/// [`Tile::pack`] writes to all sixteen parts in turn. At a distance of a power of two, they would share a few cache
/// lines.
pub(super) fn panel_stride(inputs: usize, rows: usize) -> usize {
    inputs.div_ceil(LANES) * rows + LANES
}

/// Computes out (tokens)(rows of w) = x · wᵀ.
pub(super) fn gemm<T: Tile>(
    x: &Packed,
    w: Rows<'_>,
    out: &mut [&mut [f32]],
    scratch: &mut Scratch,
    stop: &Stop,
) -> Result<()> {
    let rows = w.count();
    let widened = take(&mut scratch.widened, LANES * BLOCK);
    let mut packed = &x.values[..];
    for stretch in stretches(x.inputs) {
        let (start, steps) = (stretch.start, steps(&stretch));
        let stride = panel_stride(stretch.len(), T::ROWS);
        let panel = take(&mut scratch.panel, LANES * stride);
        let x_now;
        (x_now, packed) = packed.split_at(part_size(&(0..x.tokens), &stretch));
        for first in (0..rows).step_by(T::ROWS) {
            stop.check()?;
            T::pack(w, first, stretch.clone(), widened, panel);
            let columns = first..rows.min(first + T::ROWS);
            let turns = LANES * x.tokens.div_ceil(T::TOKENS);
            let mut ahead = Ahead::new(w, first + T::ROWS, T::ROWS, &stretch, turns);
            let mut of_blocks = x_now;
            for block in blocks(x.tokens, T::TOKENS) {
                stop.check()?;
                let x;
                (x, of_blocks) = of_blocks.split_at(part_size(&block, &stretch));
                // (tile, level, token, row): the sum over 2^level remainders.
                let sums = take(&mut scratch.sums, block.len() * LEVELS * T::ROWS);
                for (turn, remainder) in ORDER.into_iter().enumerate() {
                    // The number of waiting sums is the number of trailing ones of `turn` in binary.
                    let level = turn.trailing_ones() as usize;
                    let panel = &panel[remainder * stride..][..steps * T::ROWS];
                    let mut x = &x[remainder * x.len() / LANES..][..x.len() / LANES];
                    let mut sums = &mut sums[..];
                    for tokens in tiles(&block, T::TOKENS) {
                        let (of_tile, all);
                        (of_tile, x) = x.split_at(steps * tokens.len());
                        (all, sums) = sums.split_at_mut(LEVELS * tokens.len() * T::ROWS);
                        let (earlier, now) = all.split_at_mut(level * tokens.len() * T::ROWS);
                        T::sum(of_tile, panel, earlier, &mut now[..tokens.len() * T::ROWS]);
                        ahead.ask(T::prefetch);
                    }
                }
                let mut sums = &sums[..];
                for tokens in tiles(&block, T::TOKENS) {
                    let of_tile;
                    (of_tile, sums) = sums.split_at(LEVELS * tokens.len() * T::ROWS);
                    let of_tile = of_tile[(LEVELS - 1) * tokens.len() * T::ROWS..].chunks_exact(T::ROWS);
                    for (out, sums) in out[tokens].iter_mut().zip(of_tile) {
                        let (out, sums) = (&mut out[columns.clone()], &sums[..columns.len()]);
                        match start {
                            0 => out.copy_from_slice(sums),
                            _ => ops::elementwise::add_to(sums, out),
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// The weights after the current panel. They are prefetched while the panel is multiplied, a few cache lines at a time.
pub(super) struct Ahead {
    /// The next address to prefetch, and the end of the part in its row.
    next: *const u8,
    end: *const u8,
    /// The size of a row's part in bytes, and the distance from one row to the next in bytes.
    part: usize,
    row: usize,
    /// The number of rows after this one.
    rows: usize,
    /// The number of cache lines per turn.
    lines: usize,
}

impl Ahead {
    /// Prepares to prefetch a stretch of `rows` rows from `first` on, in `turns` turns. After the last row of `w`,
    /// there are other rows of its matrix, or invalid addresses, for which a prefetch has no effect.
    pub(super) fn new(w: Rows<'_>, first: usize, rows: usize, stretch: &Range<usize>, turns: usize) -> Self {
        let bytes = w.range(stretch.clone());
        let (part, row) = (bytes.len(), w.row(0).len());
        let next = w.bytes.as_ptr().wrapping_add(first * row + bytes.start);
        let lines = (rows * part.div_ceil(LINE)).div_ceil(turns);
        Self { next, end: next.wrapping_add(part), part, row, rows: rows - 1, lines }
    }

    /// Prefetches the cache lines of one turn with `prefetch`.
    #[inline(always)]
    pub(super) fn ask(&mut self, prefetch: impl Fn(*const u8)) {
        for _ in 0..self.lines {
            if self.next >= self.end {
                if self.rows == 0 {
                    return;
                }
                self.rows -= 1;
                self.end = self.end.wrapping_add(self.row);
                self.next = self.end.wrapping_sub(self.part);
            }
            prefetch(self.next);
            self.next = self.next.wrapping_add(LINE);
        }
    }
}

/// Widens some inputs of R weight rows from `first` on to float32, in the order (remainder, step, row). Positions after
/// the last row and the last input are zero. [`panel_stride`] is the distance between remainders.
#[inline(always)]
pub(super) fn pack<const R: usize>(
    w: Rows<'_>,
    first: usize,
    inputs: Range<usize>,
    scratch: &mut [f32],
    panel: &mut [f32],
) {
    let stride = panel_stride(inputs.len(), R);
    panel.fill(0.0);
    for row in 0..R.min(w.count() - first) {
        for start in inputs.clone().step_by(BLOCK) {
            let block = start..(start + BLOCK).min(inputs.end);
            let widened = &mut scratch[..block.len()];
            w.widen(first + row, block, widened);
            for (i, value) in widened.iter().enumerate() {
                let i = start - inputs.start + i;
                panel[i % LANES * stride + i / LANES * R + row] = *value;
            }
        }
    }
}
