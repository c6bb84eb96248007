//! AVX-512 as an instruction set of [`Isa`], without and with VNNI.

use std::ops::Range;

use half::{bf16, f16};

use super::super::compiled::{compiled_methods, row_operations};
use super::super::gemm::{self, Tile as _};
use super::super::isa::{Isa, MIN_QUERIES};
use super::super::q8::{Quantized, Tiling};
use super::super::{Aligned, Rows, Spaced, avx2, rows, vnni};
use super::tile::Tile;
use super::{attention, dots, dots_of_blocks, exp, multiply, read, widen_f16};
use llama_trace_core::config::{Pairing, Precision};
use llama_trace_core::error::Result;
use llama_trace_core::ops;
use llama_trace_core::ops::matmul::STRETCH;
use llama_trace_core::stop::Stop;
use llama_trace_core::tensor::Dtype;

/// AVX-512 F, BW, DQ and VL: 16 values at once.
pub(in super::super) static AVX512: Avx512 = Avx512 { vnni: false };

/// The same with VNNI: int8 products have 64 values at once.
pub(in super::super) static VNNI: Avx512 = Avx512 { vnni: true };

#[derive(Debug)]
pub(in super::super) struct Avx512 {
    vnni: bool,
}

impl Isa for Avx512 {
    fn name(&self) -> &'static str {
        if self.vnni { "avx512vnni" } else { "avx512" }
    }

    fn dots(
        &self,
        x: Spaced<'_>,
        w: Rows<'_>,
        streams: usize,
        out: &mut [&mut [f32]],
        scratch: &mut Vec<f32>,
    ) {
        if w.plain() {
            dots::dots(x, w, streams, out);
        } else if w.dtype.is_blocks() && w.precision != Precision::Bf16 {
            avx2::dots_of_floats(x, w, out);
        } else {
            dots_of_blocks(x, w, out, scratch);
        }
    }

    fn streams(&self) -> &'static [usize] {
        &[1, 4, 8]
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
        match self.vnni {
            true if w.dtype != Dtype::I8 => vnni::blocks(x, w, out),
            true => vnni::q8(x, w, out),
            false => avx2::AVX2.q8(x, w, out),
        }
    }

    fn tiling(&self) -> Option<Tiling> {
        if self.vnni { Some(vnni::TILING) } else { avx2::AVX2.tiling() }
    }

    fn packs_keys(&self, queries: usize, width: usize) -> bool {
        queries >= MIN_QUERIES && width <= STRETCH
    }

    row_operations!("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl");

    fn qk(&self, query: &[f32], keys: &[f32], stride: usize, out: &mut [f32]) {
        attention::qk(query, keys, stride, out);
    }

    fn pack_keys(&self, keys: &[f32], stride: usize, count: usize, width: usize, packed: &mut Vec<Aligned>) {
        attention::pack_keys(keys, stride, count, width, packed);
    }

    fn qk_packed(
        &self,
        queries: &[f32],
        width: usize,
        packed: &[Aligned],
        part: &Range<usize>,
        out: (&mut [f32], usize),
    ) {
        attention::qk_packed(queries, width, packed, part, out);
    }

    fn mix(
        &self,
        weights: &[f32],
        of_row: (usize, usize),
        values: &[f32],
        stride: usize,
        width: usize,
        out: &mut [f32],
    ) {
        attention::mix(weights, of_row, values, stride, width, out);
    }

    fn softmax(&self, row: &mut [f32]) {
        exp::softmax(row);
    }

    fn silu(&self, gate: &[f32], out: &mut [f32]) {
        exp::silu(gate, out);
    }

    fn widen_f16(&self, values: &[f16], out: &mut [f32]) {
        widen_f16(values, out);
    }

    fn read(&self, bytes: &[u8], ahead: bool) -> u64 {
        if ahead { read::<true>(bytes) } else { read::<false>(bytes) }
    }

    fn read_width(&self) -> usize {
        64
    }

    fn multiply(&self, rounds: usize, factor: f32) -> f32 {
        multiply(rounds, factor)
    }

    fn multiply_int8(&self, rounds: usize, factor: i32) -> f32 {
        if self.vnni { vnni::multiply(rounds, factor) } else { avx2::AVX2.multiply_int8(rounds, factor) }
    }
}
