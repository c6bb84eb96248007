//! Quantised activations in the orders in which the int8 kernels read them.

use rayon::prelude::*;

use crate::backend::cpu::{MIN_PARALLEL, memory};
use crate::error::Result;
use crate::stop::Stop;

/// Activations that a tile of [`super::vnni`] takes at once, where there are so many; a tile that is not full would take
/// as long.
pub(super) const TILES: [usize; 3] = [4, 8, 16];

/// The group that the int8 kernels are written for: all that quantised models use but for odd ones.
pub(super) const GROUP: usize = 32;

/// Numbers of four int8 values in a group.
pub(super) const QUADS: usize = GROUP / 4;

/// Quantised rows of activations: each with its own groups, the last of them short where it must be.
#[derive(Debug, Default)]
pub(in crate::backend::cpu) struct Quantized {
    rows: usize,
    /// Values in a row.
    pub(super) inputs: usize,
    /// Values that share a scale.
    pub(super) group: usize,
    /// (rows, inputs)
    pub(super) values: Vec<i8>,
    /// (rows, groups)
    pub(super) scales: Vec<f32>,
    tiles: Option<Tiles>,
}

/// The same values tile by tile, zeros where a tile is not full.
#[derive(Debug, Default)]
pub(super) struct Tiles {
    /// Rows in a tile, one of [`TILES`].
    pub(super) width: usize,
    /// (tile, group, quad, row): four neighbouring values of a row in one number.
    pub(super) quads: Vec<i32>,
    /// (tile, group, row): −128 times the sum of the group's values.
    pub(super) offsets: Vec<i32>,
    /// (tile, group, row)
    pub(super) scales: Vec<f32>,
}

impl Quantized {
    /// Quantises `x` (rows, inputs) row by row with `quantize`, and lays out tiles where a kernel wants them.
    pub(in crate::backend::cpu) fn fill(
        &mut self,
        quantize: impl Fn(&[f32], usize, &mut [i8], &mut [f32]) + Sync,
        x: &[f32],
        inputs: usize,
        group: usize,
        tiles: bool,
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
        if tiles && self.is_regular() {
            let mut tiles = self.tiles.take().unwrap_or_default();
            tiles.fill(self, stop)?;
            self.tiles = Some(tiles);
        } else {
            self.tiles = None;
        }
        Ok(())
    }

    /// The values and the scales of row `row`.
    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> (&[i8], &[f32]) {
        let groups = self.inputs.div_ceil(self.group);
        (&self.values[row * self.inputs..][..self.inputs], &self.scales[row * groups..][..groups])
    }

    /// All values (rows, inputs) and all scales (rows, groups).
    pub(in crate::backend::cpu) fn all(&self) -> (&[i8], &[f32]) {
        (&self.values, &self.scales)
    }

    /// Whether rows are whole groups of 32.
    pub(super) fn is_regular(&self) -> bool {
        self.group == GROUP && self.inputs.is_multiple_of(GROUP)
    }

    /// The tiles, where they were laid out.
    pub(super) fn tiles(&self) -> Option<&Tiles> {
        self.tiles.as_ref()
    }
}

impl Tiles {
    fn fill(&mut self, x: &Quantized, stop: &Stop) -> Result<()> {
        let most = TILES[TILES.len() - 1];
        let width = TILES.into_iter().find(|&width| x.rows <= width).unwrap_or(most);
        self.width = width;
        let (groups, tiles) = (x.inputs / GROUP, x.rows.div_ceil(width));
        let of_tiles = tiles * groups * width;
        for (numbers, count) in [(&mut self.quads, QUADS * of_tiles), (&mut self.offsets, of_tiles)] {
            numbers.clear();
            memory::grow(numbers, count)?;
            numbers.resize(count, 0);
        }
        self.scales.clear();
        memory::grow(&mut self.scales, of_tiles)?;
        self.scales.resize(of_tiles, 0.0);
        let numbers = self.offsets.par_chunks_exact_mut(groups * width);
        let numbers = numbers.zip(self.scales.par_chunks_exact_mut(groups * width));
        let quads = self.quads.par_chunks_exact_mut(groups * QUADS * width);
        quads.zip(numbers).enumerate().try_for_each(|(tile, (quads, (offsets, all_scales)))| {
            stop.check()?;
            for row in tile * width..x.rows.min((tile + 1) * width) {
                let ((values, scales), lane) = (x.row(row), row % width);
                for (group, (values, scale)) in values.as_chunks::<GROUP>().0.iter().zip(scales).enumerate() {
                    all_scales[group * width + lane] = *scale;
                    offsets[group * width + lane] = -128 * values.iter().map(|x| i32::from(*x)).sum::<i32>();
                    for (quad, values) in values.as_chunks::<4>().0.iter().enumerate() {
                        let bytes = values.map(i8::cast_unsigned);
                        quads[(group * QUADS + quad) * width + lane] = i32::from_le_bytes(bytes);
                    }
                }
            }
            Ok(())
        })
    }
}
