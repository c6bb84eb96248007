//! Activations in the memory layouts that the matrix products read.

use super::Cpu;
use super::kernel::gemm::Packed;
use super::kernel::q8::Quantized;
use super::kernel::{Aligned, Kernel, Spaced};
#[cfg(target_arch = "x86_64")]
use super::kernel::{bf16_packed, bf16_unit};
use super::memory;
use llama_trace_core::config::Precision;
use llama_trace_core::error::Result;
use llama_trace_core::stop::Stop;

/// Activations, prepared once for all the products that share them.
#[derive(Debug, Default)]
pub struct Input {
    pub(super) rows: usize,
    pub(super) width: usize,
    /// The rows in two groups: those that are summed in the plain order, and those that a matrix unit sums in its own
    /// order. If all rows have the same order, the first group has them all.
    pub(super) groups: [Group; 2],
    /// The group of each row, if there are two groups.
    group_of: Vec<usize>,
    /// All rows, quantised; only in int8 precision.
    pub(super) quantized: Quantized,
    /// The rows of one group, copied next to each other.
    gathered: Vec<f32>,
}

/// Rows that are multiplied in the same order.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) rows: usize,
    /// A few rows, stored as [`Spaced`].
    pub(super) values: Vec<Aligned>,
    /// Many rows, packed in the order in which a tile reads them.
    pub(super) packed: Packed,
    /// The same rows in bfloat16, if a matrix unit multiplies this type.
    #[cfg(target_arch = "x86_64")]
    pub(super) bf16: bf16_packed::Packed,
    #[cfg(target_arch = "x86_64")]
    pub(super) unit: Option<bf16_unit::Unit>,
}

/// The minimum number of rows, and of tokens of a span, for which packing the activations and the weights is faster.
/// With fewer rows, each loaded weight is multiplied with one row after the other.
pub(super) const MIN_PACKED: usize = 16;

/// The same minimum for int8, where packing costs less.
const MIN_TILES_Q8: usize = 4;

impl Input {
    /// Prepares all rows of `x` (rows, width). `orders` yields pairs: a number of rows, and the number of tokens that
    /// determines their order of summation. A matrix unit sums in its own order. Whether it multiplies a row depends
    /// only on the number of tokens in the row's own span. It does not depend on the other spans of the pass, or on the
    /// number of rows (in the head, this number depends on the probe).
    pub(super) fn prepare(
        &mut self,
        cpu: &Cpu,
        x: &[f32],
        width: usize,
        orders: impl Iterator<Item = (usize, usize)> + Clone,
    ) -> Result<()> {
        let Cpu { kernel, precision, ref stop, .. } = *cpu;
        let rows = x.len() / width;
        (self.rows, self.width) = (rows, width);
        self.group_of.clear();
        let [plain, own] = &mut self.groups;
        (plain.rows, own.rows) = (rows, 0);
        if let Precision::Q8 { group } = precision {
            let tiles = kernel.tiles_q8().filter(|_| rows >= MIN_TILES_Q8);
            let quantize = |x: &[f32], group, values: &mut _, scales: &mut _| {
                kernel.isa.quantize(x, group, values, scales);
            };
            return self.quantized.fill(quantize, x, width, group, tiles, stop);
        }
        let has_unit = has_unit(kernel, precision, width);
        let takes = |tokens: usize| has_unit && tokens >= MIN_PACKED;
        let of_unit: usize =
            orders.clone().filter(|&(_, tokens)| takes(tokens)).map(|(count, _)| count).sum();
        if of_unit == 0 || of_unit == rows {
            return plain.fill(cpu, x, width, of_unit > 0, stop);
        }
        for (count, tokens) in orders {
            self.group_of.extend(std::iter::repeat_n(usize::from(takes(tokens)), count));
        }
        for (number, group) in self.groups.iter_mut().enumerate() {
            self.gathered.clear();
            memory::grow(&mut self.gathered, x.len())?;
            let all = x.chunks_exact(width).zip(&self.group_of);
            all.filter(|(_, of)| **of == number).for_each(|(row, _)| self.gathered.extend_from_slice(row));
            group.rows = self.gathered.len() / width;
            group.fill(cpu, &self.gathered, width, number == 1, stop)?;
        }
        Ok(())
    }

    /// Returns the group of row `row`.
    pub(super) fn group_of(&self, row: usize) -> usize {
        self.group_of.get(row).copied().unwrap_or(0)
    }

    /// Returns the int8 values (rows, width) and their scales (rows, groups). Empty in other precisions.
    pub(super) fn quantized(&self) -> (&[i8], &[f32]) {
        self.quantized.all()
    }
}

/// Whether a matrix unit, with its own order of summation, multiplies many rows of `width` values.
fn has_unit(kernel: Kernel, precision: Precision, width: usize) -> bool {
    #[cfg(target_arch = "x86_64")]
    return kernel.bf16_unit(precision, width).is_some();
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (kernel, precision, width);
        false
    }
}

impl Group {
    /// Stores the rows of `x`. If `by_unit`, stores them in the format of the matrix unit.
    fn fill(&mut self, cpu: &Cpu, x: &[f32], width: usize, by_unit: bool, stop: &Stop) -> Result<()> {
        let Cpu { kernel, precision, .. } = *cpu;
        #[cfg(target_arch = "x86_64")]
        {
            self.unit = kernel.bf16_unit(precision, width).filter(|_| by_unit);
            if let Some(unit) = self.unit {
                self.bf16.pack(unit, precision, x, width, stop)?;
                if precision == Precision::Bf16 {
                    return Ok(());
                }
                // In float32, the rows are stored in both formats: a matrix in another type than bfloat16 is multiplied
                // in float32.
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (precision, by_unit);
        if self.rows >= MIN_PACKED {
            self.packed.pack(x, width, kernel.isa.tile().1, stop)
        } else {
            Spaced::fill(x, width, &mut self.values)
        }
    }
}
