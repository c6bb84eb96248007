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

use bytemuck::Zeroable;
use rayon::prelude::*;

use super::bf16_tiles::{self, Next, SIDE, STEP, Sums, TWO_TILES, Tile, Weights};
use super::gemm::Ahead;
use super::limits::CHAINS;
use super::{Rows, amx, avx512, avx512bf16};
use crate::backend::cpu::{MIN_PARALLEL, memory};
use crate::checkpoint::Dtype;
use crate::config::Precision;
use crate::error::Result;
use crate::stop::Stop;

/// What multiplies bfloat16 values. A value of this type exists only for what the processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backend::cpu) enum Unit {
    /// Tiles of AMX: 16 × 16 sums at once.
    Amx,
    /// AVX512-BF16: 16 sums at once.
    Avx512Bf16 {
        /// See [`super::processor::Reading`].
        in_place: bool,
    },
    /// Plain loops, to test the blocking by.
    #[cfg(test)]
    Plain,
}

/// Weight rows, and tokens, whose sums are made at once: two tiles by two.
pub(in crate::backend::cpu) const BLOCK: usize = 2 * SIDE;

/// Inputs that are summed before they are added to the inputs before them.
const STRETCH: usize = 512;

/// Tokens for which the weights are copied once, where they are one part each.
const TOKENS: usize = 256;

/// Bytes of activations that stay in the second-level cache while rows of weights pass by.
const ACTIVATIONS: usize = 1 << 20;

/// Bytes of sums that stay there beside them until all inputs are added up.
const SUMS: usize = 1 << 18;

/// Outputs of a token that are written at once. Those of the next token lie a row of the output further on, which is often a
/// power of two: a few at a time would each be in another page, and all of them in the same few sets of the caches.
const WRITTEN: usize = 256;

/// Values from one token to the next where the outputs are put in order.
const ORDERED: usize = WRITTEN + SIDE;

/// Inputs from which a product is worth a unit's while.
const MIN_INPUTS: usize = 512;

/// Rounds of the multiply loop that are one round of four tiles.
pub(super) const AMX_ROUNDS: usize = 64;

/// 64 bytes where a tile's row loads at once.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Aligned([u16; STEP]);

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
    cut(0..tokens, TOKENS / parts / BLOCK * BLOCK)
}

/// The ranges of `step` into which `all` is cut.
fn cut(all: Range<usize>, step: usize) -> impl Iterator<Item = Range<usize>> {
    let end = all.end;
    all.step_by(step).map(move |start| start..end.min(start + step))
}

impl Packed {
    /// Packs `x` (tokens, inputs) for `unit`.
    pub(in crate::backend::cpu) fn pack(
        &mut self,
        unit: Unit,
        precision: Precision,
        x: &[f32],
        inputs: usize,
        stop: &Stop,
    ) -> Result<()> {
        let tokens = x.len() / inputs;
        (self.inputs, self.tokens) = (inputs, tokens);
        self.parts = if precision == Precision::Bf16 { 1 } else { 3 };
        let parts_wanted = self.parts;
        let steps: usize = cut(0..inputs, STRETCH).map(|stretch| stretch.len().div_ceil(STEP)).sum();
        let count = tokens.div_ceil(BLOCK) * steps * parts_wanted * TWO_TILES / STEP;
        memory::grow(&mut self.values, count)?;
        self.values.resize(count, Aligned([0; STEP]));
        // What a thread packs at once is a stretch of 32 tokens.
        let mut pieces = Vec::new();
        let mut rest: &mut [u16] = bytemuck::cast_slice_mut(&mut self.values);
        for block in blocks(tokens, parts_wanted) {
            for stretch in cut(0..inputs, STRETCH) {
                for first in block.clone().step_by(BLOCK) {
                    let size = stretch.len().div_ceil(STEP) * parts_wanted * TWO_TILES;
                    let piece;
                    (piece, rest) = rest.split_at_mut(size);
                    pieces.push((first..block.end.min(first + BLOCK), stretch.clone(), piece));
                }
            }
        }
        let fill = |(rows, stretch, packed): (Range<usize>, Range<usize>, &mut [u16])| {
            stop.check()?;
            let part_size = packed.len() / parts_wanted;
            let mut tokens = [&x[..0]; SIDE];
            for (step, inputs_now) in cut(0..stretch.len(), STEP).enumerate() {
                for tile in 0..2 {
                    let rows =
                        rows.end.min(rows.start + tile * SIDE)..rows.end.min(rows.start + (tile + 1) * SIDE);
                    for (token, row) in tokens.iter_mut().zip(rows.clone()) {
                        let row = &x[row * inputs..][..inputs];
                        *token = &row[stretch.start + inputs_now.start..stretch.start + inputs_now.end];
                    }
                    let at = step * TWO_TILES + tile * (TWO_TILES / 2);
                    unit.pack(parts_wanted, &tokens[..rows.len()], part_size, &mut packed[at..]);
                }
            }
            Ok(())
        };
        if x.len() < MIN_PARALLEL {
            pieces.into_iter().try_for_each(fill)
        } else {
            pieces.into_par_iter().try_for_each(fill)
        }
    }

    /// The blocks.
    fn blocks(&self) -> impl Iterator<Item = TokenBlock<'_>> {
        let mut rest: &[u16] = bytemuck::cast_slice(&self.values);
        blocks(self.tokens, self.parts).map(move |tokens| {
            let mut block = TokenBlock { values: &[], tokens, parts: self.parts };
            (block.values, rest) = rest.split_at(block.turns() * block.size(self.inputs));
            block
        })
    }
}

/// A block of tokens of [`Packed`].
struct TokenBlock<'x> {
    values: &'x [u16],
    tokens: Range<usize>,
    parts: usize,
}

impl TokenBlock<'_> {
    /// How many 32 tokens there are.
    fn turns(&self) -> usize {
        self.tokens.len().div_ceil(BLOCK)
    }

    /// Values of so many inputs of 32 tokens.
    fn size(&self, inputs: usize) -> usize {
        inputs.div_ceil(STEP) * self.parts * TWO_TILES
    }

    /// The inputs of a stretch, of each 32 tokens.
    fn stretch(&self, stretch: &Range<usize>) -> impl Iterator<Item = &[u16]> {
        let size = self.size(stretch.len());
        self.values[self.turns() * self.size(stretch.start)..].chunks_exact(size).take(self.turns())
    }
}

/// Buffers of one thread, kept between calls.
#[derive(Debug, Default)]
pub(in crate::backend::cpu) struct Scratch {
    weights: Vec<Aligned>,
    widened: Vec<f32>,
    /// Those of a stretch, and then (32 weight rows, 32 tokens of a block).
    sums: Vec<Sums>,
    /// Outputs of 16 tokens, [`ORDERED`] apart.
    ordered: Vec<Aligned>,
}

/// What products of a stretch are made in.
struct Buffers<'s> {
    weights: &'s mut [u16],
    widened: &'s mut [f32],
    sums: &'s mut Sums,
}

/// Of `stretch` of 32 weight rows from `first` on those that turn number `turn` of `turns` asks for. Past the last row of
/// `w`, other rows of its matrix follow, or an address that is asked for in vain.
fn next_of_turn(w: Rows<'_>, first: usize, stretch: &Range<usize>, turn: usize, turns: usize) -> Next {
    let (rows, stride) = (BLOCK.div_ceil(turns), w.row(0).len());
    let at = (first + turn * rows) * stride + w.range(stretch.clone()).start;
    Next { first: w.bytes.as_ptr().wrapping_add(at), rows, stride }
}

impl Unit {
    /// The name of the kernel with this unit.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Amx => "amx",
            Self::Avx512Bf16 { .. } => "avx512bf16",
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
            Precision::F32 => dtype == Dtype::BF16 && !matches!(self, Self::Avx512Bf16 { .. }),
            Precision::Q8 { .. } => false,
        }
    }

    /// Packs inputs of up to 16 tokens as tiles: see [`bf16_tiles::pack`].
    #[allow(unsafe_code)]
    fn pack(self, parts: usize, rows: &[&[f32]], part_size: usize, out: &mut [u16]) {
        #[cfg(test)]
        if self.is_plain() {
            return tests::pack(parts, rows, part_size, out);
        }
        // SAFETY: a unit other than the plain one exists only where the processor has AVX-512.
        unsafe {
            match parts {
                1 => bf16_tiles::pack::<1>(rows, part_size, out),
                _ => bf16_tiles::pack::<3>(rows, part_size, out),
            }
        }
    }

    /// sums = the products of 32 weight rows with two tiles of tokens (part, step, tile, pair, token, 2), or with the first
    /// of them: what there is of the other then means nothing.
    fn sums(self, weights: Weights<'_>, x: &[u16], parts: usize, tiles: usize, next: Next, sums: &mut Sums) {
        match self {
            Self::Amx => amx::sums(bytemuck::cast_slice(weights.bytes), x, parts, next, sums),
            Self::Avx512Bf16 { .. } => avx512bf16::sums(weights, x, (parts, tiles), next, sums),
            #[cfg(test)]
            Self::Plain => tests::sums(bytemuck::cast_slice(weights.bytes), x, parts, sums),
        }
    }

    /// to += sums.
    #[allow(unsafe_code)]
    fn add(self, sums: &Sums, to: &mut Sums) {
        #[cfg(test)]
        if self.is_plain() {
            return crate::ops::elementwise::add_to(&sums.0, &mut to.0);
        }
        // SAFETY: a unit other than the plain one exists only where the processor has AVX-512.
        unsafe { to.add(sums) }
    }

    /// out (token, row), [`ORDERED`] apart, = a tile of sums.
    #[allow(unsafe_code)]
    fn order(self, tile: &Tile, out: &mut [f32]) {
        #[cfg(test)]
        if self.is_plain() {
            return tests::order(tile, out);
        }
        // SAFETY: as above.
        unsafe { bf16_tiles::transpose(tile, ORDERED, out) }
    }

    /// Writes the sums (32 weight rows, 32 tokens) of the rows `columns` to `out`, a token each, once they are finished.
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
                    self.order(tile, &mut ordered[at..]);
                }
                for (out, ordered) in out.iter_mut().zip(ordered.chunks_mut(ORDERED)) {
                    let ordered = &mut ordered[..columns.len()];
                    finish(columns.clone(), ordered);
                    out[columns.clone()].copy_from_slice(ordered);
                }
            }
        }
    }

    /// See [`super::Kernel::multiply_limit`].
    pub(super) fn multiply(self, rounds: usize) -> f32 {
        match self {
            Self::Amx => amx::multiply::<false>(rounds / AMX_ROUNDS),
            Self::Avx512Bf16 { .. } => avx512bf16::multiply(rounds),
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

    /// out (tokens)(rows of w) = x · wᵀ, each part of a token's outputs after `finish` was applied to it.
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
        sums.resize(SUMS / size_of::<Sums>() + 1, Sums::zeroed());
        ordered.resize(SIDE * ORDERED * size_of::<f32>() / size_of::<Aligned>(), Aligned([0; STEP]));
        let Some((of_stretch, sums)) = sums.split_first_mut() else { unreachable!("it has one more") };
        let mut buffers = Buffers { weights: bytemuck::cast_slice_mut(weights), widened, sums: of_stretch };
        for x in x.blocks() {
            let turns = x.turns();
            // The stretches whose activations stay at hand while rows of weights pass by.
            let at_once = (ACTIVATIONS / (2 * turns * BLOCK * x.parts) / STRETCH).max(1) * STRETCH;
            for columns in cut(0..w.count(), sums.len() / turns * BLOCK) {
                for inputs in cut(0..w.inputs, at_once) {
                    for (rows, sums) in cut(columns.clone(), BLOCK).zip(sums.chunks_mut(turns)) {
                        stop.check()?;
                        for stretch in cut(inputs.clone(), STRETCH) {
                            // The rows and the inputs that are multiplied after these.
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

    /// sums (32 tokens) += the products of a stretch of up to 32 weight rows with that of the tokens, or = those of the first
    /// stretch, while the rows from `next` on are asked for.
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
            Weights::lying(w, rows, stretch.clone())
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

    /// Whether it multiplies these rows and inputs of `w` where they lie.
    fn reads_in_place(self, w: Rows<'_>, rows: &Range<usize>, inputs: &Range<usize>) -> bool {
        let whole = rows.len() == BLOCK && inputs.len().is_multiple_of(STEP);
        self == (Self::Avx512Bf16 { in_place: true }) && w.dtype == Dtype::BF16 && whole
    }

    /// Copies some inputs of up to 32 weight rows into two tiles (step, tile, row, input), zeros past the last row and
    /// the last input.
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
                // SAFETY: a unit other than the plain one exists only where the processor has AVX-512.
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

    /// Whether this is the plain loops.
    fn is_plain(self) -> bool {
        #[cfg(test)]
        return self == Self::Plain;
        #[cfg(not(test))]
        false
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::super::tests::noise;
    use super::*;
    use crate::ops;

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

    /// What [`bf16_tiles::pack`] gives, by plain loops.
    pub(super) fn pack(parts_wanted: usize, rows: &[&[f32]], part_size: usize, out: &mut [u16]) {
        for part in 0..parts_wanted {
            out[part * part_size..][..SIDE * STEP].fill(0);
            for (token, row) in rows.iter().enumerate() {
                for (i, x) in row.iter().enumerate() {
                    let at = (i / 2 * SIDE + token) * 2 + i % 2;
                    out[part * part_size + at] = parts(*x)[3 - parts_wanted + part];
                }
            }
        }
    }

    /// What [`Unit::sums`] gives, by plain loops.
    pub(super) fn sums(weights: &[u16], x: &[u16], parts: usize, sums: &mut Sums) {
        let value = |bits: u16| f32::from_bits(u32::from(bits) << 16);
        sums.0.fill(0.0);
        for part in x.chunks_exact(x.len() / parts) {
            for (w, x) in weights.chunks_exact(TWO_TILES).zip(part.chunks_exact(TWO_TILES)) {
                let x: [f32; TWO_TILES] = std::array::from_fn(|i| value(x[i]));
                for (row, w) in w.chunks_exact(STEP).enumerate() {
                    for (i, w) in w.iter().enumerate() {
                        let w = value(*w);
                        for tile in 0..2 {
                            let x = &x[tile * TWO_TILES / 2 + i / 2 * 2 * SIDE..][..2 * SIDE];
                            let sums = sums.tile_mut(tile * 2 + row / SIDE);
                            for (token, x) in x.as_chunks::<2>().0.iter().enumerate() {
                                sums[row % SIDE * SIDE + token] += w * x[i % 2];
                            }
                        }
                    }
                }
            }
        }
    }

    /// What [`bf16_tiles::transpose`] does, by plain loops.
    pub(super) fn order(tile: &Tile, out: &mut [f32]) {
        for (row, values) in tile.as_chunks::<SIDE>().0.iter().enumerate() {
            for (token, value) in values.iter().enumerate() {
                out[token * ORDERED + row] = *value;
            }
        }
    }

    /// What this processor has, and the plain loops.
    fn units() -> Vec<Unit> {
        let mut units = vec![Unit::Plain];
        let of_vectors = [false, true].map(|in_place| Unit::Avx512Bf16 { in_place });
        for (available, of) in [(amx::available(), &[Unit::Amx][..]), (avx512bf16::available(), &of_vectors)]
        {
            match available {
                true => units.extend(of),
                false => println!("skipped: this processor has no {}", of[0].name()),
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
    fn every_unit_packs_the_same_bits() {
        let extreme =
            [f32::NAN, -f32::NAN, f32::INFINITY, -f32::INFINITY, f32::MIN_POSITIVE, 1e-40, -0.0, f32::MAX];
        for (inputs, tokens) in [(512, 32), (513, 1), (530, 17), (1100, 70)] {
            let mut x = noise(inputs * tokens, 5);
            x.iter_mut().step_by(37).zip(extreme.iter().cycle()).for_each(|(x, extreme)| *x = *extreme);
            for precision in [Precision::F32, Precision::Bf16] {
                let packed = |unit| {
                    // What was there before is nothing to go by.
                    let mut packed =
                        Packed { values: vec![Aligned([7; STEP]); 1 << 15], ..Packed::default() };
                    packed.pack(unit, precision, &x, inputs, &Stop::default()).unwrap();
                    bytemuck::cast_slice::<_, u16>(&packed.values).to_vec()
                };
                for unit in units() {
                    assert!(packed(unit) == packed(Unit::Plain), "{unit:?} {precision:?} {inputs}×{tokens}");
                }
            }
        }
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
            (2100, 40, 515),
            (512, 300, 20),
            (2100, 270, 256),
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
                        // Every second output has another sign, so that it must be told which ones it has.
                        let finish = |columns: Range<usize>, out: &mut [f32]| {
                            let odd = columns.zip(out).filter(|(column, _)| column % 2 == 1);
                            odd.for_each(|(_, out)| *out = -*out);
                        };
                        let mut scratch = Scratch::default();
                        unit.gemm(&packed, w_rows, finish, &mut outs, &mut scratch, &stop).unwrap();
                        // However it reads weights.
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
