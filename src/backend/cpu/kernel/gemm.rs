//! Products with many rows of activations: the blocking that all instruction sets share.
//!
//! A tile of outputs (many weight rows × a few tokens) keeps one partial sum of each output in registers, a row a
//! lane, and adds up the inputs that belong to it: those whose number leaves the same remainder when divided by
//! 16, which is how [`crate::ops::matmul::dot`] sums. So nothing is summed in another order than there, and no
//! sum waits for another.
//!
//! There the partial sums are added by halves: the sums of remainders 0 and 8, of 4 and 12, and then these two.
//! The remainders are taken in that [`ORDER`], in which a sum is added to the one before it as soon as both are
//! there, while one of them still is in registers; never more than four of a tile's wait in memory.
//!
//! A remainder's inputs are taken [`STEPS`] at a time, so that this part of the panel stays in the first-level
//! cache while all tokens pass by.

use bytemuck::{Pod, Zeroable};
use rayon::prelude::*;

use super::Rows;
use crate::backend::cpu::MIN_PARALLEL;
use crate::ops::matmul::LANES;

/// Inputs of one remainder that are added up before the next tile's turn.
const STEPS: usize = 96;

/// Inputs that are widened at once: whole blocks of every number type.
pub(super) const BLOCK: usize = 256;

/// The remainders, each pair of sums one after the other.
const ORDER: [usize; LANES] = [0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15];

/// Sums that a tile keeps: four that wait for their partner, and the one that is added up.
const LEVELS: usize = LANES.ilog2() as usize + 1;

/// Bytes in a line of the caches.
const LINE: usize = 64;

/// 16 values where a vector of any width loads them at once, inside one line of the cache.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
struct Aligned([f32; LANES]);

/// The register tile of an instruction set.
pub(super) trait Tile {
    /// Weight rows in a tile.
    const ROWS: usize;
    /// Tokens in a tile.
    const TOKENS: usize;

    /// [`pack`] for panels of ROWS.
    fn pack(w: Rows<'_>, first: usize, scratch: &mut [f32], panel: &mut [f32]);

    /// sums (TOKENS, ROWS) += Σ over the steps, in order, of x (steps, TOKENS) · w (steps, ROWS), each a fused
    /// multiply-add; where they are `fresh`, they begin at 0. Then every one of `earlier` (…, TOKENS, ROWS) is
    /// added to them, in order.
    fn add(x: &[f32], w: &[f32], fresh: bool, earlier: &[f32], sums: &mut [f32]);

    /// Asks for the line at `address`, which need be no memory of ours, before it is needed.
    fn prefetch(address: *const u8);
}

/// Activations in the order in which a tile reads them: (remainder, part of [`STEPS`] steps, tile of tokens, step,
/// token), zeros where a tile or a step is not full.
#[derive(Debug, Default)]
pub(in crate::backend::cpu) struct Packed {
    values: Vec<f32>,
    inputs: usize,
    tokens: usize,
    tile_tokens: usize,
}

impl Packed {
    /// Packs `x` (tokens, inputs) for tiles of `tile_tokens`.
    pub(in crate::backend::cpu) fn pack(&mut self, x: &[f32], inputs: usize, tile_tokens: usize) {
        let tokens = x.len() / inputs;
        (self.inputs, self.tokens, self.tile_tokens) = (inputs, tokens, tile_tokens);
        let (steps, tiles) = (self.steps(), self.tiles());
        self.values.clear();
        self.values.resize(LANES * steps * tiles * tile_tokens, 0.0);
        let fill = |(remainder, out): (usize, &mut [f32])| {
            for (token, row) in x.chunks_exact(inputs).enumerate() {
                let (tile, token) = (token / tile_tokens, token % tile_tokens);
                for (part, out) in out.chunks_mut(STEPS * tiles * tile_tokens).enumerate() {
                    let steps = out.len() / (tiles * tile_tokens);
                    let tile = &mut out[tile * steps * tile_tokens..][..steps * tile_tokens];
                    let values = row.iter().skip(part * STEPS * LANES + remainder).step_by(LANES);
                    for (out, value) in tile.chunks_exact_mut(tile_tokens).zip(values) {
                        out[token] = *value;
                    }
                }
            }
        };
        let remainder = steps * tiles * tile_tokens;
        if x.len() < MIN_PARALLEL {
            self.values.chunks_exact_mut(remainder).enumerate().for_each(fill);
        } else {
            self.values.par_chunks_exact_mut(remainder).enumerate().for_each(fill);
        }
    }

    /// Number of tiles.
    fn tiles(&self) -> usize {
        self.tokens.div_ceil(self.tile_tokens)
    }

    /// Inputs that leave the same remainder.
    fn steps(&self) -> usize {
        self.inputs.div_ceil(LANES)
    }
}

/// Buffers of one thread, kept between calls.
#[derive(Debug, Default)]
pub(in crate::backend::cpu) struct Scratch {
    widened: Vec<Aligned>,
    panel: Vec<Aligned>,
    sums: Vec<Aligned>,
}

/// The first `count` values of `buffer`, which grows to hold them. What was there before is there still.
fn take(buffer: &mut Vec<Aligned>, count: usize) -> &mut [f32] {
    if buffer.len() * LANES < count {
        buffer.resize(count.div_ceil(LANES), Aligned::zeroed());
    }
    &mut bytemuck::cast_slice_mut(buffer)[..count]
}

/// Values from one remainder's part of a panel to the next: one line of the cache more than the part has, for
/// [`Tile::pack`] writes to all sixteen in turn, and a power of two between them would have them share a few
/// lines.
pub(super) fn panel_stride(inputs: usize, rows: usize) -> usize {
    inputs.div_ceil(LANES) * rows + LANES
}

/// out (tokens)(rows of w) = x · wᵀ.
pub(super) fn gemm<T: Tile>(x: &Packed, w: Rows<'_>, out: &mut [&mut [f32]], scratch: &mut Scratch) {
    let (rows, tile_size) = (w.count(), T::ROWS * T::TOKENS);
    let (steps, tiles, stride) = (x.steps(), x.tiles(), panel_stride(x.inputs, T::ROWS));
    let widened = take(&mut scratch.widened, LANES * BLOCK);
    let panel = take(&mut scratch.panel, LANES * stride);
    // (tile, level, token, row): the sum of 2^level remainders.
    let sums = take(&mut scratch.sums, tiles * LEVELS * tile_size);

    for first in (0..rows).step_by(T::ROWS) {
        T::pack(w, first, widened, panel);
        let mut ahead = Ahead::new::<T>(w, first, LANES * steps.div_ceil(STEPS) * tiles);
        for (turn, remainder) in ORDER.into_iter().enumerate() {
            // As many sums wait for this one as there are ones at the end of the binary number.
            let level = turn.trailing_ones() as usize;
            let panel = &panel[remainder * stride..][..steps * T::ROWS];
            let x = &x.values[remainder * steps * tiles * T::TOKENS..][..steps * tiles * T::TOKENS];
            let parts = panel.chunks(STEPS * T::ROWS).zip(x.chunks(STEPS * tiles * T::TOKENS));
            for (part, (panel, x)) in parts.enumerate() {
                let last = (part + 1) * STEPS >= steps;
                let x = x.chunks_exact(panel.len() / T::ROWS * T::TOKENS);
                for (x, sums) in x.zip(sums.chunks_exact_mut(LEVELS * tile_size)) {
                    let (earlier, sums) = sums.split_at_mut(level * tile_size);
                    let earlier = if last { earlier } else { &mut [] };
                    T::add(x, panel, part == 0, earlier, &mut sums[..tile_size]);
                    ahead.prefetch::<T>();
                }
            }
        }
        let count = T::ROWS.min(rows - first);
        for (out, sums) in out.chunks_mut(T::TOKENS).zip(sums.chunks_exact(LEVELS * tile_size)) {
            let sums = sums[(LEVELS - 1) * tile_size..].chunks_exact(T::ROWS);
            for (out, sums) in out.iter_mut().zip(sums) {
                out[first..first + count].copy_from_slice(&sums[..count]);
            }
        }
    }
}

/// The rows that come after a panel's: they are asked for while the panel is at work, a few lines at a time.
struct Ahead {
    next: *const u8,
    end: *const u8,
    lines: usize,
}

impl Ahead {
    /// For the rows after the panel that begins at row `first`, in `turns` turns. Past the last row of `w`, other
    /// rows of its matrix follow, or an address that is asked for in vain.
    fn new<T: Tile>(w: Rows<'_>, first: usize, turns: usize) -> Self {
        let row = w.row(0).len();
        let next = w.bytes.as_ptr().wrapping_add((first + T::ROWS) * row);
        let lines = (T::ROWS * row).div_ceil(LINE).div_ceil(turns);
        Self { next, end: next.wrapping_add(T::ROWS * row), lines }
    }

    /// One turn.
    #[inline(always)]
    fn prefetch<T: Tile>(&mut self) {
        for _ in 0..self.lines {
            if self.next < self.end {
                T::prefetch(self.next);
                self.next = self.next.wrapping_add(LINE);
            }
        }
    }
}

/// Widens R weight rows from `first` on to float32 in the order (remainder, step, row), zeros past the last row
/// and the last input. From one remainder to the next it is [`panel_stride`].
#[inline(always)]
pub(super) fn pack<const R: usize>(w: Rows<'_>, first: usize, scratch: &mut [f32], panel: &mut [f32]) {
    let stride = panel_stride(w.inputs, R);
    panel.fill(0.0);
    for row in 0..R.min(w.count() - first) {
        for start in (0..w.inputs).step_by(BLOCK) {
            let block = start..(start + BLOCK).min(w.inputs);
            let widened = &mut scratch[..block.len()];
            w.widen(first + row, block, widened);
            for (i, value) in widened.iter().enumerate() {
                panel[i % LANES * stride + (start + i) / LANES * R + row] = *value;
            }
        }
    }
}
