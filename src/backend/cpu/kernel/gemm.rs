//! Products with many rows of activations: the blocking that all instruction sets share.
//!
//! A tile of outputs (a few weight rows × a few tokens) keeps its 16 partial sums each in registers. A block of
//! [`BLOCK`] inputs of [`TOKENS`] tokens stays in the second-level cache while panels of weight rows pass by,
//! and a panel in the first-level cache while the tokens do; between blocks the partial sums wait in memory, so
//! blocking changes no sum.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use super::Rows;
use crate::ops::matmul::LANES;

/// Inputs in a block: whole blocks of every number type.
const BLOCK: usize = 512;

/// Tokens in a block: whole tiles of every instruction set.
const TOKENS: usize = 128;

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
    fn pack(w: Rows<'_>, first: usize, block: Range<usize>, widened: &mut [f32], panel: &mut [f32]);

    /// sums (ROWS, TOKENS, 16) += x (steps, TOKENS, 16) · w (steps, ROWS, 16), lane by lane, over the steps
    /// in order, each a fused multiply-add.
    fn add(x: &[f32], w: &[f32], sums: &mut [f32]);

    /// Each of `out` = the sum of its 16 lanes in `sums`, in the order of [`crate::ops::matmul::reduce`].
    fn reduce(sums: &[f32], out: &mut [f32]);
}

/// Activations in the order in which a tile reads them: (block, tile of tokens, step, token, 16 lanes),
/// zeros where a tile or a step is not full.
#[derive(Debug, Default)]
pub(in crate::backend::cpu) struct Packed {
    values: Vec<Aligned>,
    inputs: usize,
    tokens: usize,
    tile_tokens: usize,
}

impl Packed {
    /// Packs `x` (tokens, inputs) for tiles of `tile_tokens`.
    pub(in crate::backend::cpu) fn pack(&mut self, x: &[f32], inputs: usize, tile_tokens: usize) {
        let tokens = x.len() / inputs;
        let tiles = tokens.div_ceil(tile_tokens);
        (self.inputs, self.tokens, self.tile_tokens) = (inputs, tokens, tile_tokens);
        let mut part = Aligned([0.0; LANES]);
        self.values.clear();
        for block in (0..inputs).step_by(BLOCK) {
            let end = (block + BLOCK).min(inputs);
            for tile in 0..tiles {
                for step in (block..end).step_by(LANES) {
                    let width = LANES.min(end - step);
                    for token in tile * tile_tokens..(tile + 1) * tile_tokens {
                        part.0.fill(0.0);
                        if token < tokens {
                            part.0[..width].copy_from_slice(&x[token * inputs + step..][..width]);
                        }
                        self.values.push(part);
                    }
                }
            }
        }
    }

    /// The part of one block and one tile, (steps, tokens, 16).
    fn part(&self, block: usize, steps: usize, tile: usize) -> &[f32] {
        let tiles = self.tokens.div_ceil(self.tile_tokens);
        let before = block / LANES * tiles * self.tile_tokens; // whole blocks are whole steps
        let length = steps * self.tile_tokens;
        bytemuck::cast_slice(&self.values[before + tile * length..][..length])
    }
}

/// Buffers of one thread, kept between calls.
#[derive(Debug, Default)]
pub(in crate::backend::cpu) struct Scratch {
    widened: Vec<f32>,
    panel: Vec<Aligned>,
    sums: Vec<Aligned>,
    reduced: Vec<f32>,
}

/// out (tokens)(rows of w) = x · wᵀ.
pub(super) fn gemm<T: Tile>(x: &Packed, w: Rows<'_>, out: &mut [&mut [f32]], scratch: &mut Scratch) {
    let (inputs, rows) = (x.inputs, w.count());
    let (panels, tile_size) = (rows.div_ceil(T::ROWS), T::ROWS * T::TOKENS);
    let Scratch { widened, panel, sums, reduced } = scratch;
    panel.resize(BLOCK / LANES * T::ROWS, Aligned::zeroed());
    widened.resize(BLOCK, 0.0);
    for (part, out) in out.chunks_mut(TOKENS).enumerate() {
        let (first_tile, tiles) = (part * TOKENS / T::TOKENS, out.len().div_ceil(T::TOKENS));
        sums.clear();
        sums.resize(panels * tiles * tile_size, Aligned::zeroed());
        for block in (0..inputs).step_by(BLOCK) {
            let block = block..(block + BLOCK).min(inputs);
            let steps = block.len().div_ceil(LANES);
            for (i, sums) in sums.chunks_exact_mut(tiles * tile_size).enumerate() {
                let panel = bytemuck::cast_slice_mut(&mut panel[..steps * T::ROWS]);
                T::pack(w, i * T::ROWS, block.clone(), &mut widened[..block.len()], panel);
                for (tile, sums) in sums.chunks_exact_mut(tile_size).enumerate() {
                    T::add(
                        x.part(block.start, steps, first_tile + tile),
                        panel,
                        bytemuck::cast_slice_mut(sums),
                    );
                }
            }
        }
        reduced.resize(sums.len(), 0.0);
        T::reduce(bytemuck::cast_slice(sums), reduced);
        for (i, reduced) in reduced.chunks_exact(tile_size).enumerate() {
            let (first, tile) = (i / tiles * T::ROWS, i % tiles * T::TOKENS);
            let count = T::ROWS.min(rows - first);
            for (token, out) in out[tile..].iter_mut().take(T::TOKENS).enumerate() {
                for (row, out) in out[first..first + count].iter_mut().enumerate() {
                    *out = reduced[row * T::TOKENS + token];
                }
            }
        }
    }
}

/// Widens a block of R weight rows from `first` on to float32 in the order (step, row, 16), zeros past the last
/// row and the last input.
#[inline(always)]
pub(super) fn pack<const R: usize>(
    w: Rows<'_>,
    first: usize,
    block: Range<usize>,
    widened: &mut [f32],
    panel: &mut [f32],
) {
    let panel = panel.as_chunks_mut::<LANES>().0;
    let count = R.min(w.count() - first);
    for row in 0..count {
        w.widen(first + row, block.clone(), widened);
        let (lanes, rest) = widened.as_chunks::<LANES>();
        for (step, values) in lanes.iter().enumerate() {
            panel[step * R + row] = *values;
        }
        if !rest.is_empty() {
            let last = &mut panel[lanes.len() * R + row];
            *last = [0.0; LANES];
            last[..rest.len()].copy_from_slice(rest);
        }
    }
    for row in count..R {
        for step in panel.iter_mut().skip(row).step_by(R) {
            *step = [0.0; LANES];
        }
    }
}
