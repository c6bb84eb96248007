//! Quantised activations in the orders in which the int8 kernels read them.

use std::ops::Range;

use bytemuck::Zeroable;

use super::Aligned;
use crate::backend::cpu::{MIN_PARALLEL, memory};
use llama_trace_core::error::Result;
use llama_trace_core::ops::matmul::LANES;
use llama_trace_core::stop::Stop;
use llama_trace_core::threads::prelude::*;

/// The order in which a kernel reads many rows of activations.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend::cpu) struct Tiling {
    /// The possible numbers of activation rows in a tile. The smallest tile that holds all rows is used, because a tile
    /// that is not full takes as long as a full tile.
    pub(super) widths: &'static [usize],
    /// Whether the kernel reads [`Tiles::pairs`].
    pub(super) pairs: bool,
    /// The number of zeros after [`Tiles::lines`], if tiles of 16 are read as lines instead of quads.
    pub(super) lines: Option<usize>,
}

/// The group size of the int8 kernels. All quantised models except a few unusual ones have this size.
pub(super) const GROUP: usize = 32;

/// The number of groups in a chunk. A chunk fills whole vectors in every kernel.
pub(super) const CHUNK_GROUPS: usize = 16;

/// Returns the positions of the groups that are added to partial sum `lane` of an output
/// ([`llama_trace_core::ops::matmul::dot`]), in an order in which the groups of each partial sum are adjacent. A row
/// has `groups` groups.
pub(super) fn places(groups: usize, lane: usize) -> Range<usize> {
    let first = |lane: usize| lane * (groups / LANES) + lane.min(groups % LANES);
    first(lane)..first(lane + 1)
}

/// Returns the position of group number `group` in the order of [`places`].
pub(super) fn place(groups: usize, group: usize) -> usize {
    places(groups, group % LANES).start + group / LANES
}

/// The number of quads (four int8 values) in a group.
pub(super) const QUADS: usize = GROUP / 4;

/// Quantised rows of activations. Each row has its own groups; the last group may be short.
#[derive(Debug, Default)]
pub(in crate::backend::cpu) struct Quantized {
    rows: usize,
    /// The number of values in a row.
    pub(super) inputs: usize,
    /// The number of values that share a scale.
    pub(super) group: usize,
    /// (rows, inputs)
    pub(super) values: Vec<i8>,
    /// (rows, groups)
    pub(super) scales: Vec<f32>,
    tiles: Option<Tiles>,
    /// The rows if there are only a few, and no tiles were built.
    pub(super) padded: Padded,
}

/// Quantised rows, each padded with zeros to whole chunks, and the sums of their values. The rows are aligned to cache
/// lines, because a vector that crosses a line takes two loads.
#[derive(Debug, Default)]
pub(super) struct Padded {
    /// int8 values: (row, value).
    values: Vec<Aligned>,
    /// The same values, with the second and the third of every four groups swapped.
    crossed: Vec<Aligned>,
    /// (row, group)
    scales: Vec<Aligned>,
    /// The sums of the first halves of the groups, and of the second halves: (row, group) of int32.
    sums: [Vec<Aligned>; 2],
    /// The sums of whole groups: (row, group).
    whole_sums: Vec<Aligned>,
    /// The distance from one row to the next, in groups.
    groups: usize,
}

/// A padded row. For each group: the values in order and as in [`Padded::crossed`], the scale, the sums of the two
/// halves, and the sum of all values.
#[derive(Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only kernels for x86-64 use it"))]
pub(super) struct PaddedRow<'a> {
    pub(super) values: &'a [[i8; GROUP]],
    pub(super) crossed: &'a [[i8; GROUP]],
    pub(super) scales: &'a [f32],
    pub(super) half_sums: [&'a [i32]; 2],
    pub(super) sums: &'a [f32],
}

/// Quantised rows in the order of tiles. Tiles that are not full are padded with zeros.
#[derive(Debug, Default)]
pub(super) struct Tiles {
    /// The number of rows in a tile, one of [`Tiling::widths`].
    pub(super) width: usize,
    /// (tile, group, quad, row): four adjacent values of a row in one 32-bit number.
    pub(super) quads: Vec<i32>,
    /// (tile, group, quad, 2, row): the first and the third value of a quad, then the second and the fourth, as 16 bits
    /// each.
    pub(super) pairs: Vec<i32>,
    /// (tile, group, row, value), with the groups in the order of [`places`], followed by some zeros.
    pub(super) lines: Vec<i8>,
    /// (tile, group, row): −128 times the sum of the group's values.
    pub(super) offsets: Vec<i32>,
    /// (tile, group, row)
    pub(super) scales: Vec<f32>,
    /// (tile, group, row): the sum of the group's values.
    pub(super) sums: Vec<f32>,
    /// `offsets` of each half of a group: (tile, group, half, row).
    pub(super) half_offsets: Vec<i32>,
    /// `sums` of each half of a group: (tile, group, half, row).
    pub(super) half_sums: Vec<f32>,
}

impl Quantized {
    /// Quantises `x` (rows, inputs) row by row with `quantize`. Builds tiles if the kernel reads them.
    pub(in crate::backend::cpu) fn fill(
        &mut self,
        quantize: impl Fn(&[f32], usize, &mut [i8], &mut [f32]) + Sync,
        x: &[f32],
        inputs: usize,
        group: usize,
        tiling: Option<Tiling>,
        stop: &Stop,
    ) -> Result<()> {
        let (rows, groups) = (x.len() / inputs, inputs.div_ceil(group));
        (self.rows, self.inputs, self.group) = (rows, inputs, group);
        memory::grow(&mut self.values, rows * inputs)?;
        self.values.resize(rows * inputs, 0);
        memory::grow(&mut self.scales, rows * groups)?;
        self.scales.resize(rows * groups, 0.0);
        let quantize_row = |((x, values), scales): ((&[f32], &mut [i8]), &mut [f32])| {
            stop.check()?;
            quantize(x, group, values, scales);
            Ok(())
        };
        if x.len() < MIN_PARALLEL {
            let rows = x.chunks_exact(inputs).zip(self.values.chunks_exact_mut(inputs));
            rows.zip(self.scales.chunks_exact_mut(groups)).try_for_each(quantize_row)?;
        } else {
            let rows = x.par_chunks_exact(inputs).zip(self.values.par_chunks_exact_mut(inputs));
            rows.zip(self.scales.par_chunks_exact_mut(groups)).try_for_each(quantize_row)?;
        }
        if let Some(tiling) = tiling.filter(|_| self.is_regular()) {
            let mut tiles = self.tiles.take().unwrap_or_default();
            tiles.fill(self, tiling, stop)?;
            self.tiles = Some(tiles);
        } else {
            self.tiles = None;
            if self.is_regular() {
                let mut padded = std::mem::take(&mut self.padded);
                padded.fill(self)?;
                self.padded = padded;
            }
        }
        Ok(())
    }

    /// Returns the values and the scales of row `row`.
    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> (&[i8], &[f32]) {
        let groups = self.inputs.div_ceil(self.group);
        (&self.values[row * self.inputs..][..self.inputs], &self.scales[row * groups..][..groups])
    }

    /// Returns all values (rows, inputs) and all scales (rows, groups).
    pub(in crate::backend::cpu) fn all(&self) -> (&[i8], &[f32]) {
        (&self.values, &self.scales)
    }

    /// Whether rows consist of whole groups of 32.
    pub(super) fn is_regular(&self) -> bool {
        self.group == GROUP && self.inputs.is_multiple_of(GROUP)
    }

    /// Returns the tiles, if they were built.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only kernels for x86-64 use it"))]
    pub(super) fn tiles(&self) -> Option<&Tiles> {
        self.tiles.as_ref()
    }
}

/// Sets `numbers` to `count` zeros.
fn zeros<T: Clone + Default>(numbers: &mut Vec<T>, count: usize) -> Result<()> {
    numbers.clear();
    memory::grow(numbers, count)?;
    numbers.resize(count, T::default());
    Ok(())
}

/// Returns the sums of the two halves of a group.
fn half_sums_of(values: &[i8; GROUP]) -> [i32; 2] {
    let sum = |values: &[i8]| values.iter().map(|x| i32::from(*x)).sum();
    [sum(&values[..GROUP / 2]), sum(&values[GROUP / 2..])]
}

/// Sets `numbers` to as many cache lines of zeros as `count` numbers of `size` bytes take.
fn lines(numbers: &mut Vec<Aligned>, count: usize, size: usize) -> Result<()> {
    let lines = (count * size).div_ceil(size_of::<Aligned>());
    numbers.clear();
    memory::grow(numbers, lines)?;
    numbers.resize(lines, Aligned::zeroed());
    Ok(())
}

impl Padded {
    fn fill(&mut self, x: &Quantized) -> Result<()> {
        let groups = (x.inputs / GROUP).next_multiple_of(CHUNK_GROUPS);
        self.groups = groups;
        let count = x.rows * groups;
        let [first, second] = &mut self.sums;
        for values in [&mut self.values, &mut self.crossed] {
            lines(values, count, GROUP)?;
        }
        for numbers in [&mut self.scales, first, second, &mut self.whole_sums] {
            lines(numbers, count, size_of::<f32>())?;
        }
        let [all_values, crossed] = [&mut self.values, &mut self.crossed]
            .map(|lines| bytemuck::cast_slice_mut::<_, i8>(lines).as_chunks_mut::<GROUP>().0);
        let (all_scales, whole) =
            (bytemuck::cast_slice_mut(&mut self.scales), bytemuck::cast_slice_mut(&mut self.whole_sums));
        let [first, second] = [first, second].map(|sums| bytemuck::cast_slice_mut(sums));
        for row in 0..x.rows {
            let ((values, scales), at) = (x.row(row), row * groups);
            all_scales[at..][..scales.len()].copy_from_slice(scales);
            for (group, values) in values.as_chunks().0.iter().enumerate() {
                all_values[at + group] = *values;
                crossed[at + cross(group)] = *values;
                let halves = half_sums_of(values);
                (first[at + group], second[at + group]) = halves.into();
                whole[at + group] = (halves[0] + halves[1]) as f32;
            }
        }
        Ok(())
    }

    /// Returns row `row`.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only kernels for x86-64 use it"))]
    pub(super) fn row(&self, row: usize) -> PaddedRow<'_> {
        let groups = row * self.groups..(row + 1) * self.groups;
        let values = |lines| &bytemuck::cast_slice::<Aligned, i8>(lines).as_chunks().0[groups.clone()];
        let half = |half: usize| &bytemuck::cast_slice(&self.sums[half])[groups.clone()];
        PaddedRow {
            values: values(&self.values),
            crossed: values(&self.crossed),
            scales: &bytemuck::cast_slice(&self.scales)[groups.clone()],
            half_sums: [half(0), half(1)],
            sums: &bytemuck::cast_slice(&self.whole_sums)[groups],
        }
    }
}

/// Returns the position of group number `group` if the second and the third of every four groups are swapped.
pub(super) fn cross(group: usize) -> usize {
    [group, group + 1, group.wrapping_sub(1), group][group % 4]
}

impl Tiles {
    fn fill(&mut self, x: &Quantized, tiling: Tiling, stop: &Stop) -> Result<()> {
        let Tiling { widths, pairs, lines } = tiling;
        let most = widths[widths.len() - 1];
        let width = widths.iter().copied().find(|&width| x.rows <= width).unwrap_or(most);
        let lines = lines.filter(|_| width == LANES);
        self.width = width;
        let (groups, tiles) = (x.inputs / GROUP, x.rows.div_ceil(width));
        let of_tiles = tiles * groups * width;
        zeros(&mut self.quads, if lines.is_some() { 0 } else { QUADS * of_tiles })?;
        zeros(&mut self.pairs, if pairs { 2 * QUADS * of_tiles } else { 0 })?;
        zeros(&mut self.lines, lines.map_or(0, |padding| GROUP * of_tiles + padding))?;
        let place = |group| if lines.is_some() { place(groups, group) } else { group };
        zeros(&mut self.offsets, of_tiles)?;
        zeros(&mut self.half_offsets, 2 * of_tiles)?;
        zeros(&mut self.scales, of_tiles)?;
        zeros(&mut self.sums, of_tiles)?;
        zeros(&mut self.half_sums, 2 * of_tiles)?;
        let of_tile = groups * width;
        let numbers = self.offsets.par_chunks_exact_mut(of_tile);
        let numbers = numbers.zip(self.scales.par_chunks_exact_mut(of_tile));
        let sums = self.sums.par_chunks_exact_mut(of_tile);
        let halves = self.half_offsets.par_chunks_exact_mut(2 * of_tile);
        let sums = sums.zip(halves.zip(self.half_sums.par_chunks_exact_mut(2 * of_tile)));
        numbers.zip(sums).enumerate().try_for_each(|(tile, ((offsets, all_scales), (sums, halves)))| {
            stop.check()?;
            let (half_offsets, half_sums) = halves;
            for row in tile * width..x.rows.min((tile + 1) * width) {
                let ((values, scales), lane) = (x.row(row), row % width);
                for (group, (values, scale)) in values.as_chunks::<GROUP>().0.iter().zip(scales).enumerate() {
                    let group = place(group);
                    all_scales[group * width + lane] = *scale;
                    let of_halves = half_sums_of(values);
                    let sum = of_halves[0] + of_halves[1];
                    offsets[group * width + lane] = -128 * sum;
                    sums[group * width + lane] = sum as f32;
                    for (half, sum) in of_halves.into_iter().enumerate() {
                        half_offsets[(2 * group + half) * width + lane] = -128 * sum;
                        half_sums[(2 * group + half) * width + lane] = sum as f32;
                    }
                }
            }
            Ok(())
        })?;
        if lines.is_some() {
            let lines = self.lines.par_chunks_exact_mut(GROUP * of_tile);
            return lines.enumerate().try_for_each(|(tile, lines)| {
                stop.check()?;
                for row in tile * width..x.rows.min((tile + 1) * width) {
                    let values = x.row(row).0.as_chunks::<GROUP>().0.iter().enumerate();
                    let lines = &mut lines.as_chunks_mut::<GROUP>().0[row % width..];
                    values.for_each(|(group, values)| lines[place(group) * width] = *values);
                }
                Ok(())
            });
        }
        let quads = self.quads.par_chunks_exact_mut(of_tile * QUADS);
        quads.enumerate().try_for_each(|(tile, quads)| {
            stop.check()?;
            for row in tile * width..x.rows.min((tile + 1) * width) {
                for (quad, values) in x.row(row).0.as_chunks::<4>().0.iter().enumerate() {
                    quads[quad * width + row % width] = i32::from_le_bytes(values.map(i8::cast_unsigned));
                }
            }
            Ok(())
        })?;
        // `pairs` may be empty. Then the loop does nothing.
        let quads = self.quads.par_chunks_exact(width).zip(self.pairs.par_chunks_exact_mut(2 * width));
        quads.with_min_len(of_tile).for_each(|(quads, pairs)| {
            let (first, second) = pairs.split_at_mut(width);
            for (i, quad) in quads.iter().enumerate() {
                let pair = |a: i8, b: i8| i32::from(a) & 0xffff | i32::from(b) << 16;
                let [a, b, c, d] = quad.to_le_bytes().map(u8::cast_signed);
                (first[i], second[i]) = (pair(a, c), pair(b, d));
            }
        });
        Ok(())
    }
}
