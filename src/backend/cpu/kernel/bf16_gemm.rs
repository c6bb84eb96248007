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

/// Bytes of activations that stay in the second-level cache while all rows of weights pass by.
const ACTIVATIONS: usize = 1 << 20;

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
    ranges(tokens, TOKENS / parts / BLOCK * BLOCK)
}

/// The ranges of `step` into which `count` is cut.
fn ranges(count: usize, step: usize) -> impl Iterator<Item = Range<usize>> {
    (0..count).step_by(step).map(move |start| start..(start + step).min(count))
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
        let steps: usize = ranges(inputs, STRETCH).map(|stretch| stretch.len().div_ceil(STEP)).sum();
        let count = tokens.div_ceil(BLOCK) * steps * parts_wanted * TWO_TILES / STEP;
        memory::grow(&mut self.values, count)?;
        self.values.resize(count, Aligned([0; STEP]));
        // What a thread packs at once is a stretch of 32 tokens.
        let mut pieces = Vec::new();
        let mut rest: &mut [u16] = bytemuck::cast_slice_mut(&mut self.values);
        for block in blocks(tokens, parts_wanted) {
            for stretch in ranges(inputs, STRETCH) {
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
            for (step, inputs_now) in ranges(stretch.len(), STEP).enumerate() {
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
}

/// Buffers of one thread, kept between calls.
#[derive(Debug, Default)]
pub(in crate::backend::cpu) struct Scratch {
    weights: Vec<Aligned>,
    widened: Vec<f32>,
    /// Of 32 weight rows with each 32 tokens of a block, and of one stretch.
    sums: Vec<Sums>,
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

    /// Writes the sums of 32 tokens with `columns`, the weight rows, to `out`.
    #[allow(unsafe_code)]
    fn put(self, sums: &mut Sums, columns: &Range<usize>, out: &mut [&mut [f32]]) {
        each_tile(sums, columns, out, |tile, columns, out| {
            #[cfg(test)]
            if self.is_plain() {
                return tests::put(tile, columns, out);
            }
            // SAFETY: as above.
            unsafe { bf16_tiles::put(tile, columns, out) }
        });
    }

    /// The reverse of [`Unit::put`].
    #[allow(unsafe_code)]
    fn take(self, out: &mut [&mut [f32]], columns: &Range<usize>, sums: &mut Sums) {
        each_tile(sums, columns, out, |tile, columns, out| {
            #[cfg(test)]
            if self.is_plain() {
                return tests::take(out, columns, tile);
            }
            // SAFETY: as above.
            unsafe { bf16_tiles::take(out, columns, tile) }
        });
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
        let Scratch { weights, widened, sums } = scratch;
        weights.resize(STRETCH * BLOCK / STEP, Aligned([0; STEP]));
        widened.resize(w.inputs.min(STRETCH), 0.0);
        sums.resize(TOKENS / BLOCK + 1, Sums::zeroed());
        let Some((of_stretch, sums)) = sums.split_first_mut() else { unreachable!("it has one more") };
        let weights: &mut [u16] = bytemuck::cast_slice_mut(weights);
        let mut packed: &[u16] = bytemuck::cast_slice(&x.values);
        for block in blocks(x.tokens, x.parts) {
            let turns = block.len().div_ceil(BLOCK);
            // The stretches whose activations stay at hand while all rows of weights pass by.
            let at_once = (ACTIVATIONS / (2 * turns * BLOCK * x.parts) / STRETCH).max(1) * STRETCH;
            for inputs in ranges(x.inputs, at_once) {
                let x_now;
                (x_now, packed) = packed.split_at(turns * inputs.len().div_ceil(STEP) * x.parts * TWO_TILES);
                for columns in ranges(rows, BLOCK) {
                    stop.check()?;
                    if inputs.start > 0 {
                        let outs = out[block.clone()].chunks_mut(BLOCK);
                        outs.zip(&mut *sums).for_each(|(out, sums)| self.take(out, &columns, sums));
                    }
                    let mut x_rest = x_now;
                    for start in inputs.clone().step_by(STRETCH) {
                        let stretch = start..inputs.end.min(start + STRETCH);
                        let steps = stretch.len().div_ceil(STEP);
                        let unit = steps * x.parts * TWO_TILES;
                        let weights = if self.reads_in_place(w, &columns, &stretch) {
                            Weights::lying(w, &columns, stretch.clone())
                        } else {
                            let weights = &mut weights[..steps * TWO_TILES];
                            self.copy(w, columns.clone(), stretch.clone(), widened, weights);
                            Weights::copied(weights)
                        };
                        // What is multiplied after this.
                        let (first, after) = match stretch.end < inputs.end {
                            true => (columns.start, stretch.end..inputs.end.min(stretch.end + STRETCH)),
                            false => (columns.end, inputs.start..inputs.end.min(inputs.start + STRETCH)),
                        };
                        let mut ahead = Ahead::new(w, first, BLOCK, &after, turns);
                        let x_stretch;
                        (x_stretch, x_rest) = x_rest.split_at(turns * unit);
                        for (turn, (x_now, sums)) in x_stretch.chunks_exact(unit).zip(&mut *sums).enumerate()
                        {
                            let next = match w.dtype == Dtype::BF16 && !self.is_plain() {
                                true => next_of_turn(w, first, &after, turn, turns),
                                false => {
                                    ahead.ask(avx512::prefetch_far);
                                    Next::NONE
                                }
                            };
                            let tiles = (block.len() - turn * BLOCK).div_ceil(SIDE).min(2);
                            if start == 0 {
                                self.sums(weights, x_now, x.parts, tiles, next, sums);
                            } else {
                                self.sums(weights, x_now, x.parts, tiles, next, of_stretch);
                                self.add(of_stretch, sums);
                            }
                        }
                    }
                    let outs = out[block.clone()].chunks_mut(BLOCK);
                    outs.zip(&mut *sums).for_each(|(out, sums)| self.put(sums, &columns, out));
                }
            }
        }
        Ok(())
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

/// Calls `apply` for each tile of `sums` with its weight rows, of `columns`, and its tokens, of up to 32 in `out`.
fn each_tile(
    sums: &mut Sums,
    columns: &Range<usize>,
    out: &mut [&mut [f32]],
    apply: impl Fn(&mut Tile, &Range<usize>, &mut [&mut [f32]]),
) {
    for (tiles, out) in sums.tiles().chunks_mut(2).zip(out.chunks_mut(SIDE)) {
        for (tile, part) in tiles.iter_mut().zip(ranges(columns.len(), SIDE)) {
            apply(tile, &(columns.start + part.start..columns.start + part.end), out);
        }
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
                            let sums = &mut sums.tiles()[tile * 2 + row / SIDE];
                            for (token, x) in x.as_chunks::<2>().0.iter().enumerate() {
                                sums[row % SIDE * SIDE + token] += w * x[i % 2];
                            }
                        }
                    }
                }
            }
        }
    }

    /// What [`bf16_tiles::put`] does, by plain loops.
    pub(super) fn put(tile: &Tile, columns: &Range<usize>, out: &mut [&mut [f32]]) {
        for (token, out) in out.iter_mut().enumerate() {
            for (row, out) in out[columns.clone()].iter_mut().enumerate() {
                *out = tile[row * SIDE + token];
            }
        }
    }

    /// What [`bf16_tiles::take`] does, by plain loops.
    pub(super) fn take(out: &[&mut [f32]], columns: &Range<usize>, tile: &mut Tile) {
        tile.fill(0.0);
        for (token, out) in out.iter().enumerate() {
            for (row, out) in out[columns.clone()].iter().enumerate() {
                tile[row * SIDE + token] = *out;
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
                        unit.gemm(&packed, w_rows, &mut outs, &mut Scratch::default(), &stop).unwrap();
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
