//! Products of quantised activations with rows of blocks ([`crate::ops::blocks`]), read where they lie in the file: a
//! row at a time is spread out for the vector units, used for all tokens, and forgotten.

use super::Rows;
use super::q8::{CHUNK_GROUPS, Quantized};
use super::rows::with_format;
use crate::ops::blocks::{self, Format, GROUP, MAX_RUNS, from_half};

/// See [`super::Kernel::q8`].
pub(super) fn portable(x: &Quantized, w: Rows<'_>, out: &mut [&mut [f32]]) {
    with_format!(w.dtype, F => {
        for row in 0..w.count() {
            for (token, out) in out.iter_mut().enumerate() {
                let (values, scales) = x.row(token);
                out[row] = blocks::dot::<F>(values, scales, w.row(row));
            }
        }
    });
}

/// Rows of blocks, each value a byte and each number of a group in a line of its own; zeros up to a whole chunk.
#[derive(Debug, Default)]
pub(super) struct Spread {
    /// (row, value): q, without the offset taken off.
    pub(super) quants: Vec<u8>,
    /// The scales of the first run of each group, and of the second where runs are halves of groups: (row, group).
    pub(super) scales: [Vec<f32>; 2],
    /// Their minima.
    pub(super) minima: [Vec<f32>; 2],
    /// Groups from one row to the next.
    pub(super) groups: usize,
}

impl Spread {
    /// Makes room for `rows` rows of `inputs` values.
    pub(super) fn resize(&mut self, rows: usize, inputs: usize) {
        self.groups = (inputs / GROUP).next_multiple_of(CHUNK_GROUPS);
        // All of it anew: what lies past the end of a row has to be zero.
        self.quants.clear();
        self.quants.resize(rows * self.groups * GROUP, 0);
        for numbers in self.scales.iter_mut().chain(&mut self.minima) {
            numbers.clear();
            numbers.resize(rows * self.groups, 0.0);
        }
    }

    /// Spreads out the blocks of one row as row `number`. What a table's numbers are is left to the caller: quants are
    /// [`Format::codes`].
    #[inline(always)]
    pub(super) fn fill<F: Format>(&mut self, number: usize, row: &[u8]) {
        let (groups, of_block) = (self.groups, F::VALUES / GROUP);
        let quants = &mut self.quants[number * groups * GROUP..][..groups * GROUP];
        for (block, out) in row.chunks_exact(F::BYTES).zip(quants.chunks_exact_mut(F::VALUES)) {
            F::codes(block, out);
        }
        if F::HALVES {
            return self.fill_halves::<F>(number, row);
        }
        let [first, second] = &mut self.scales;
        let [first_minimum, second_minimum] = &mut self.minima;
        let of_row = number * groups..(number + 1) * groups;
        let scales = first[of_row.clone()].chunks_exact_mut(of_block);
        let scales = scales.zip(second[of_row.clone()].chunks_exact_mut(of_block));
        let minima = first_minimum[of_row.clone()].chunks_exact_mut(of_block);
        let minima = minima.zip(second_minimum[of_row].chunks_exact_mut(of_block));
        for ((block, scales), minima) in row.chunks_exact(F::BYTES).zip(scales).zip(minima) {
            if F::RUN == GROUP {
                F::scales(block, scales.0, minima.0);
                continue;
            }
            let mut runs = [[0.0; MAX_RUNS]; 2];
            let [of_scales, of_minima] = &mut runs;
            F::scales(block, of_scales, of_minima);
            for group in 0..of_block {
                (scales.0[group], scales.1[group]) = (of_scales[2 * group], of_scales[2 * group + 1]);
                if F::MINIMA {
                    (minima.0[group], minima.1[group]) = (of_minima[2 * group], of_minima[2 * group + 1]);
                }
            }
        }
    }

    /// The scales and minima of a row of blocks that begin with them: many halves are converted at once.
    #[inline(always)]
    fn fill_halves<F: Format>(&mut self, number: usize, row: &[u8]) {
        let of_row = number * self.groups..(number + 1) * self.groups;
        let numbers = [&mut self.scales[0][of_row.clone()], &mut self.minima[0][of_row]];
        for (at, numbers) in numbers.into_iter().enumerate().take(1 + usize::from(F::MINIMA)) {
            let blocks = row.chunks(CHUNK_GROUPS * F::BYTES);
            for (blocks, out) in blocks.zip(numbers.as_chunks_mut::<CHUNK_GROUPS>().0) {
                let mut halves = [0; CHUNK_GROUPS];
                for (half, block) in halves.iter_mut().zip(blocks.chunks_exact(F::BYTES)) {
                    *half = u16::from_le_bytes([block[2 * at], block[2 * at + 1]]);
                }
                for (out, half) in out.iter_mut().zip(halves) {
                    *out = from_half(half);
                }
            }
        }
    }
}
