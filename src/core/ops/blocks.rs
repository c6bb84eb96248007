//! Weights stored in blocks of small integers: ggml's formats, as in GGUF files. Dequantises blocks, and multiplies
//! them with quantised activations without unpacking them in memory.
//!
//! Every format follows one rule: value = scale · (q − offset) + minimum. q is an integer from 0 to 255. A *run* of 16
//! or 32 neighbouring values shares a scale, and a minimum if the format has one. A half is a little-endian IEEE
//! float16.
//!
//! All arithmetic is float32, in the order of the formula: the values equal those of gguf-py's `dequantize` to the bit.
//! The layouts are those of `ggml/src/ggml-common.h`, the formulas those of `dequantize_row_…` in
//! `ggml/src/ggml-quants.c`.

mod large;
mod small;

pub use large::six_bits;
pub use large::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
pub use small::{Iq4Nl, Mxfp4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};

use super::arithmetic::{Fused, MulAdd};
use super::matmul::{LANES, reduce};
use crate::config::Arithmetic;

/// Activations per scale in a product with blocks of any format: the number of values in the smallest block.
pub const GROUP: usize = 32;

/// Values in the largest block.
pub const MAX_VALUES: usize = 256;

/// The largest number of runs in a block.
pub const MAX_RUNS: usize = MAX_VALUES / 16;

/// A block format.
pub trait Format {
    /// Values in a block: 32 or 256.
    const VALUES: usize;
    /// Bytes of a block.
    const BYTES: usize;
    /// Values that share a scale: 16 or 32.
    const RUN: usize;
    /// The offset subtracted from every q: a power of two, or 0.
    const OFFSET: u8;
    /// The largest q.
    const MOST: u8;
    /// Whether runs have minima.
    const MINIMA: bool;

    /// For formats that store an index of 0 to 15 in place of q: the q of each index.
    const TABLE: Option<[u8; 16]> = None;

    /// Whether a block is one run that begins with its scale, and its minimum if there is one, as halves.
    const HALVES: bool = false;

    /// The stored codes of a block, in order: q, or the index into [`Format::TABLE`].
    fn codes(block: &[u8], out: &mut [u8]);

    /// The q of each value of a block, in order.
    #[inline(always)]
    fn quants(block: &[u8], out: &mut [u8]) {
        Self::codes(block, out);
        if let Some(table) = Self::TABLE {
            for out in out {
                *out = table[usize::from(*out & 15)];
            }
        }
    }

    /// The scale of each run of a block, and its minimum if the format has one.
    fn scales(block: &[u8], scales: &mut [f32], minima: &mut [f32]);
}

/// Consecutive rows of blocks of one format.
#[derive(Clone, Copy, Debug)]
pub struct BlockRows<'a> {
    /// The blocks of all rows.
    pub bytes: &'a [u8],
    /// Bytes of a row.
    pub length: usize,
    /// [`dot`] of the format in an arithmetic.
    pub dot: fn(Arithmetic) -> Dot,
}

/// The product of a row of blocks with quantised activations and their scales.
pub type Dot = fn(&[i8], &[f32], &[u8]) -> f32;

impl<'a> BlockRows<'a> {
    /// The product of row `row` with `x`, quantised with `scales`.
    pub fn product(&self, arithmetic: Arithmetic, x: &[i8], scales: &[f32], row: usize) -> f32 {
        (self.dot)(arithmetic)(x, scales, self.row(row))
    }

    /// The blocks of one row.
    fn row(&self, row: usize) -> &'a [u8] {
        &self.bytes[row * self.length..][..self.length]
    }
}

/// The float16 in the first two of `bytes`.
#[inline(always)]
fn half(bytes: &[u8]) -> f32 {
    from_half(u16::from_le_bytes([bytes[0], bytes[1]]))
}

/// The float16 with these bits, in arithmetic that the compiler can vectorise.
#[inline(always)]
fn from_half(bits: u16) -> f32 {
    let word = u32::from(bits) << 16;
    // The sign is shifted out. Exponent and fraction are moved to their places in float32. 224 is added to the
    // exponent, which gives ∞ and NaN the largest exponent. The value is then 2¹¹² times too large; the factor 2⁻¹¹²
    // corrects this.
    let twice = word << 1;
    let normal = f32::from_bits((twice >> 4) + (0xe0 << 23)) * f32::from_bits(15 << 23);
    // Subnormal: the fraction f becomes 1/2 + f · 2⁻²⁴, and 1/2 is subtracted.
    let small = f32::from_bits(twice >> 17 | 126 << 23) - 0.5;
    let size = if twice < 1 << 27 { small } else { normal };
    f32::from_bits(size.to_bits() | word & 0x8000_0000)
}

/// Dequantises whole blocks, as many values as `out` has.
#[inline(always)]
pub fn dequantize<F: Format>(bytes: &[u8], out: &mut [f32]) {
    let (mut quants, mut scales, mut minima) = ([0; MAX_VALUES], [0.0; MAX_RUNS], [0.0; MAX_RUNS]);
    for (block, out) in bytes.chunks_exact(F::BYTES).zip(out.chunks_exact_mut(F::VALUES)) {
        F::quants(block, &mut quants[..F::VALUES]);
        F::scales(block, &mut scales, &mut minima);
        for (run, (out, quants)) in out.chunks_exact_mut(F::RUN).zip(quants.chunks_exact(F::RUN)).enumerate()
        {
            for (out, &q) in out.iter_mut().zip(quants) {
                *out = scales[run] * (f32::from(q) - f32::from(F::OFFSET));
                if F::MINIMA {
                    *out += minima[run];
                }
            }
        }
    }
}

/// The product of a row of blocks with a row of activations, quantised by [`super::quantize`] in groups of [`GROUP`].
///
/// The integer products of each run are summed exactly. Within a group, this sum is multiplied by the run's scale, and
/// the sum of the run's activations by the run's minimum. These terms are added by fused multiply-adds: all terms with
/// scales, then all with minima, each in the order of the runs. The group's result times the activations' scale is
/// added as [`super::matmul::dot`] adds its terms: group g to partial sum g mod 16, by a fused multiply-add.
#[inline(always)]
pub fn dot<F: Format>(x: &[i8], x_scales: &[f32], row: &[u8]) -> f32 {
    dot_by::<Fused, F>(x, x_scales, row)
}

/// [`dot`] with the multiply-add of `M`.
#[inline(always)]
pub fn dot_by<M: MulAdd, F: Format>(x: &[i8], x_scales: &[f32], row: &[u8]) -> f32 {
    let (mut quants, mut scales, mut minima) = ([0; MAX_VALUES], [0.0; MAX_RUNS], [0.0; MAX_RUNS]);
    let mut sums = [0.0_f32; LANES];
    let groups_of = F::VALUES / GROUP;
    for (number, (block, x)) in row.chunks_exact(F::BYTES).zip(x.chunks_exact(F::VALUES)).enumerate() {
        F::quants(block, &mut quants[..F::VALUES]);
        F::scales(block, &mut scales, &mut minima);
        for (group, (x, quants)) in x.chunks_exact(GROUP).zip(quants.chunks_exact(GROUP)).enumerate() {
            let runs = group * GROUP / F::RUN..(group + 1) * GROUP / F::RUN;
            let mut whole = [0.0_f32; GROUP / 16];
            let mut x_sums = [0.0_f32; GROUP / 16];
            for (run, (x, quants)) in x.chunks_exact(F::RUN).zip(quants.chunks_exact(F::RUN)).enumerate() {
                let product: i32 = x.iter().zip(quants).map(|(x, q)| i32::from(*x) * i32::from(*q)).sum();
                let sum: i32 = x.iter().map(|x| i32::from(*x)).sum();
                // Below 2²⁴: exact in float32.
                whole[run] = (product - i32::from(F::OFFSET) * sum) as f32;
                x_sums[run] = sum as f32;
            }
            let scales = &scales[runs.clone()];
            let mut term = scales[0] * whole[0];
            for run in 1..scales.len() {
                term = M::mul_add(scales[run], whole[run], term);
            }
            if F::MINIMA {
                for (minimum, x_sum) in minima[runs].iter().zip(x_sums) {
                    term = M::mul_add(*minimum, x_sum, term);
                }
            }
            let group = number * groups_of + group;
            let sum = &mut sums[group % LANES];
            *sum = M::mul_add(x_scales[group], term, *sum);
        }
    }
    reduce(sums)
}

#[cfg(test)]
mod tests;
