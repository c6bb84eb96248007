//! A block of a stage: a box of indices, and the values in it. Large stages are computed and shown block by block.

use std::ops::Range;
use std::sync::Arc;

use ndarray::{ArrayD, IxDyn};

use super::frame::{Frame, FrameData, Number};
use super::probe::{Probe, Values};
use super::site::Site;
use super::sizes::{PassDims, Sizes};

/// A box of indices: a range on each axis of a stage, outermost first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Region(pub Vec<Range<usize>>);

/// The values of a stage in a region.
#[derive(Clone, Debug)]
pub struct Block {
    /// The values, in the region's shape.
    pub frame: Arc<Frame>,
    /// Their position in the stage.
    pub region: Region,
    /// The shape of the whole stage.
    pub shape: Vec<usize>,
}

impl Region {
    /// Every index of a tensor of `shape`.
    pub fn whole(shape: &[usize]) -> Self {
        Self(shape.iter().map(|&length| 0..length).collect())
    }

    /// The length of each axis.
    pub fn shape(&self) -> Vec<usize> {
        self.0.iter().map(ExactSizeIterator::len).collect()
    }

    /// The number of values.
    pub fn count(&self) -> usize {
        self.0.iter().map(ExactSizeIterator::len).product()
    }

    /// Returns whether it contains every index of `other`.
    pub fn covers(&self, other: &Self) -> bool {
        self.0.len() == other.0.len()
            && self.0.iter().zip(&other.0).all(|(a, b)| a.start <= b.start && b.end <= a.end)
    }

    /// The part of the region that is inside a tensor of `shape`.
    #[must_use]
    pub fn within(&self, shape: &[usize]) -> Self {
        let clip = |(range, &length): (&Range<usize>, &usize)| range.start.min(length)..range.end.min(length);
        Self(self.0.iter().zip(shape).map(clip).collect())
    }

    /// A larger region around this one, with up to `most` values of a tensor of `shape`: whole rows first, then more
    /// rows. Blocks overlap by half, so scrolling back and forth across an edge needs no new block.
    #[must_use]
    pub fn grown(&self, shape: &[usize], most: usize) -> Self {
        let mut grown = self.clone();
        for axis in (0..shape.len()).rev() {
            let others = grown.count() / grown.0[axis].len().max(1);
            let room = (most / others.max(1)).max(2 * self.0[axis].len()).min(shape[axis]);
            let half = (room / 2).max(1);
            let start = (self.0[axis].start / half * half).min(shape[axis] - room);
            grown.0[axis] = start..start + room;
            if room < shape[axis] {
                break;
            }
        }
        grown
    }

    /// The index of row `row` of a tensor of `shape`, on all axes except the last.
    pub(super) fn outer(shape: &[usize], row: usize) -> Vec<usize> {
        index_of(shape.split_last().map_or(&[], |(_, outer)| outer), row)
    }
}

/// The index of value `at` (row-major) of a tensor of `shape`.
pub fn index_of(shape: &[usize], mut at: usize) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (index, &length) in index.iter_mut().zip(shape).rev() {
        *index = at % length.max(1);
        at /= length.max(1);
    }
    index
}

impl Block {
    /// A block of a whole frame.
    pub fn whole(frame: Arc<Frame>) -> Self {
        let shape = frame.shape().to_vec();
        Self { frame, region: Region::whole(&shape), shape }
    }

    /// A block of no values of a stage of `shape`.
    pub fn without_values(site: Site, shape: Vec<usize>) -> Self {
        let none = vec![0; shape.len()];
        let data = FrameData::F32(ArrayD::zeros(IxDyn(&none)));
        let frame = Arc::new(Frame { site, axes: site.stage.axes(), data });
        Self { frame, region: Region(vec![0..0; shape.len()]), shape }
    }

    /// Returns whether it has every value of the stage.
    pub fn is_whole(&self) -> bool {
        self.region.count() == self.shape.iter().product::<usize>()
    }

    /// The value at `index` of the stage; `None` if the block does not contain it.
    pub fn get(&self, index: &[usize]) -> Option<Number> {
        if self.is_whole() {
            return self.frame.get(index);
        }
        self.frame.get(&self.inside(index)?)
    }

    /// Converts an index of the stage into one of the block. `None` if the block does not contain it.
    fn inside(&self, index: &[usize]) -> Option<Vec<usize>> {
        let at =
            |(&index, range): (&usize, &Range<usize>)| range.contains(&index).then(|| index - range.start);
        index.iter().zip(&self.region.0).map(at).collect()
    }

    /// The range of the frame that holds the stage's values from number `at` on (row-major). It ends where the values
    /// are no longer contiguous in the stage or in the block. `None` if the block does not contain value `at`.
    pub fn run(&self, at: usize) -> Option<Range<usize>> {
        let (&width, outer) = self.shape.split_last()?;
        let mut index = Region::outer(&self.shape, at / width.max(1));
        index.push(at % width.max(1));
        let inside = self.inside(&index)?;
        let lengths = self.region.shape();
        // All axes after this one are complete in the block.
        let axis = (0..=outer.len()).rev().find(|&axis| lengths[axis] < self.shape[axis]).unwrap_or(0);
        let unit: usize = lengths[axis + 1..].iter().product();
        let start = inside.iter().zip(&lengths).fold(0, |at, (index, length)| at * length + index);
        let end = (start / (unit * lengths[axis]) + 1) * unit * lengths[axis];
        Some(start..end)
    }
}

/// A probe that keeps one region of one site.
#[derive(Debug)]
pub struct Cutting {
    site: Site,
    region: Region,
    shape: Vec<usize>,
    data: Option<FrameData>,
}

impl Cutting {
    /// A probe for `region` of `site`, in pass `dims` of a model with `sizes`.
    pub fn new(site: Site, region: Region, sizes: &Sizes, dims: PassDims) -> Self {
        Self { site, region, shape: sizes.shape(site.stage.axes(), dims), data: None }
    }

    /// The region's range on the first axis.
    pub fn rows(&self) -> Range<usize> {
        self.region.0.first().cloned().unwrap_or(0..1)
    }

    /// The recorded block; `None` if the pass did not record the site.
    pub fn into_block(self) -> Option<Block> {
        let frame = Frame { site: self.site, axes: self.site.stage.axes(), data: self.data? };
        Some(Block { frame: Arc::new(frame), region: self.region, shape: self.shape })
    }
}

/// Copies the part of `rows` in `region` into `array`, which has the region's shape.
fn copy<T: Copy>(array: &mut ArrayD<T>, region: &Region, shape: &[usize], rows: Range<usize>, values: &[T]) {
    let (Some((columns, outer)), Some(&width)) = (region.0.split_last(), shape.last()) else { return };
    let Some(array) = array.as_slice_mut() else { return };
    for (row, values) in rows.zip(values.chunks_exact(width.max(1))) {
        let index = Region::outer(shape, row);
        if outer.iter().zip(&index).all(|(range, index)| range.contains(index)) {
            let row = outer.iter().zip(&index).fold(0, |at, (range, i)| at * range.len() + i - range.start);
            array[row * columns.len()..][..columns.len()].copy_from_slice(&values[columns.clone()]);
        }
    }
}

impl Probe for Cutting {
    fn enabled(&self) -> bool {
        true
    }

    fn wants(&self, site: Site) -> bool {
        site == self.site
    }

    fn record(&mut self, site: Site, rows: Range<usize>, values: Values<'_>) {
        if site != self.site {
            return;
        }
        let Self { region, shape, data, .. } = self;
        let empty = IxDyn(&region.shape());
        let data = data.get_or_insert_with(|| match values {
            Values::F32(_) => FrameData::F32(ArrayD::zeros(empty)),
            Values::I64(_) => FrameData::I64(ArrayD::zeros(empty)),
            Values::I8(_) => FrameData::I8(ArrayD::zeros(empty)),
        });
        match (data, values) {
            (FrameData::F32(array), Values::F32(values)) => copy(array, region, shape, rows, values),
            (FrameData::I64(array), Values::I64(values)) => copy(array, region, shape, rows, values),
            (FrameData::I8(array), Values::I8(values)) => copy(array, region, shape, rows, values),
            _ => unreachable!("a stage has one number type"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::card::ModelCard;
    use super::super::sizes::Filters;
    use super::super::spread::{Counting, Part};
    use super::super::stage::Stage;
    use super::*;

    fn sizes() -> Sizes {
        ModelCard::small(|config| (config.heads, config.head_dim) = (3, 2)).sizes()
    }

    const DIMS: PassDims = PassDims { pass: 0, start: 0, tokens: 4, filters: Filters::NONE };

    #[test]
    fn a_region_grows_by_whole_rows_and_never_past_the_tensor() {
        let need = Region(vec![1..2, 5..8, 0..3]);
        assert_eq!(need.grown(&[4, 10, 6], 36), Region(vec![1..2, 3..9, 0..6]));
        assert_eq!(need.grown(&[4, 10, 6], 1000), Region(vec![0..4, 0..10, 0..6]));
        assert_eq!(need.grown(&[4, 10, 6], 1).0[2], 0..6, "at least what is needed, twice");
        for start in 0..100 {
            let need = Region(vec![start..start + 1, 0..5]);
            let grown = need.grown(&[100, 5], 60);
            assert!(grown.covers(&need) && grown.count() == 60, "{grown:?}");
        }
    }

    #[test]
    fn a_block_has_the_values_that_the_whole_frame_has_there() {
        let site = Site::layer(0, 0, Stage::Qk);
        let region = Region(vec![1..3, 2..4, 1..3]);
        let mut cutting = Cutting::new(site, region.clone(), &sizes(), DIMS);
        let mut counting = Counting::new(Part { site, held: Some((0, 2)) }, &sizes(), DIMS);
        let values: Vec<f32> = (0..48).map(|i| i as f32).collect();
        for rows in [6..12, 0..6] {
            let values = Values::F32(&values[rows.start * 4..rows.end * 4]);
            cutting.record(site, rows.clone(), values);
            counting.record(site, rows, values);
        }
        let block = cutting.into_block().unwrap();
        for index in [[1, 2, 1], [2, 3, 2], [1, 3, 1]] {
            let at = (index[0] * 4 + index[1]) * 4 + index[2];
            assert_eq!(block.get(&index), Some(Number::F32(at as f32)));
            let run = block.run(at).unwrap();
            let flat: Vec<_> = block.frame.floats().unwrap().iter().copied().collect();
            assert_eq!(flat[run.start], at as f32);
            assert!(flat[run].windows(2).all(|two| two[0] + 1.0 == two[1]), "side by side in both");
        }
        assert_eq!((block.get(&[0, 2, 1]), block.run(0)), (None, None));
        let stats = counting.spread().stats;
        assert_eq!((stats.min, stats.max, stats.mean), (32.0, 47.0, 39.5));
        assert!((stats.std - (255.0_f64 / 12.0).sqrt()).abs() < 1e-12);
    }
}
