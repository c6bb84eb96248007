//! Products with many rows of activations where the processor multiplies bfloat16 by bfloat16: the blocking that
//! AMX and AVX512-BF16 share.
//!
//! A bfloat16 has 8 of the 24 bits of a float32's significand, so a float32 is the sum of three of them, exactly:
//! three products lose nothing that one in float32 keeps. In bfloat16 precision the activations are bfloat16
//! values already, and one product is enough.
//!
//! The instructions sum neighbouring inputs in pairs, so an output's sum has another order than that of
//! [`crate::ops::matmul::dot`], by which fewer rows are multiplied. Sums are kept short for that: a [`STRETCH`]
//! is added up by itself, the smallest of the three parts first, and the stretches follow one another. Between
//! the two orders the relative L2 difference of a product stays under 10⁻⁶ ([`crate::backend::ORDERS_APART`]), which a
//! test holds.

use std::ops::Range;

use rayon::prelude::*;

use super::bf16_tiles::{SIDE, STEP, TWO_TILES};
use super::gemm::Ahead;
use super::limits::CHAINS;
use super::{Rows, amx, avx512, avx512bf16};
use crate::backend::cpu::{MIN_PARALLEL, memory};
use crate::checkpoint::Dtype;
use crate::config::Precision;
use crate::error::Result;
use crate::ops;
use crate::stop::Stop;

/// What multiplies bfloat16 values. A value of this type exists only for what the processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backend::cpu) enum Unit {
    /// Tiles of AMX: 16 × 16 sums at once.
    Amx,
    /// AVX512-BF16: 16 sums at once.
    Avx512Bf16,
    /// Plain loops, to test the blocking by.
    #[cfg(test)]
    Plain,
}

/// Weight rows, and tokens, whose sums are made at once: two tiles by two.
const BLOCK: usize = 2 * SIDE;

/// Inputs that are summed before they are added to the inputs before them.
const STRETCH: usize = 512;

/// Tokens whose activations stay in the second-level cache while all rows of weights pass by, where they are one part
/// each. The weights are copied once for so many.
const TOKENS: usize = 512;

/// Inputs from which a product is worth a unit's while.
const MIN_INPUTS: usize = 512;

/// Rounds of the multiply loop that are one round of four tiles.
const AMX_ROUNDS: usize = 64;

/// 64 bytes where a tile's row loads at once.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Aligned([u16; STEP]);

/// The bfloat16 values that a float32 is the sum of, the largest last.
fn parts(x: f32) -> [u16; 3] {
    /// The bfloat16 next to `x` on the side of zero.
    fn upper(x: f32) -> u16 {
        (x.to_bits() >> 16) as u16
    }
    fn value(upper: u16) -> f32 {
        f32::from_bits(u32::from(upper) << 16)
    }
    if !x.is_finite() {
        return [0, 0, if x.is_nan() { 0x7fc0 } else { upper(x) }];
    }
    let high = upper(x);
    let rest = x - value(high);
    let middle = upper(rest);
    [upper(rest - value(middle)), middle, high]
}

/// Activations as a unit reads them: (block of tokens, stretch, 32 tokens, part, step, tile, pair of inputs, token,
/// input of the pair), zeros where a tile or a step is not full.
#[derive(Debug, Default)]
pub(in crate::backend::cpu) struct Packed {
    values: Vec<Aligned>,
    inputs: usize,
    tokens: usize,
    parts: usize,
}

/// The blocks of [`TOKENS`] into which `tokens` of so many parts are cut, each a multiple of [`BLOCK`] but for the last.
fn blocks(tokens: usize, parts: usize) -> impl Iterator<Item = Range<usize>> {
    ranges(tokens, TOKENS / parts / BLOCK * BLOCK)
}

/// The ranges of `step` into which `count` is cut.
fn ranges(count: usize, step: usize) -> impl Iterator<Item = Range<usize>> {
    (0..count).step_by(step).map(move |start| start..(start + step).min(count))
}

impl Packed {
    /// Packs `x` (tokens, inputs).
    pub(in crate::backend::cpu) fn pack(
        &mut self,
        precision: Precision,
        x: &[f32],
        inputs: usize,
        stop: &Stop,
    ) -> Result<()> {
        let tokens = x.len() / inputs;
        (self.inputs, self.tokens) = (inputs, tokens);
        self.parts = if precision == Precision::Bf16 { 1 } else { 3 };
        let parts_wanted = self.parts;
        let steps: usize = ranges(inputs, STRETCH).map(|stretch| stretch.len().div_ceil(STEP)).sum();
        let zero = Aligned([0; STEP]);
        let count = tokens.div_ceil(BLOCK) * steps * parts_wanted * TWO_TILES / STEP;
        self.values.clear();
        memory::grow(&mut self.values, count)?;
        self.values.resize(count, zero);
        // A unit of work is a stretch of 32 tokens.
        let mut units = Vec::new();
        let mut rest: &mut [u16] = bytemuck::cast_slice_mut(&mut self.values);
        for block in blocks(tokens, parts_wanted) {
            for stretch in ranges(inputs, STRETCH) {
                for first in block.clone().step_by(BLOCK) {
                    let size = stretch.len().div_ceil(STEP) * parts_wanted * TWO_TILES;
                    let unit;
                    (unit, rest) = rest.split_at_mut(size);
                    units.push((first..block.end.min(first + BLOCK), stretch.clone(), unit));
                }
            }
        }
        let fill = |(rows, stretch, unit): (Range<usize>, Range<usize>, &mut [u16])| {
            stop.check()?;
            let part_size = unit.len() / parts_wanted;
            for (token, row) in x[rows.start * inputs..rows.end * inputs].chunks_exact(inputs).enumerate() {
                for (i, value) in row[stretch.clone()].iter().enumerate() {
                    let tile = i / STEP * TWO_TILES + token / SIDE * (TWO_TILES / 2);
                    let at = tile + (i % STEP / 2 * SIDE + token % SIDE) * 2 + i % 2;
                    let parts = parts(*value);
                    for (part, value) in parts[3 - parts_wanted..].iter().enumerate() {
                        unit[part * part_size + at] = *value;
                    }
                }
            }
            Ok(())
        };
        if x.len() < MIN_PARALLEL {
            units.into_iter().try_for_each(fill)
        } else {
            units.into_par_iter().try_for_each(fill)
        }
    }
}

/// Buffers of one thread, kept between calls.
#[derive(Debug, Default)]
pub(in crate::backend::cpu) struct Scratch {
    weights: Vec<Aligned>,
    widened: Vec<f32>,
}

impl Unit {
    /// The name of the kernel with this unit.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Amx => "amx",
            Self::Avx512Bf16 => "avx512bf16",
            #[cfg(test)]
            Self::Plain => "plain",
        }
    }

    /// Whether products of inputs of `width` values can be for this unit.
    pub(super) fn takes_width(self, width: usize) -> bool {
        width >= MIN_INPUTS
    }

    /// Whether this unit multiplies weights of number type `dtype` in `precision`: where they are bfloat16 values, and
    /// where that is faster. For one product in float32, AVX512-BF16 would take three of half its inputs.
    pub(in crate::backend::cpu) fn takes(self, dtype: Dtype, precision: Precision) -> bool {
        match precision {
            Precision::Bf16 => true,
            Precision::F32 => dtype == Dtype::BF16 && self != Self::Avx512Bf16,
            Precision::Q8 { .. } => false,
        }
    }

    /// sums (tile of tokens, tile of rows, token, row) = the products of two tiles of weight rows (step, tile, row,
    /// input) with two tiles of tokens (part, step, tile, pair, token, 2).
    fn sums(self, weights: &[u16], x: &[u16], parts: usize, sums: &mut [f32; 4 * SIDE * SIDE]) {
        match self {
            Self::Amx => amx::sums(weights, x, parts, sums),
            Self::Avx512Bf16 => avx512bf16::sums(weights, x, parts, sums),
            #[cfg(test)]
            Self::Plain => tests::sums(weights, x, parts, sums),
        }
    }

    /// See [`super::Kernel::multiply_limit`].
    pub(super) fn multiply(self, rounds: usize) -> f32 {
        match self {
            Self::Amx => amx::multiply(rounds / AMX_ROUNDS),
            Self::Avx512Bf16 => avx512bf16::multiply(rounds),
            #[cfg(test)]
            Self::Plain => 0.0,
        }
    }

    /// See [`super::Kernel::multiply_round`].
    pub(super) fn multiply_round(self) -> usize {
        match self {
            Self::Amx => 4 * 2 * SIDE * SIDE * STEP / AMX_ROUNDS,
            _ => 2 * 2 * CHAINS * SIDE,
        }
    }

    /// out (tokens)(rows of w) = x · wᵀ.
    pub(in crate::backend::cpu) fn gemm(
        self,
        x: &Packed,
        w: Rows<'_>,
        out: &mut [&mut [f32]],
        scratch: &mut Scratch,
        stop: &Stop,
    ) -> Result<()> {
        let _configured = (self == Self::Amx).then(amx::Configured::new);
        let rows = w.count();
        let Scratch { weights, widened } = scratch;
        weights.resize(STRETCH * BLOCK / STEP, Aligned([0; STEP]));
        widened.resize(w.inputs.min(STRETCH), 0.0);
        let weights: &mut [u16] = bytemuck::cast_slice_mut(weights);
        let mut packed: &[u16] = bytemuck::cast_slice(&x.values);
        let mut sums = [0.0; 4 * SIDE * SIDE];
        for block in blocks(x.tokens, x.parts) {
            for stretch in ranges(x.inputs, STRETCH) {
                let steps = stretch.len().div_ceil(STEP);
                let (weights, unit) = (&mut weights[..steps * TWO_TILES], steps * x.parts * TWO_TILES);
                let turns = block.len().div_ceil(BLOCK);
                let x_now;
                (x_now, packed) = packed.split_at(turns * unit);
                for columns in ranges(rows, BLOCK) {
                    stop.check()?;
                    copy(w, columns.clone(), stretch.clone(), widened, weights);
                    let mut ahead = Ahead::new(w, columns.end, BLOCK, &stretch, turns);
                    let outs = out[block.clone()].chunks_mut(BLOCK);
                    for (x_now, out) in x_now.chunks_exact(unit).zip(outs) {
                        ahead.ask(avx512::prefetch_far);
                        self.sums(weights, x_now, x.parts, &mut sums);
                        for (token, out) in out.iter_mut().enumerate() {
                            for (tile, part) in ranges(columns.len(), SIDE).enumerate() {
                                let at = ((token / SIDE * 2 + tile) * SIDE + token % SIDE) * SIDE;
                                let sums = &sums[at..][..part.len()];
                                let out = &mut out[columns.start + part.start..][..part.len()];
                                match stretch.start {
                                    0 => out.copy_from_slice(sums),
                                    _ => ops::elementwise::add_to(sums, out),
                                }
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// Copies some inputs of up to 32 weight rows into two tiles (step, tile, row, input), zeros past the last row and
/// the last input. In place, a power of two between one row and the next would have them share a few lines of the
/// first-level cache.
fn copy(w: Rows<'_>, rows: Range<usize>, inputs: Range<usize>, widened: &mut [f32], out: &mut [u16]) {
    if rows.len() < BLOCK || !inputs.len().is_multiple_of(STEP) {
        out.fill(0);
    }
    for (i, row) in rows.enumerate() {
        let at = i / SIDE * (TWO_TILES / 2) + i % SIDE * STEP;
        let steps = out.chunks_exact_mut(TWO_TILES).map(|step| &mut step[at..][..STEP]);
        if w.dtype == Dtype::BF16 {
            let bytes = &w.row(row)[w.range(inputs.clone())];
            for (out, bytes) in steps.zip(bytes.chunks(2 * STEP)) {
                for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *out = u16::from_le_bytes(*bytes);
                }
            }
        } else {
            let widened = &mut widened[..inputs.len()];
            w.widen(row, inputs.clone(), widened);
            for (out, values) in steps.zip(widened.chunks(STEP)) {
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

    use super::super::tests::noise;
    use super::*;

    /// What [`Unit::sums`] gives, by plain loops.
    pub(super) fn sums(weights: &[u16], x: &[u16], parts: usize, sums: &mut [f32; 4 * SIDE * SIDE]) {
        let value = |bits: u16| f32::from_bits(u32::from(bits) << 16);
        sums.fill(0.0);
        for part in x.chunks_exact(x.len() / parts) {
            for (w, x) in weights.chunks_exact(TWO_TILES).zip(part.chunks_exact(TWO_TILES)) {
                let x: [f32; TWO_TILES] = std::array::from_fn(|i| value(x[i]));
                for (row, w) in w.chunks_exact(STEP).enumerate() {
                    for (i, w) in w.iter().enumerate() {
                        let w = value(*w);
                        for tile in 0..2 {
                            let x = &x[tile * TWO_TILES / 2 + i / 2 * 2 * SIDE..][..2 * SIDE];
                            let sums = &mut sums[(tile * 2 + row / SIDE) * SIDE * SIDE..][..SIDE * SIDE];
                            for (token, x) in x.as_chunks::<2>().0.iter().enumerate() {
                                sums[token * SIDE + row % SIDE] += w * x[i % 2];
                            }
                        }
                    }
                }
            }
        }
    }

    /// What this processor has, and the plain loops.
    fn units() -> Vec<Unit> {
        let mut units = vec![Unit::Plain];
        units.extend(amx::available().then_some(Unit::Amx));
        units.extend(avx512bf16::available().then_some(Unit::Avx512Bf16));
        for unit in [Unit::Amx, Unit::Avx512Bf16] {
            if !units.contains(&unit) {
                println!("skipped: this processor has no {unit:?}");
            }
        }
        units
    }

    #[test]
    fn three_bfloat16_values_are_a_float32() {
        let value = |bits| f32::from_bits(u32::from(bits) << 16);
        let extreme = [0.0, -0.0, 1.0, f32::MAX, -f32::MAX, 1e-20, std::f32::consts::PI];
        for x in noise(10_000, 1).into_iter().chain(extreme) {
            let [low, middle, high] = parts(x).map(value);
            assert_eq!(low + middle + high, x);
        }
        for x in [f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(parts(x).map(value), [0.0, 0.0, x]);
        }
        assert!(parts(f32::from_bits(0x7f80_0001)).map(value)[2].is_nan());
    }

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
        ] {
            for precision in [Precision::F32, Precision::Bf16] {
                let mut x = noise(inputs * tokens, 3);
                ops::round::row(precision, &mut x);
                let w: Vec<bf16> = noise(inputs * rows, 4).into_iter().map(bf16::from_f32).collect();
                let bytes: Vec<u8> = w.iter().flat_map(|w| w.to_le_bytes()).collect();
                let floats: Vec<u8> = w.iter().flat_map(|w| w.to_f32().to_le_bytes()).collect();
                for unit in units() {
                    let mut packed = Packed::default();
                    packed.pack(precision, &x, inputs, &Stop::default()).unwrap();
                    for (dtype, bytes) in [(Dtype::BF16, &bytes), (Dtype::F32, &floats)] {
                        if !unit.takes(dtype, precision) {
                            continue;
                        }
                        let w_rows = Rows { bytes, dtype, inputs, scales: None, precision };
                        let mut out = vec![f32::NAN; rows * tokens];
                        let mut outs: Vec<_> = out.chunks_exact_mut(rows).collect();
                        let stop = Stop::default();
                        unit.gemm(&packed, w_rows, &mut outs, &mut Scratch::default(), &stop).unwrap();
                        let (mut error, mut norm) = (0.0, 0.0);
                        for (x, out) in x.chunks_exact(inputs).zip(out.chunks_exact(rows)) {
                            for (w, out) in w.chunks_exact(inputs).zip(out) {
                                let exact: f64 =
                                    x.iter().zip(w).map(|(x, w)| f64::from(*x) * w.to_f64()).sum();
                                error += (f64::from(*out) - exact).powi(2);
                                norm += exact.powi(2);
                            }
                        }
                        let error = (error / norm).sqrt();
                        // Twice this is the bound between two orders of a sum.
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
