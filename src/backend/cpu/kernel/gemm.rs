//! Products with many rows of activations: the blocking that all instruction sets share.
//!
//! A tile of outputs (a few weight rows × a few tokens) keeps its 16 partial sums each in registers. Blocks
//! of [`BLOCK`] inputs are small enough that a panel of weight rows stays in the first-level cache while
//! all tokens pass by; between blocks the partial sums wait in memory, so blocking changes no sum.

use super::Rows;
use crate::ops::matmul::LANES;

/// Inputs in a block: whole blocks of every number type.
const BLOCK: usize = 512;

/// The register tile of an instruction set.
pub(super) trait Tile {
    /// Weight rows in a tile.
    const ROWS: usize;
    /// Tokens in a tile.
    const TOKENS: usize;

    /// sums (ROWS, TOKENS, 16) += x (steps, TOKENS, 16) · w (steps, ROWS, 16), lane by lane, over the steps
    /// in order, each a fused multiply-add.
    fn add(x: &[f32], w: &[f32], sums: &mut [f32]);

    /// out (ROWS, TOKENS) = the sums of the 16 lanes, in the order of [`crate::ops::matmul::reduce`].
    fn reduce(sums: &[f32], out: &mut [f32]);
}

/// Activations in the order in which a tile reads them: (block, tile of tokens, step, token, 16 lanes),
/// zeros where a tile or a step is not full.
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
        let tiles = tokens.div_ceil(tile_tokens);
        (self.inputs, self.tokens, self.tile_tokens) = (inputs, tokens, tile_tokens);
        let values = &mut self.values;
        values.clear();
        values.reserve(tiles * tile_tokens * inputs.next_multiple_of(LANES));
        for block in (0..inputs).step_by(BLOCK) {
            let end = (block + BLOCK).min(inputs);
            for tile in 0..tiles {
                for step in (block..end).step_by(LANES) {
                    let width = LANES.min(end - step);
                    for token in tile * tile_tokens..(tile + 1) * tile_tokens {
                        if token < tokens {
                            values.extend_from_slice(&x[token * inputs + step..][..width]);
                        } else {
                            values.extend_from_slice(&[0.0; LANES][..width]);
                        }
                        values.extend_from_slice(&[0.0; LANES][width..]);
                    }
                }
            }
        }
    }

    /// The part of one block and one tile, (steps, tokens, 16).
    fn part(&self, block: usize, steps: usize, tile: usize) -> &[f32] {
        let tiles = self.tokens.div_ceil(self.tile_tokens);
        let before = block * tiles * self.tile_tokens; // whole blocks are whole steps
        let length = steps * self.tile_tokens * LANES;
        &self.values[before + tile * length..][..length]
    }
}

/// Buffers of one thread, kept between calls.
#[derive(Debug, Default)]
pub(in crate::backend::cpu) struct Scratch {
    row: Vec<f32>,
    panel: Vec<f32>,
    sums: Vec<f32>,
}

/// out (tokens)(rows of w) = x · wᵀ.
pub(super) fn gemm<T: Tile>(x: &Packed, w: Rows<'_>, out: &mut [&mut [f32]], scratch: &mut Scratch) {
    let (inputs, tokens) = (x.inputs, x.tokens);
    let tiles = tokens.div_ceil(T::TOKENS);
    let tile_size = T::ROWS * T::TOKENS * LANES;
    let Scratch { row: widened, panel, sums } = scratch;
    let mut reduced = [0.0; 64];
    let reduced = &mut reduced[..T::ROWS * T::TOKENS];
    for first in (0..w.count()).step_by(T::ROWS) {
        let count = T::ROWS.min(w.count() - first);
        sums.clear();
        sums.resize(tiles * tile_size, 0.0);
        for block in (0..inputs).step_by(BLOCK) {
            let end = (block + BLOCK).min(inputs);
            let steps = (end - block).div_ceil(LANES);
            pack_panel::<T>(w, first, block..end, widened, panel);
            for (tile, sums) in sums.chunks_exact_mut(tile_size).enumerate() {
                T::add(x.part(block, steps, tile), panel, sums);
            }
        }
        for (out, sums) in out.chunks_mut(T::TOKENS).zip(sums.chunks_exact(tile_size)) {
            T::reduce(sums, reduced);
            for (token, out) in out.iter_mut().enumerate() {
                for (row, out) in out[first..first + count].iter_mut().enumerate() {
                    *out = reduced[row * T::TOKENS + token];
                }
            }
        }
    }
}

/// Widens a block of ROWS weight rows to float32 in the order (step, row, 16), zeros past the last row and
/// the last input.
fn pack_panel<T: Tile>(
    w: Rows<'_>,
    first: usize,
    block: std::ops::Range<usize>,
    widened: &mut Vec<f32>,
    panel: &mut Vec<f32>,
) {
    let steps = block.len().div_ceil(LANES);
    panel.clear();
    panel.resize(steps * T::ROWS * LANES, 0.0);
    widened.resize(block.len(), 0.0);
    for row in first..(first + T::ROWS).min(w.count()) {
        w.widen(row, block.clone(), widened);
        for (step, values) in widened.chunks(LANES).enumerate() {
            panel[(step * T::ROWS + row - first) * LANES..][..values.len()].copy_from_slice(values);
        }
    }
}
