//! The plain operations, for any processor. The other instruction sets compile some of these operations for their own
//! features.

use std::ops::Range;

use super::gemm::{self, Tile as _};
use super::limits::CHAINS;
use super::q8::Quantized;
use super::{Isa, Rows, Spaced, blocks};
use llama_trace_core::error::Result;
use llama_trace_core::ops;
use llama_trace_core::ops::matmul::LANES;
use llama_trace_core::stop::Stop;
use llama_trace_core::tensor::Dtype;

/// The plain operations, compiled for the build's target. Also used on Arm.
pub(super) static PORTABLE: Portable = Portable;

#[derive(Debug)]
pub(super) struct Portable;

impl Isa for Portable {
    fn name(&self) -> &'static str {
        "portable"
    }

    fn dots(
        &self,
        x: Spaced<'_>,
        w: Rows<'_>,
        _streams: usize,
        out: &mut [&mut [f32]],
        scratch: &mut Vec<f32>,
    ) {
        dots(x, w, out, scratch);
    }

    fn streams(&self) -> &'static [usize] {
        &[]
    }

    fn gemm(
        &self,
        x: &gemm::Packed,
        w: Rows<'_>,
        out: &mut [&mut [f32]],
        scratch: &mut gemm::Scratch,
        stop: &Stop,
    ) -> Result<()> {
        gemm::gemm::<Tile>(x, w, out, scratch, stop)
    }

    fn tile(&self) -> (usize, usize) {
        (Tile::ROWS, Tile::TOKENS)
    }

    fn q8(&self, x: &Quantized, w: Rows<'_>, out: &mut [&mut [f32]]) {
        if w.dtype == Dtype::I8 { q8(x, w, out) } else { blocks::portable(x, w, out) }
    }

    fn read(&self, bytes: &[u8], _ahead: bool) -> u64 {
        let words = bytes.as_chunks::<8>().0.iter();
        words.fold(0, |all, word| all ^ u64::from_ne_bytes(*word))
    }

    fn read_width(&self) -> usize {
        8
    }

    fn multiply(&self, rounds: usize, factor: f32) -> f32 {
        let mut sums = [1.0_f32; CHAINS * LANES];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = sum.mul_add(factor, 1.0 - factor);
            }
        }
        sums.iter().sum()
    }
}

/// See [`Isa::dots`].
#[inline(always)]
pub(super) fn dots(x: Spaced<'_>, w: Rows<'_>, out: &mut [&mut [f32]], scratch: &mut Vec<f32>) {
    scratch.resize(w.inputs, 0.0);
    for row in 0..w.count() {
        w.widen(row, 0..w.inputs, scratch);
        for (out, x) in out.iter_mut().zip(x.rows()) {
            out[row] = ops::matmul::dot(x, scratch);
        }
    }
}

/// See [`Isa::q8`].
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

/// See [`gemm::Tile::sum`], for tiles of R weight rows and T tokens.
#[inline(always)]
pub(super) fn sum<const R: usize, const T: usize>(x: &[f32], w: &[f32], earlier: &[f32], sums: &mut [f32]) {
    let (x, w) = (x.as_chunks::<T>().0, w.as_chunks::<R>().0);
    let sums = &mut sums.as_chunks_mut::<R>().0[..T];
    let mut tile = [[0.0_f32; R]; T];
    for (x, w) in x.iter().zip(w) {
        for token in 0..T {
            for row in 0..R {
                tile[token][row] = x[token].mul_add(w[row], tile[token][row]);
            }
        }
    }
    for earlier in earlier.as_chunks::<R>().0.chunks_exact(T) {
        for (sums, earlier) in tile.iter_mut().zip(earlier) {
            for (sum, earlier) in sums.iter_mut().zip(earlier) {
                *sum += *earlier;
            }
        }
    }
    sums.copy_from_slice(&tile);
}

/// 8 weight rows × 4 tokens.
pub(super) struct Tile;

impl gemm::Tile for Tile {
    const ROWS: usize = 8;
    const TOKENS: usize = 4;

    fn pack(w: Rows<'_>, first: usize, inputs: Range<usize>, scratch: &mut [f32], panel: &mut [f32]) {
        gemm::pack::<8>(w, first, inputs, scratch, panel);
    }

    fn sum(x: &[f32], w: &[f32], earlier: &[f32], sums: &mut [f32]) {
        match sums.len() / 8 {
            1 => sum::<8, 1>(x, w, earlier, sums),
            2 => sum::<8, 2>(x, w, earlier, sums),
            3 => sum::<8, 3>(x, w, earlier, sums),
            _ => sum::<8, 4>(x, w, earlier, sums),
        }
    }

    fn prefetch(_: *const u8) {}
}
