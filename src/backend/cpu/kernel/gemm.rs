//! Products with many rows of activations: the blocking that all instruction sets share.
//!
//! A tile of outputs (a few weight rows × a few tokens) keeps its 16 partial sums each in registers over a
//! [`BLOCK`] of inputs. The tiles of a [`GROUP`] of tokens keep theirs in the first-level cache, beside a panel
//! of weight rows, over a [`STRETCH`] of inputs; for that long the panels stay in the second-level cache while
//! all tokens pass by. Between blocks and stretches the partial sums wait in memory, so blocking changes no sum.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use super::Rows;
use crate::ops::matmul::LANES;

/// Inputs in a block: whole blocks of every number type.
const BLOCK: usize = 512;

/// Inputs in a stretch: whole blocks.
const STRETCH: usize = 2048;

/// Tokens in a group: whole tiles of every instruction set.
const GROUP: usize = 16;

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

    /// Number of tiles.
    fn tiles(&self) -> usize {
        self.tokens.div_ceil(self.tile_tokens)
    }

    /// The part of one block and one tile, (steps, tokens, 16).
    fn part(&self, block: usize, steps: usize, tile: usize) -> &[f32] {
        let before = block / LANES * self.tiles() * self.tile_tokens; // whole blocks are whole steps
        let length = steps * self.tile_tokens;
        bytemuck::cast_slice(&self.values[before + tile * length..][..length])
    }
}

/// Buffers of one thread, kept between calls.
#[derive(Debug, Default)]
pub(in crate::backend::cpu) struct Scratch {
    widened: Vec<f32>,
    panels: Vec<Aligned>,
    sums: Vec<Aligned>,
    reduced: Vec<f32>,
}

/// out (tokens)(rows of w) = x · wᵀ.
pub(super) fn gemm<T: Tile>(x: &Packed, w: Rows<'_>, out: &mut [&mut [f32]], scratch: &mut Scratch) {
    let (inputs, rows) = (x.inputs, w.count());
    let (count, tile_size) = (rows.div_ceil(T::ROWS), T::ROWS * T::TOKENS);
    let Scratch { widened, panels, sums, reduced } = scratch;
    widened.resize(BLOCK, 0.0);
    // (panel, block, step, row)
    let panel_size = STRETCH / LANES * T::ROWS;
    panels.resize(count * panel_size, Aligned::zeroed());
    // (group of tokens, panel, tile, row, token)
    let sums_size = GROUP / T::TOKENS * tile_size;
    sums.clear();
    sums.resize(out.len().div_ceil(GROUP) * count * sums_size, Aligned::zeroed());
    reduced.resize(sums_size, 0.0);

    for stretch in (0..inputs).step_by(STRETCH) {
        let end = (stretch + STRETCH).min(inputs);
        let blocks = (stretch..end).step_by(BLOCK).map(|start| start..(start + BLOCK).min(end));
        for (i, panel) in panels.chunks_exact_mut(panel_size).enumerate() {
            let parts = panel.chunks_mut(BLOCK / LANES * T::ROWS);
            for (block, panel) in blocks.clone().zip(parts) {
                let widened = &mut widened[..block.len()];
                T::pack(w, i * T::ROWS, block, widened, bytemuck::cast_slice_mut(panel));
            }
        }
        for (group, sums) in sums.chunks_exact_mut(count * sums_size).enumerate() {
            let first_tile = group * GROUP / T::TOKENS;
            for (panel, sums) in panels.chunks_exact(panel_size).zip(sums.chunks_exact_mut(sums_size)) {
                for (block, panel) in blocks.clone().zip(panel.chunks(BLOCK / LANES * T::ROWS)) {
                    let steps = block.len().div_ceil(LANES);
                    let panel = bytemuck::cast_slice(&panel[..steps * T::ROWS]);
                    let tiles = (first_tile..x.tiles()).zip(sums.chunks_exact_mut(tile_size));
                    for (tile, sums) in tiles {
                        T::add(x.part(block.start, steps, tile), panel, bytemuck::cast_slice_mut(sums));
                    }
                }
            }
        }
    }
    for (out, sums) in out.chunks_mut(GROUP).zip(sums.chunks_exact(count * sums_size)) {
        for (i, sums) in sums.chunks_exact(sums_size).enumerate() {
            T::reduce(bytemuck::cast_slice(sums), reduced);
            let first = i * T::ROWS;
            let count = T::ROWS.min(rows - first);
            for (out, reduced) in out.chunks_mut(T::TOKENS).zip(reduced.chunks_exact(tile_size)) {
                for (token, out) in out.iter_mut().enumerate() {
                    for (row, out) in out[first..first + count].iter_mut().enumerate() {
                        *out = reduced[row * T::TOKENS + token];
                    }
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
