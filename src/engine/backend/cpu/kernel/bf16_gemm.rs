//! Products with many rows of activations on processors that multiply bfloat16 by bfloat16: the blocking that AMX and
//! AVX512-BF16 share.
//!
//! A bfloat16 has 8 of the 24 bits of a float32's significand. A float32 is therefore exactly the sum of three bfloat16
//! values. Three products with these values are as exact as one product in float32. In bfloat16 precision, the
//! activations are bfloat16 values already, and one product is enough.
//!
//! The instructions sum adjacent inputs in pairs. So an output's sum has another order than in
//! [`llama_trace_core::ops::matmul::dot`], which is used for fewer rows. To limit the difference, sums are kept short:
//! each [`STRETCH`] is summed separately, with the smallest of the three parts first, and the stretches are added in
//! order. The relative L2 difference of a product between the two orders stays under 10⁻⁶
//! ([`crate::backend::REORDER_TOLERANCE`]), which a test checks.

use std::ops::Range;

use bytemuck::Zeroable;

use super::bf16_packed::{Aligned, Packed, STRETCH, TokenBlock, cut};
use super::bf16_tiles::{self, BLOCK, Next, SIDE, STEP, Sums, TWO_TILES, Weights};
use super::bf16_unit::Unit;
use super::gemm::Ahead;
use super::{Rows, amx, avx512};
use llama_trace_core::error::Result;
use llama_trace_core::stop::Stop;
use llama_trace_core::tensor::Dtype;

/// Bytes of activations that stay in the L2 cache while rows of weights are read one after the other.
const ACTIVATIONS: usize = 1 << 20;

/// The number of outputs of a token that are written at once. The outputs of the next token are in the next row, often
/// at a distance of a power of two. If only a few outputs per token were written at once, each token's write would go
/// to another page, and all writes to the same few sets of the caches.
const WRITTEN: usize = 256;

/// The distance from one token to the next in the buffer that orders the outputs, in values.
const ORDERED: usize = WRITTEN + SIDE;

/// The buffers of one thread, kept between calls.
#[derive(Debug, Default)]
pub(in crate::backend::cpu) struct Scratch {
    weights: Vec<Aligned>,
    widened: Vec<f32>,
    /// First the sums of a stretch; then, for every 32 weight rows and 32 tokens of a block, the sums of all stretches.
    sums: Vec<Sums>,
    /// The outputs of 16 tokens, [`ORDERED`] values apart.
    ordered: Vec<Aligned>,
}

/// The buffers for the products of a stretch.
struct Buffers<'s> {
    weights: &'s mut [u16],
    widened: &'s mut [f32],
    sums: &'s mut Sums,
}

/// Returns the rows to prefetch in turn number `turn` of `turns`: a part of the 32 weight rows from `first` on, in the
/// inputs `stretch`. After the last row of `w`, there are other rows of its matrix, or invalid addresses, for which a
/// prefetch has no effect.
fn next_of_turn(w: Rows<'_>, first: usize, stretch: &Range<usize>, turn: usize, turns: usize) -> Next {
    let (rows, stride) = (BLOCK.div_ceil(turns), w.row(0).len());
    let at = (first + turn * rows) * stride + w.range(stretch.clone()).start;
    Next { first: w.bytes.as_ptr().wrapping_add(at), rows, stride }
}

impl Unit {
    /// Orders the sums (32 weight rows, 32 tokens) of the weight rows `columns` by token. Applies `finish` to them, and
    /// writes them to `out`, one slice per token.
    fn put(
        self,
        sums: &[Sums],
        columns: &Range<usize>,
        finish: impl Fn(Range<usize>, &mut [f32]),
        ordered: &mut [f32],
        out: &mut [&mut [f32]],
    ) {
        let turns = out.len().div_ceil(BLOCK);
        for (of_tokens, out) in out.chunks_mut(SIDE).enumerate() {
            let mut tiles = (0..).map(|of_rows| {
                sums[of_rows / 2 * turns + of_tokens / 2].tile(of_tokens % 2 * 2 + of_rows % 2)
            });
            for columns in cut(columns.clone(), WRITTEN) {
                for (at, tile) in (0..columns.len()).step_by(SIDE).zip(&mut tiles) {
                    for out in &*out {
                        avx512::prefetch_to_write(out[columns.start + at..].as_ptr().cast());
                    }
                    self.order(tile, ORDERED, &mut ordered[at..]);
                }
                for (out, ordered) in out.iter_mut().zip(ordered.chunks_mut(ORDERED)) {
                    let ordered = &mut ordered[..columns.len()];
                    finish(columns.clone(), ordered);
                    out[columns.clone()].copy_from_slice(ordered);
                }
            }
        }
    }

    /// Computes out (tokens)(rows of w) = x · wᵀ. Applies `finish` to each part of a token's outputs.
    pub(in crate::backend::cpu) fn gemm(
        self,
        x: &Packed,
        w: Rows<'_>,
        finish: impl Fn(Range<usize>, &mut [f32]),
        out: &mut [&mut [f32]],
        scratch: &mut Scratch,
        stop: &Stop,
    ) -> Result<()> {
        let _configured = (self == Self::Amx).then(amx::Configured::new);
        let Scratch { weights, widened, sums, ordered } = scratch;
        weights.resize(STRETCH * BLOCK / STEP, Aligned([0; STEP]));
        widened.resize(w.inputs.min(STRETCH), 0.0);
        sums.resize(self.bytes_of_sums() / size_of::<Sums>() + 1, Sums::zeroed());
        ordered.resize(SIDE * ORDERED * size_of::<f32>() / size_of::<Aligned>(), Aligned([0; STEP]));
        let Some((of_stretch, sums)) = sums.split_first_mut() else { unreachable!("`sums` is not empty") };
        let mut buffers = Buffers { weights: bytemuck::cast_slice_mut(weights), widened, sums: of_stretch };
        for x in x.blocks() {
            let turns = x.turns();
            // The number of inputs whose activations stay in the cache while rows of weights are read.
            let at_once = (ACTIVATIONS / (2 * turns * BLOCK * x.parts) / STRETCH).max(1) * STRETCH;
            for columns in cut(0..w.count(), sums.len() / turns * BLOCK) {
                for inputs in cut(0..w.inputs, at_once) {
                    for (rows, sums) in cut(columns.clone(), BLOCK).zip(sums.chunks_mut(turns)) {
                        stop.check()?;
                        for stretch in cut(inputs.clone(), STRETCH) {
                            // The first row and the first input that are multiplied next.
                            let (first, start) = if stretch.end < inputs.end {
                                (rows.start, stretch.end)
                            } else if rows.end < columns.end {
                                (rows.end, inputs.start)
                            } else if inputs.end < w.inputs {
                                (columns.start, inputs.end)
                            } else {
                                (columns.end, 0)
                            };
                            let next = (first, start..w.inputs.min(start + STRETCH));
                            self.add_stretch(&x, w, (&rows, &stretch), next, sums, &mut buffers);
                        }
                    }
                }
                let out = &mut out[x.tokens.clone()];
                self.put(sums, &columns, &finish, bytemuck::cast_slice_mut(ordered), out);
            }
        }
        Ok(())
    }

    /// Adds the products of a stretch of up to 32 weight rows with the same stretch of the tokens to `sums` (32 tokens
    /// each). The first stretch overwrites `sums`. Meanwhile, the rows of `next` are prefetched.
    fn add_stretch(
        self,
        x: &TokenBlock<'_>,
        w: Rows<'_>,
        (rows, stretch): (&Range<usize>, &Range<usize>),
        (first, after): (usize, Range<usize>),
        sums: &mut [Sums],
        buffers: &mut Buffers<'_>,
    ) {
        let weights = if self.reads_in_place(w, rows, stretch) {
            Weights::in_place(w, rows, stretch.clone())
        } else {
            let weights = &mut buffers.weights[..stretch.len().div_ceil(STEP) * TWO_TILES];
            self.copy(w, rows.clone(), stretch.clone(), buffers.widened, weights);
            Weights::copied(weights)
        };
        let turns = x.turns();
        let mut ahead = Ahead::new(w, first, BLOCK, &after, turns);
        for (turn, (x_now, sums)) in x.stretch(stretch).zip(sums).enumerate() {
            let next = match w.dtype == Dtype::BF16 && !self.is_plain() {
                true => next_of_turn(w, first, &after, turn, turns),
                false => {
                    ahead.ask(avx512::prefetch_far);
                    Next::NONE
                }
            };
            let tiles = (x.tokens.len() - turn * BLOCK).div_ceil(SIDE).min(2);
            if stretch.start == 0 {
                self.sums(weights, x_now, x.parts, tiles, next, sums);
            } else {
                self.sums(weights, x_now, x.parts, tiles, next, buffers.sums);
                self.add(buffers.sums, sums);
            }
        }
    }

    /// Whether the unit multiplies these rows and inputs of `w` without copying them first.
    fn reads_in_place(self, w: Rows<'_>, rows: &Range<usize>, inputs: &Range<usize>) -> bool {
        let whole = rows.len() == BLOCK && inputs.len().is_multiple_of(STEP);
        self == (Self::Avx512Bf16 { in_place: true }) && w.dtype == Dtype::BF16 && whole
    }

    /// Copies some inputs of up to 32 weight rows into two tiles (step, tile, row, input). Positions after the last row
    /// and the last input are zero.
    #[allow(unsafe_code)]
    fn copy(
        self,
        w: Rows<'_>,
        rows: Range<usize>,
        inputs: Range<usize>,
        widened: &mut [f32],
        out: &mut [u16],
    ) {
        let whole = inputs.len().is_multiple_of(STEP);
        if rows.len() < BLOCK || !whole {
            out.fill(0);
        }
        for (i, row) in rows.enumerate() {
            let out = &mut out[i / SIDE * (TWO_TILES / 2) + i % SIDE * STEP..];
            if w.dtype == Dtype::BF16 && whole && !self.is_plain() {
                // SAFETY: a unit other than the plain one exists only if the processor has AVX-512.
                unsafe { bf16_tiles::copy(&w.row(row)[w.range(inputs.clone())], out) };
                continue;
            }
            let widened = &mut widened[..inputs.len()];
            w.widen(row, inputs.clone(), widened);
            for (out, values) in out.chunks_mut(TWO_TILES).zip(widened.chunks(STEP)) {
                for (out, value) in out.iter_mut().zip(values) {
                    *out = (value.to_bits() >> 16) as u16; // rounded to bfloat16 by `widen`
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::super::super::testing::noise;
    use super::super::bf16_unit::plain::units;
    use super::*;
    use llama_trace_core::config::Precision;
    use llama_trace_core::ops;

    #[test]
    fn products_are_those_of_the_weights_and_the_whole_activations() {
        for (inputs, rows, tokens) in [
            (512, 32, 32),
            (520, 33, 1),
            (1000, 16, 17),
            (1536, 70, 40),
            (2049, 5, 130),
            (514, 100, 161),
            (512, 2, 515),
            (2100, 40, 515),
            (512, 300, 20),
            (2100, 270, 256),
            // More rows than the buffer of sums has room for, with the largest block of tokens of a unit.
            (64, 1050, 330),
            (64, 530, 520),
        ] {
            for precision in [Precision::F32, Precision::Bf16] {
                let mut x = noise(inputs * tokens, 3);
                ops::round::row(precision, &mut x);
                let w: Vec<bf16> = noise(inputs * rows, 4).into_iter().map(bf16::from_f32).collect();
                let bytes: Vec<u8> = w.iter().flat_map(|w| w.to_le_bytes()).collect();
                let floats: Vec<u8> = w.iter().flat_map(|w| w.to_f32().to_le_bytes()).collect();
                let mut outputs: Vec<(&str, Dtype, Vec<f32>)> = Vec::new();
                for unit in units() {
                    let mut packed = Packed::default();
                    packed.pack(unit, precision, &x, inputs, &Stop::default()).unwrap();
                    for (dtype, bytes) in [(Dtype::BF16, &bytes), (Dtype::F32, &floats)] {
                        if !unit.takes(dtype, precision) {
                            continue;
                        }
                        let w_rows = Rows { bytes, dtype, inputs, scales: None, precision };
                        let mut out = vec![f32::NAN; rows * tokens];
                        let mut outs: Vec<_> = out.chunks_exact_mut(rows).collect();
                        let stop = Stop::default();
                        // Every second output gets the opposite sign. So the test fails if `finish` receives wrong
                        // columns.
                        let finish = |columns: Range<usize>, out: &mut [f32]| {
                            let odd = columns.zip(out).filter(|(column, _)| column % 2 == 1);
                            odd.for_each(|(_, out)| *out = -*out);
                        };
                        let mut scratch = Scratch::default();
                        unit.gemm(&packed, w_rows, finish, &mut outs, &mut scratch, &stop).unwrap();
                        // The result must not depend on how weights are read.
                        let mut alike =
                            outputs.iter().filter(|other| (other.0, other.1) == (unit.name(), dtype));
                        assert!(
                            alike.all(|other| other.2 == out),
                            "{unit:?} {dtype} {inputs}×{rows}×{tokens}"
                        );
                        outputs.push((unit.name(), dtype, out.clone()));
                        let (mut error, mut norm) = (0.0, 0.0);
                        for (x, out) in x.chunks_exact(inputs).zip(out.chunks_exact(rows)) {
                            for (row, (w, out)) in w.chunks_exact(inputs).zip(out).enumerate() {
                                let exact: f64 =
                                    x.iter().zip(w).map(|(x, w)| f64::from(*x) * w.to_f64()).sum();
                                let exact = if row % 2 == 1 { -exact } else { exact };
                                error += (f64::from(*out) - exact).powi(2);
                                norm += exact.powi(2);
                            }
                        }
                        let error = (error / norm).sqrt();
                        // Two orders of summation may differ by twice this bound.
                        assert!(
                            error < 5e-7,
                            "{unit:?} {precision:?} {dtype} {inputs}×{rows}×{tokens}: {error:e}"
                        );
                    }
                }
            }
        }
    }
}
