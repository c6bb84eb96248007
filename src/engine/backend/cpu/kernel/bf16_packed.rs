//! Activations in the order in which a bfloat16 unit reads them.

use std::ops::Range;

use super::bf16_tiles::{BLOCK, SIDE, STEP, TWO_TILES};
use super::bf16_unit::Unit;
use crate::backend::cpu::{MIN_PARALLEL, memory};
use llama_trace_core::config::Precision;
use llama_trace_core::error::Result;
use llama_trace_core::stop::Stop;
use llama_trace_core::threads::prelude::*;

/// The number of inputs in a stretch, which is summed separately and then added to the sum of the stretches before it.
pub(super) const STRETCH: usize = 512;

/// 64 aligned bytes, loaded at once as a row of a tile.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
pub(super) struct Aligned(pub(super) [u16; STEP]);

/// Activations in the order in which a unit reads them: (block of tokens, stretch, 32 tokens, part, step, tile, pair of
/// inputs, token, input of the pair). Tiles and steps that are not full are padded with zeros.
#[derive(Debug, Default)]
pub(in crate::backend::cpu) struct Packed {
    values: Vec<Aligned>,
    inputs: usize,
    tokens: usize,
    parts: usize,
    /// The number of tokens in every block except the last, a multiple of [`BLOCK`].
    at_once: usize,
}

/// Splits `all` into ranges of length `step`.
pub(super) fn cut(all: Range<usize>, step: usize) -> impl Iterator<Item = Range<usize>> {
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
        self.at_once = unit.tokens_at_once(parts_wanted);
        let steps: usize = cut(0..inputs, STRETCH).map(|stretch| stretch.len().div_ceil(STEP)).sum();
        let count = tokens.div_ceil(BLOCK) * steps * parts_wanted * TWO_TILES / STEP;
        memory::grow(&mut self.values, count)?;
        self.values.resize(count, Aligned([0; STEP]));
        // A thread packs one stretch of 32 tokens at a time.
        let mut pieces = Vec::new();
        let mut rest: &mut [u16] = bytemuck::cast_slice_mut(&mut self.values);
        for block in cut(0..tokens, self.at_once) {
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

    /// Returns the blocks of tokens.
    pub(super) fn blocks(&self) -> impl Iterator<Item = TokenBlock<'_>> {
        let mut rest: &[u16] = bytemuck::cast_slice(&self.values);
        cut(0..self.tokens, self.at_once.max(1)).map(move |tokens| {
            let mut block = TokenBlock { values: &[], tokens, parts: self.parts };
            (block.values, rest) = rest.split_at(block.turns() * block.size(self.inputs));
            block
        })
    }
}

/// A block of tokens of [`Packed`].
pub(super) struct TokenBlock<'x> {
    values: &'x [u16],
    pub(super) tokens: Range<usize>,
    pub(super) parts: usize,
}

impl TokenBlock<'_> {
    /// The number of groups of 32 tokens.
    pub(super) fn turns(&self) -> usize {
        self.tokens.len().div_ceil(BLOCK)
    }

    /// Returns the number of packed values of `inputs` inputs of 32 tokens.
    fn size(&self, inputs: usize) -> usize {
        inputs.div_ceil(STEP) * self.parts * TWO_TILES
    }

    /// Returns the packed inputs of a stretch, for each group of 32 tokens.
    pub(super) fn stretch(&self, stretch: &Range<usize>) -> impl Iterator<Item = &[u16]> {
        let size = self.size(stretch.len());
        self.values[self.turns() * self.size(stretch.start)..].chunks_exact(size).take(self.turns())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::super::testing::noise;
    use super::super::bf16_unit::plain::{parts, units};
    use super::*;

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
        for (inputs, tokens) in [(512, 32), (513, 1), (530, 17), (1100, 70), (1100, 600)] {
            let mut x = noise(inputs * tokens, 5);
            x.iter_mut().step_by(37).zip(extreme.iter().cycle()).for_each(|(x, extreme)| *x = *extreme);
            for precision in [Precision::F32, Precision::Bf16] {
                let packed = |unit| {
                    // Old contents of the buffer must not matter.
                    let mut packed =
                        Packed { values: vec![Aligned([7; STEP]); 1 << 15], ..Packed::default() };
                    packed.pack(unit, precision, &x, inputs, &Stop::default()).unwrap();
                    // Indexed by token and input, because each unit has its own block size.
                    let mut all = BTreeMap::new();
                    for block in packed.blocks() {
                        for stretch in cut(0..inputs, STRETCH) {
                            let turns = (block.tokens.clone()).step_by(BLOCK).zip(block.stretch(&stretch));
                            all.extend(
                                turns.map(|(token, values)| ((token, stretch.start), values.to_vec())),
                            );
                        }
                    }
                    assert_eq!(all.len(), tokens.div_ceil(BLOCK) * inputs.div_ceil(STRETCH));
                    all
                };
                for unit in units() {
                    assert!(packed(unit) == packed(Unit::Plain), "{unit:?} {precision:?} {inputs}×{tokens}");
                }
            }
        }
    }
}
