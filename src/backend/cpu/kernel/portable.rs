//! The plain operations, for any processor; the other instruction sets compile some of them for
//! themselves.

use std::ops::Range;

use super::q8::Quantized;
use super::{Rows, gemm};
use crate::ops;
use crate::ops::matmul::LANES;

/// See [`super::Kernel::dots`].
#[inline(always)]
pub(super) fn dots(x: &[f32], w: Rows<'_>, out: &mut [&mut [f32]], scratch: &mut Vec<f32>) {
    scratch.resize(w.inputs, 0.0);
    for row in 0..w.count() {
        w.widen(row, 0..w.inputs, scratch);
        for (out, x) in out.iter_mut().zip(x.chunks_exact(w.inputs)) {
            out[row] = ops::matmul::dot(x, scratch);
        }
    }
}

/// See [`super::Kernel::q8`].
#[inline(always)]
pub(super) fn q8(x: &Quantized, w: Rows<'_>, out: &mut [&mut [f32]]) {
    for row in 0..w.count() {
        let Some(weights) = w.quantized(row) else { unreachable!("{} has no int8 values", w.dtype) };
        for (token, out) in out.iter_mut().enumerate() {
            let (values, scales) = x.row(token);
            out[row] = ops::quantize::dot(values, scales, x.group, weights);
        }
    }
}

/// See [`gemm::Tile::add`], for tiles of R weight rows and T tokens.
#[inline(always)]
pub(super) fn add<const R: usize, const T: usize>(x: &[f32], w: &[f32], sums: &mut [f32]) {
    let (x, w) = (x.as_chunks::<LANES>().0.as_chunks::<T>().0, w.as_chunks::<LANES>().0.as_chunks::<R>().0);
    let sums = &mut sums.as_chunks_mut::<LANES>().0.as_chunks_mut::<T>().0[..R];
    let mut tile = [[[0.0_f32; LANES]; T]; R];
    tile.copy_from_slice(sums);
    for (x, w) in x.iter().zip(w) {
        for row in 0..R {
            for token in 0..T {
                for lane in 0..LANES {
                    let sum = &mut tile[row][token][lane];
                    *sum = x[token][lane].mul_add(w[row][lane], *sum);
                }
            }
        }
    }
    sums.copy_from_slice(&tile);
}

/// See [`gemm::Tile::reduce`].
#[inline(always)]
pub(super) fn reduce(sums: &[f32], out: &mut [f32]) {
    for (out, sums) in out.iter_mut().zip(sums.as_chunks::<LANES>().0) {
        *out = ops::matmul::reduce(*sums);
    }
}

/// One weight row × 4 tokens.
pub(super) struct Tile;

impl gemm::Tile for Tile {
    const ROWS: usize = 1;
    const TOKENS: usize = 4;

    fn pack(w: Rows<'_>, first: usize, block: Range<usize>, widened: &mut [f32], panel: &mut [f32]) {
        gemm::pack::<1>(w, first, block, widened, panel);
    }

    fn add(x: &[f32], w: &[f32], sums: &mut [f32]) {
        add::<1, 4>(x, w, sums);
    }

    fn reduce(sums: &[f32], out: &mut [f32]) {
        reduce(sums, out);
    }
}
