//! The plain operations, for any processor. The other instruction sets compile some of these operations for their own
//! features.
//!
//! The kernels `portable` and `wasm` differ only in the multiply-add. `wasm` multiplies, then adds. Every rounding is
//! determined by the source, so it gives the same bits on every processor.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::ops::Range;

use super::gemm::{self, Tile as _};
use super::limits::CHAINS;
use super::q8::Quantized;
use super::{Isa, Rows, Spaced};
use llama_trace_core::config::{Arithmetic, Precision};
use llama_trace_core::error::Result;
use llama_trace_core::ops;
use llama_trace_core::ops::arithmetic::{Fused, MulAdd, Separate};
use llama_trace_core::ops::matmul::LANES;
use llama_trace_core::stop::Stop;
use llama_trace_core::tensor::Dtype;

/// The plain operations, compiled for the build's target. Also used on Arm.
pub(super) static PORTABLE: Portable<Fused> = Portable(Fused);

/// The same without the fused multiply-add, which WebAssembly lacks.
pub(super) static WASM: Portable<Separate> = Portable(Separate);

#[derive(Debug)]
pub(super) struct Portable<M>(M);

impl<M: MulAdd + Debug + Sync> Isa for Portable<M> {
    fn name(&self) -> &'static str {
        match M::ARITHMETIC {
            Arithmetic::Fused => "portable",
            Arithmetic::Separate => "wasm",
        }
    }

    fn arithmetic(&self) -> Arithmetic {
        M::ARITHMETIC
    }

    fn dots(
        &self,
        x: Spaced<'_>,
        w: Rows<'_>,
        _streams: usize,
        out: &mut [&mut [f32]],
        scratch: &mut Vec<f32>,
    ) {
        match w.dtype {
            Dtype::F32 if w.plain() => dots_of_floats::<M, 4>(x, w, f32::from_le_bytes, out),
            Dtype::BF16 => {
                let widen = |bytes| f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16);
                dots_of_floats::<M, 2>(x, w, widen, out);
            }
            _ => dots_by::<M>(x, w, out, scratch),
        }
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
        gemm::gemm::<Tile<M>>(x, w, out, scratch, stop)
    }

    fn tile(&self) -> (usize, usize) {
        (Tile::<M>::ROWS, Tile::<M>::TOKENS)
    }

    fn q8(&self, x: &Quantized, w: Rows<'_>, out: &mut [&mut [f32]]) {
        if w.dtype == Dtype::I8 { q8_by::<M>(x, w, out) } else { super::blocks::portable::<M>(x, w, out) }
    }

    fn qk(&self, query: &[f32], keys: &[f32], stride: usize, out: &mut [f32]) {
        ops::attention::qk_by::<M>(query, keys, stride, out);
    }

    fn mix(
        &self,
        weights: &[f32],
        (count, apart): (usize, usize),
        values: &[f32],
        stride: usize,
        width: usize,
        out: &mut [f32],
    ) {
        for (row, out) in out.chunks_mut(width).enumerate() {
            ops::attention::mix_by::<M>(&weights[row * apart..][..count], values, stride, out);
        }
    }

    fn softmax(&self, row: &mut [f32]) {
        ops::softmax::softmax_by::<M>(row);
    }

    fn silu(&self, gate: &[f32], out: &mut [f32]) {
        ops::swiglu::silu_all_by::<M>(gate, out);
    }

    fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, precision: Precision, out: &mut [f32]) {
        ops::rms_norm::rms_norm_by::<M>(x, weight, eps, precision, out);
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
                *sum = M::mul_add(*sum, factor, 1.0 - factor);
            }
        }
        sums.iter().sum()
    }
}

/// Computes [`Isa::dots`] for any weights. Each row is converted to float32 first.
#[inline(always)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only kernels for x86-64 use it"))]
pub(super) fn dots(x: Spaced<'_>, w: Rows<'_>, out: &mut [&mut [f32]], scratch: &mut Vec<f32>) {
    dots_by::<Fused>(x, w, out, scratch);
}

/// [`dots`] with the multiply-add of `M`.
#[inline(always)]
fn dots_by<M: MulAdd>(x: Spaced<'_>, w: Rows<'_>, out: &mut [&mut [f32]], scratch: &mut Vec<f32>) {
    scratch.resize(w.inputs, 0.0);
    for row in 0..w.count() {
        w.widen(row, 0..w.inputs, scratch);
        for (out, x) in out.iter_mut().zip(x.rows()) {
            out[row] = ops::matmul::dot_by::<M>(x, scratch);
        }
    }
}

/// Computes [`Isa::dots`] for weights of `N` bytes that are used as they are stored.
#[inline(always)]
fn dots_of_floats<M: MulAdd, const N: usize>(
    x: Spaced<'_>,
    w: Rows<'_>,
    widen: impl Fn([u8; N]) -> f32 + Copy,
    out: &mut [&mut [f32]],
) {
    for row in 0..w.count() {
        let weights = w.row(row).as_chunks().0;
        for (out, x) in out.iter_mut().zip(x.rows()) {
            out[row] = ops::matmul::dot_widened::<M, _>(x, weights, widen);
        }
    }
}

/// See [`Isa::q8`].
#[inline(always)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only kernels for x86-64 use it"))]
pub(super) fn q8(x: &Quantized, w: Rows<'_>, out: &mut [&mut [f32]]) {
    q8_by::<Fused>(x, w, out);
}

/// [`q8`] with the multiply-add of `M`.
#[inline(always)]
fn q8_by<M: MulAdd>(x: &Quantized, w: Rows<'_>, out: &mut [&mut [f32]]) {
    for row in 0..w.count() {
        let Some(weights) = w.quantized(row) else { unreachable!("{} has no int8 values", w.dtype) };
        for (token, out) in out.iter_mut().enumerate() {
            let (values, scales) = x.row(token);
            out[row] = ops::quantize::dot_by::<M>(values, scales, x.group, weights);
        }
    }
}

/// See [`gemm::Tile::sum`], for tiles of R weight rows and T tokens.
#[inline(always)]
pub(super) fn sum<M: MulAdd, const R: usize, const T: usize>(
    x: &[f32],
    w: &[f32],
    earlier: &[f32],
    sums: &mut [f32],
) {
    let (x, w) = (x.as_chunks::<T>().0, w.as_chunks::<R>().0);
    let sums = &mut sums.as_chunks_mut::<R>().0[..T];
    let mut tile = [[0.0_f32; R]; T];
    for (x, w) in x.iter().zip(w) {
        for token in 0..T {
            for row in 0..R {
                tile[token][row] = M::mul_add(x[token], w[row], tile[token][row]);
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
pub(super) struct Tile<M>(PhantomData<M>);

impl<M: MulAdd> gemm::Tile for Tile<M> {
    const ROWS: usize = 8;
    const TOKENS: usize = 4;

    fn pack(w: Rows<'_>, first: usize, inputs: Range<usize>, scratch: &mut [f32], panel: &mut [f32]) {
        gemm::pack::<8>(w, first, inputs, scratch, panel);
    }

    fn sum(x: &[f32], w: &[f32], earlier: &[f32], sums: &mut [f32]) {
        match sums.len() / 8 {
            1 => sum::<M, 8, 1>(x, w, earlier, sums),
            2 => sum::<M, 8, 2>(x, w, earlier, sums),
            3 => sum::<M, 8, 3>(x, w, earlier, sums),
            _ => sum::<M, 8, 4>(x, w, earlier, sums),
        }
    }

    fn prefetch(_: *const u8) {}
}
