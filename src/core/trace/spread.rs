//! Summaries of all values of a stage: statistics, the range of a colour scale and, for a vocabulary, the order by
//! value. A viewer needs them to draw even a few of the values.

use std::ops::Range;
use std::sync::Arc;

use ndarray::{ArrayD, Axis as Dimension};

use super::block::{Block, Region};
use super::frame::{Frame, FrameData, Stats, Summing};
use super::probe::{Probe, Values};
use super::site::Site;
use super::sizes::{PassDims, Sizes};

/// Some values of a stage: all, or those at one index of one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// The stage.
    pub site: Site,
    /// The fixed axis and its index.
    pub held: Option<(usize, usize)>,
}

/// The statistics of some values, and the range of their magnitudes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Minimum, maximum, mean, standard deviation, and the counts of non-finite values.
    pub stats: Stats,
    /// The usual magnitude: a bound that at most 1 of 100 nonzero values exceeds (of fewer than 100 values, at most
    /// one). If the largest magnitude is at most twice this bound, or fewer than 16 values are nonzero, `usual` is the
    /// largest magnitude.
    pub usual: f64,
    /// The number of values beyond `usual`.
    pub beyond_usual: usize,
    /// Three standard deviations; up to 1/128 larger if the values were not all in memory.
    pub deviations: f64,
    /// The number of values farther from 0 than `deviations`.
    pub beyond_deviations: usize,
}

/// The ids of a vocabulary, ordered by value, largest first.
#[derive(Clone, Debug)]
pub struct Order {
    /// The ids.
    pub ids: Arc<[u32]>,
    /// The number of values above 0; they come first.
    pub positive: usize,
    /// The sum of those values.
    pub sum: f64,
}

impl Part {
    /// All values of a stage.
    pub fn whole(site: Site) -> Self {
        Self { site, held: None }
    }

    /// Their region in a stage of `shape`.
    pub fn region(self, shape: &[usize]) -> Region {
        let mut region = Region::whole(shape);
        if let Some((axis, index)) = self.held {
            region.0[axis] = index..index + 1;
        }
        region.within(shape)
    }
}

impl Spread {
    /// The spread of `values`, which are iterated several times.
    pub fn of(values: impl Iterator<Item = f32> + Clone) -> Self {
        let mut spreading = Spreading::default();
        spreading.add(values.clone());
        let spread = spreading.spread();
        let deviations = 3.0 * spread.stats.std;
        let beyond =
            values.map(f64::from).filter(|value| value.is_finite() && value.abs() > deviations).count();
        Self { deviations, beyond_deviations: beyond, ..spread }
    }

    /// The spread of the values of `frame` at an index of an axis, or of all values if `held` is `None`.
    pub fn of_frame(frame: &Frame, held: Option<(usize, usize)>) -> Self {
        match &frame.data {
            FrameData::F32(array) => of_array(array, held, |value| value),
            // Ids and int8 values are exact enough in float32 for colours and statistics.
            FrameData::I64(array) => of_array(array, held, |value| value as f32),
            FrameData::I8(array) => of_array(array, held, f32::from),
        }
    }
}

fn of_array<T: Copy>(
    array: &ArrayD<T>,
    held: Option<(usize, usize)>,
    value: impl Fn(T) -> f32 + Copy,
) -> Spread {
    match held.filter(|&(axis, index)| array.shape().get(axis).is_some_and(|&length| index < length)) {
        Some((axis, index)) => {
            Spread::of(array.index_axis(Dimension(axis), index).iter().map(|&number| value(number)))
        }
        None => Spread::of(array.iter().map(|&number| value(number))),
    }
}

/// The number of low bits of a float32 that the histogram ignores. The other bits of a magnitude, its exponent and
/// seven binary digits, determine its bin. The bins have the order of the magnitudes, and no copy of the values is
/// needed.
const SHIFT: u32 = 16;
const BINS: usize = 1 << (31 - SHIFT);

/// The spread of values that arrive in parts and are not kept.
#[derive(Clone, Debug)]
pub struct Spreading {
    sum: Summing,
    /// The number of values in each bin; zeros are in no bin.
    counts: Vec<usize>,
}

impl Default for Spreading {
    fn default() -> Self {
        Self { sum: Summing::default(), counts: vec![0; BINS] }
    }
}

/// The largest magnitude of a bin. It has few binary digits, which makes it a round number.
fn last_of(bin: usize) -> f64 {
    f64::from(f32::from_bits((bin as u32 + 1) << SHIFT))
}

/// The bin of a nonzero magnitude.
fn bin_of(size: f32) -> usize {
    (size.abs().to_bits().saturating_sub(1) >> SHIFT) as usize
}

impl Spreading {
    /// Adds values.
    pub fn add(&mut self, values: impl Iterator<Item = f32> + Clone) {
        self.sum.add(values.clone().map(f64::from));
        for value in values.filter(|value| value.is_finite() && *value != 0.0) {
            self.counts[bin_of(value)] += 1;
        }
    }

    /// The spread so far.
    pub fn spread(&self) -> Spread {
        let stats = self.sum.stats();
        let largest = stats.min.abs().max(stats.max.abs());
        let usual = self.usual().filter(|(usual, _)| largest > 2.0 * usual);
        let (usual, beyond_usual) = usual.unwrap_or((largest, 0));
        let (deviations, beyond_deviations) = self.beyond(3.0 * stats.std, largest);
        Spread { stats, usual, beyond_usual, deviations, beyond_deviations }
    }

    /// An upper bound of the magnitudes of 99 of 100 finite nonzero values, accurate to 1 in 128, and the number of
    /// values beyond it. `None` if there are too few values.
    fn usual(&self) -> Option<(f64, usize)> {
        const FEWEST: usize = 16;
        let count: usize = self.counts.iter().sum();
        if count < FEWEST {
            return None;
        }
        let most = (count / 100).max(1);
        let mut beyond = 0;
        for (bin, &here) in self.counts.iter().enumerate().rev() {
            if beyond + here > most {
                return Some((last_of(bin), beyond));
            }
            beyond += here;
        }
        None
    }

    /// The end of the bin of `size`, and the number of larger values.
    fn beyond(&self, size: f64, largest: f64) -> (f64, usize) {
        if !size.is_finite() || size >= largest {
            return (size, 0);
        }
        if size == 0.0 {
            return (size, self.counts.iter().sum());
        }
        let bin = bin_of(size as f32);
        (last_of(bin), self.counts[bin + 1..].iter().sum())
    }
}

impl Order {
    /// The order of the values of `block` at an index of an axis of its stage, or of all its values if `held` is
    /// `None`. The block must contain that whole slice. NaN comes last; equal values are ordered by id.
    pub fn of(block: &Block, held: Option<(usize, usize)>) -> Self {
        let held = held.map(|(axis, index)| (axis, index - block.region.0[axis].start));
        let values: Vec<f32> = match (held, block.frame.floats()) {
            (Some((axis, index)), Some(array))
                if array.shape().get(axis).is_some_and(|&length| index < length) =>
            {
                array.index_axis(Dimension(axis), index).iter().copied().collect()
            }
            (_, Some(array)) => array.iter().copied().collect(),
            (_, None) => Vec::new(),
        };
        let mut order: Vec<u32> = (0..u32::try_from(values.len()).unwrap_or(u32::MAX)).collect();
        let size = |id: &u32| {
            let value = values[*id as usize];
            if value.is_nan() { (1, 0.0) } else { (0, -value) }
        };
        order.sort_by(|a, b| {
            let (a, b) = (size(a), size(b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        });
        let kept = order.iter().map(|&id| values[id as usize]).take_while(|value| *value > 0.0);
        let (positive, sum) = (kept.clone().count(), kept.map(f64::from).sum());
        Self { ids: order.into(), positive, sum }
    }
}

/// A probe that summarises a part of a stage without keeping it.
#[derive(Debug)]
pub struct Counting {
    part: Part,
    shape: Vec<usize>,
    spreading: Spreading,
}

impl Counting {
    /// A probe for `part`, in pass `dims` of a model with `sizes`.
    pub fn new(part: Part, sizes: &Sizes, dims: PassDims) -> Self {
        let shape = sizes.shape(part.site.stage.axes(), dims);
        Self { part, shape, spreading: Spreading::default() }
    }

    /// The spread of the recorded values.
    pub fn spread(&self) -> Spread {
        self.spreading.spread()
    }

    fn row(&mut self, row: usize, values: impl ExactSizeIterator<Item = f32> + Clone) {
        match self.part.held {
            Some((axis, index)) if axis + 1 == self.shape.len() => {
                self.spreading.add(values.skip(index).take(1));
            }
            Some((axis, index)) if Region::outer(&self.shape, row)[axis] != index => {}
            _ => self.spreading.add(values),
        }
    }
}

impl Probe for Counting {
    fn enabled(&self) -> bool {
        true
    }

    fn wants(&self, site: Site) -> bool {
        site == self.part.site
    }

    fn record(&mut self, site: Site, rows: Range<usize>, values: Values<'_>) {
        if site != self.part.site {
            return;
        }
        let width = self.shape.last().copied().unwrap_or(1).max(1);
        for (i, row) in rows.enumerate() {
            // Ids and int8 values are exact enough in float32 for colours and statistics.
            self.row(row, values.slice(i * width..(i + 1) * width).numbers().map(|value| value as f32));
        }
    }
}

#[cfg(test)]
mod tests {
    use ndarray::IxDyn;

    use super::super::stage::Stage;
    use super::*;

    #[test]
    fn the_largest_come_first_and_what_is_no_number_last() {
        let values = vec![1.0, 3.0, f32::NAN, 3.0, f32::NEG_INFINITY, -0.0];
        let data = FrameData::F32(ArrayD::from_shape_vec(IxDyn(&[1, 6]), values).unwrap());
        let frame = Arc::new(Frame { site: Site::once(0, Stage::Logits), axes: Stage::Logits.axes(), data });
        let order = Order::of(&Block::whole(frame), Some((0, 0)));
        assert_eq!((&order.ids[..], order.positive, order.sum), (&[1, 3, 0, 5, 4, 2][..], 3, 7.0));
    }

    #[test]
    fn what_is_usual_leaves_one_outlier_out_and_counts_it() {
        let mut values: Vec<f32> = (1..=150).map(|i| i as f32 / 150.0).collect();
        let even = Spread::of(values.iter().copied());
        assert_eq!((even.usual, even.beyond_usual), (1.0, 0), "without an outlier all is usual");
        values.extend([80.0, f32::NEG_INFINITY, f32::NAN]);
        let spread = Spread::of(values.iter().copied());
        assert!((0.98..1.02).contains(&spread.usual), "{spread:?}");
        assert_eq!((spread.beyond_usual, spread.beyond_deviations, spread.stats.neg_inf), (1, 1, 1));
        let few = Spread::of([1.0, 9.0].into_iter());
        assert_eq!((few.usual, few.beyond_usual), (9.0, 0));
        let zeros = Spread::of([0.0; 40].into_iter());
        assert_eq!((zeros.usual, zeros.beyond_usual, zeros.beyond_deviations), (0.0, 0, 0));
    }

    #[test]
    fn values_that_come_in_runs_spread_as_those_held_together_and_what_is_counted_is_so() {
        let mut values: Vec<f32> = (0..1000_i32).map(|i| ((i * i % 613) as f32 - 300.0) / 71.0).collect();
        values.extend([0.0, -0.0, 1e-42, 700.0, -650.0, f32::INFINITY, f32::NAN]);
        let whole = Spread::of(values.iter().copied());
        for size in [1, 7, 500, 2000] {
            let mut spreading = Spreading::default();
            for part in values.chunks(size) {
                spreading.add(part.iter().copied());
            }
            let spread = spreading.spread();
            assert_eq!((spread.usual, spread.beyond_usual), (whole.usual, whole.beyond_usual), "{size}");
            let beyond = |size: f64| {
                values.iter().filter(|value| value.is_finite() && f64::from(value.abs()) > size).count()
            };
            assert_eq!(spread.beyond_usual, beyond(spread.usual));
            assert_eq!(spread.beyond_deviations, beyond(spread.deviations));
            let more = spread.deviations / whole.deviations;
            assert!((1.0..1.0 + 1.0 / 64.0).contains(&more), "{size}: {more}");
            assert!((spread.stats.std - whole.stats.std).abs() < 1e-9 * whole.stats.std);
        }
    }
}
