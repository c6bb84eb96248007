//! Products with many rows of activations: the blocking that all instruction sets share.
//!
//! A tile of outputs (many weight rows × a few tokens) keeps one partial sum of each output in registers, a row a
//! lane, and adds up the inputs that belong to it: those whose number leaves the same remainder when divided by
//! 16, which is how [`crate::ops::matmul::dot`] sums. The remainders follow one another, and in the end their
//! sums are added by halves. So nothing is summed in another order than there, and no sum waits for another.
//!
//! Inputs are taken in a [`STRETCH`] at a time, so that a panel's part for one remainder stays in the first-level
//! cache while all tokens pass by.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use rayon::prelude::*;

use super::Rows;
use crate::backend::cpu::MIN_PARALLEL;
use crate::ops::matmul::LANES;

/// Inputs in a stretch: whole blocks of every number type.
const STRETCH: usize = 1024;

/// Inputs that are widened at once: whole blocks of every number type.
pub(super) const BLOCK: usize = 256;

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
    fn pack(w: Rows<'_>, first: usize, inputs: Range<usize>, scratch: &mut [f32], panel: &mut [f32]);

    /// sums (TOKENS, ROWS) += Σ over the steps, in order, of x (steps, TOKENS) · w (steps, ROWS), each a fused
    /// multiply-add; where they are `fresh`, they begin at 0.
    fn add(x: &[f32], w: &[f32], fresh: bool, sums: &mut [f32]);

    /// Adds up `sums` (16, TOKENS, ROWS) by halves, in the order of [`crate::ops::matmul::reduce`]: the result
    /// is in the first (TOKENS, ROWS).
    fn reduce(sums: &mut [f32]);
}

/// Activations in the order in which a tile reads them: (stretch, tile of tokens, remainder, step, token), zeros
/// where a tile or a step is not full.
#[derive(Debug, Default)]
pub(in crate::backend::cpu) struct Packed {
    values: Vec<f32>,
    inputs: usize,
    tokens: usize,
    tile_tokens: usize,
}

/// Steps in a stretch of so many inputs.
fn steps(inputs: usize) -> usize {
    inputs.div_ceil(LANES)
}

impl Packed {
    /// Packs `x` (tokens, inputs) for tiles of `tile_tokens`.
    pub(in crate::backend::cpu) fn pack(&mut self, x: &[f32], inputs: usize, tile_tokens: usize) {
        let tokens = x.len() / inputs;
        (self.inputs, self.tokens, self.tile_tokens) = (inputs, tokens, tile_tokens);
        self.values.clear();
        self.values.resize(self.tiles() * tile_tokens * steps(inputs) * LANES, 0.0);
        let mut rest = &mut self.values[..];
        for stretch in (0..inputs).step_by(STRETCH) {
            let stretch = stretch..(stretch + STRETCH).min(inputs);
            let steps = steps(stretch.len());
            let size = steps * LANES * tile_tokens;
            let parts;
            (parts, rest) = rest.split_at_mut(tokens.div_ceil(tile_tokens) * size);
            let fill = |(tile, part): (usize, &mut [f32])| {
                for token in tile * tile_tokens..tokens.min((tile + 1) * tile_tokens) {
                    let row = &x[token * inputs..][stretch.clone()];
                    for (i, value) in row.iter().enumerate() {
                        let (step, remainder) = (i / LANES, i % LANES);
                        part[(remainder * steps + step) * tile_tokens + token % tile_tokens] = *value;
                    }
                }
            };
            if x.len() < MIN_PARALLEL {
                parts.chunks_exact_mut(size).enumerate().for_each(fill);
            } else {
                parts.par_chunks_exact_mut(size).enumerate().for_each(fill);
            }
        }
    }

    /// Number of tiles.
    fn tiles(&self) -> usize {
        self.tokens.div_ceil(self.tile_tokens)
    }

    /// The part of one stretch, which begins with input `start` and has so many steps, one tile and one
    /// remainder: (steps, tokens).
    fn part(&self, start: usize, steps: usize, tile: usize, remainder: usize) -> &[f32] {
        let before = start * self.tiles() * self.tile_tokens; // stretches before it are whole
        let length = steps * self.tile_tokens;
        &self.values[before + (tile * LANES + remainder) * length..][..length]
    }
}

/// Buffers of one thread, kept between calls.
#[derive(Debug, Default)]
pub(in crate::backend::cpu) struct Scratch {
    widened: Vec<Aligned>,
    panel: Vec<Aligned>,
    sums: Vec<Aligned>,
}

/// out (tokens)(rows of w) = x · wᵀ.
pub(super) fn gemm<T: Tile>(x: &Packed, w: Rows<'_>, out: &mut [&mut [f32]], scratch: &mut Scratch) {
    let (rows, tile_size) = (w.count(), T::ROWS * T::TOKENS);
    let vectors = |values: usize| values.div_ceil(LANES);
    let Scratch { widened, panel, sums } = scratch;
    widened.resize(vectors(LANES * BLOCK), Aligned::zeroed());
    panel.resize(vectors(STRETCH * T::ROWS), Aligned::zeroed());
    // (tile, remainder, token, row); what an earlier product left is written over.
    sums.resize(vectors(x.tiles() * LANES * tile_size), Aligned::zeroed());
    let sums: &mut [f32] = &mut bytemuck::cast_slice_mut(sums)[..x.tiles() * LANES * tile_size];

    for first in (0..rows).step_by(T::ROWS) {
        for start in (0..x.inputs).step_by(STRETCH) {
            let stretch = start..(start + STRETCH).min(x.inputs);
            let steps = steps(stretch.len());
            let panel: &mut [f32] = &mut bytemuck::cast_slice_mut(panel)[..LANES * steps * T::ROWS];
            T::pack(w, first, stretch, bytemuck::cast_slice_mut(widened), panel);
            for (remainder, panel) in panel.chunks_exact(steps * T::ROWS).enumerate() {
                for (tile, sums) in sums.chunks_exact_mut(LANES * tile_size).enumerate() {
                    let sums = &mut sums[remainder * tile_size..][..tile_size];
                    T::add(x.part(start, steps, tile, remainder), panel, start == 0, sums);
                }
            }
        }
        let count = T::ROWS.min(rows - first);
        for (out, sums) in out.chunks_mut(T::TOKENS).zip(sums.chunks_exact_mut(LANES * tile_size)) {
            T::reduce(sums);
            for (out, sums) in out.iter_mut().zip(sums.chunks_exact(T::ROWS)) {
                out[first..first + count].copy_from_slice(&sums[..count]);
            }
        }
    }
}

/// Widens some inputs of R weight rows from `first` on to float32 in the order (remainder, step, row), zeros past
/// the last row and the last input.
#[inline(always)]
pub(super) fn pack<const R: usize>(
    w: Rows<'_>,
    first: usize,
    inputs: Range<usize>,
    scratch: &mut [f32],
    panel: &mut [f32],
) {
    let steps = steps(inputs.len());
    panel.fill(0.0);
    for row in 0..R.min(w.count() - first) {
        for start in inputs.clone().step_by(BLOCK) {
            let block = start..(start + BLOCK).min(inputs.end);
            let widened = &mut scratch[..block.len()];
            w.widen(first + row, block, widened);
            for (i, value) in widened.iter().enumerate() {
                let i = start - inputs.start + i;
                panel[(i % LANES * steps + i / LANES) * R + row] = *value;
            }
        }
    }
}

/// See [`Tile::reduce`], for tiles of `size` outputs.
#[inline(always)]
pub(super) fn reduce(sums: &mut [f32], size: usize) {
    let mut width = LANES / 2;
    while width > 0 {
        let (low, high) = sums[..2 * width * size].split_at_mut(width * size);
        for (low, high) in low.iter_mut().zip(high) {
            *low += *high;
        }
        width /= 2;
    }
}
