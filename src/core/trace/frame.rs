//! A frame: all values of one stage, with the names of its axes.

use ndarray::{ArrayD, ArrayViewD, IxDyn};

use super::axis::Axis;
use super::probe::Values;
use super::site::Site;
use super::sizes::Sizes;
use super::step::{Arranged, Step, View};
use super::wide;

/// The values of one stage of one pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// The site that was recorded.
    pub site: Site,
    /// The meaning of each axis, outermost first: one for each axis of the array.
    pub axes: &'static [Axis],
    /// The values.
    pub data: FrameData,
}

/// The values of a frame, row-major.
#[derive(Clone, Debug, PartialEq)]
pub enum FrameData {
    /// float32, most stages.
    F32(ArrayD<f32>),
    /// int64: token ids.
    I64(ArrayD<i64>),
    /// int8: quantised activations.
    I8(ArrayD<i8>),
}

/// One value, as it is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A float32.
    F32(f32),
    /// An id, or an int8 value.
    I64(i64),
}

impl Number {
    /// The value as a float64. Ids are small enough to be exact.
    pub fn real(self) -> f64 {
        match self {
            Self::F32(value) => value.into(),
            Self::I64(value) => value as f64,
        }
    }
}

/// A summary of a frame's values. The minimum, maximum, mean and standard deviation are those of the finite values. All
/// other values are counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stats {
    /// Smallest finite value; NaN if there is none.
    pub min: f64,
    /// Largest finite value.
    pub max: f64,
    /// Mean of the finite values.
    pub mean: f64,
    /// Standard deviation of the finite values (divided by their number).
    pub std: f64,
    /// Number of −∞ values.
    pub neg_inf: usize,
    /// Number of +∞ values.
    pub pos_inf: usize,
    /// Number of NaN values.
    pub nan: usize,
}

/// The result of the first of two passes over the values.
struct First {
    stats: Stats,
    count: usize,
    sum: f64,
}

impl First {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let stats = Stats {
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
            mean: f64::NAN,
            std: f64::NAN,
            neg_inf: 0,
            pos_inf: 0,
            nan: 0,
        };
        let mut first = Self { stats, count: 0, sum: 0.0 };
        values.for_each(|value| first.add(value));
        first
    }

    fn add(&mut self, value: f64) {
        let stats = &mut self.stats;
        if value.is_nan() {
            stats.nan += 1;
        } else if value == f64::INFINITY {
            stats.pos_inf += 1;
        } else if value == f64::NEG_INFINITY {
            stats.neg_inf += 1;
        } else {
            stats.min = stats.min.min(value);
            stats.max = stats.max.max(value);
            self.sum += value;
            self.count += 1;
        }
    }

    fn mean(&self) -> f64 {
        self.sum / self.count as f64
    }

    /// The complete statistics. `squares` is the sum of squared deviations of the finite values, from the second pass.
    fn with(self, squares: f64) -> Stats {
        if self.count == 0 {
            return Stats { min: f64::NAN, max: f64::NAN, ..self.stats };
        }
        Stats { mean: self.mean(), std: (squares / self.count as f64).sqrt(), ..self.stats }
    }
}

/// Adds the squared deviations of the finite values from `mean` to `sum`.
fn squares(sum: f64, values: impl Iterator<Item = f64>, mean: f64) -> f64 {
    values.filter(|value| value.is_finite()).fold(sum, |sum, value| sum + (value - mean).powi(2))
}

impl Stats {
    /// The statistics of `values`, which are iterated twice.
    pub fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let first = First::of(values.clone());
        let mean = first.mean();
        first.with(squares(0.0, values, mean))
    }

    /// [`Stats::of`] for values that are not in memory. `walk` passes all of them to its argument, in order and part by
    /// part; it is called twice.
    ///
    /// # Errors
    /// Those of `walk`.
    pub fn of_parts<E>(mut walk: impl FnMut(&mut dyn FnMut(Values<'_>)) -> Result<(), E>) -> Result<Self, E> {
        let (mut first, mut sum) = (First::of(std::iter::empty()), 0.0);
        walk(&mut |part| part.numbers().for_each(|value| first.add(value)))?;
        let mean = first.mean();
        walk(&mut |part| sum = squares(sum, part.numbers(), mean))?;
        Ok(first.with(sum))
    }
}

/// Statistics of values that arrive in parts and are not kept.
#[derive(Clone, Debug)]
pub struct Summing {
    stats: Stats,
    count: usize,
    squares: f64,
}

impl Default for Summing {
    fn default() -> Self {
        Self { stats: Stats::of(std::iter::empty()), count: 0, squares: 0.0 }
    }
}

impl Summing {
    /// Adds values.
    pub fn add(&mut self, values: impl Iterator<Item = f64> + Clone) {
        let first = First::of(values.clone());
        let mean = first.mean();
        self.merge(&Self {
            count: first.count,
            squares: squares(0.0, values, mean),
            stats: Stats { mean, ..first.stats },
        });
    }

    /// Adds values of a stage. If all are finite, they are summed in parallel lanes, which are combined in a fixed
    /// order.
    pub fn add_values(&mut self, values: Values<'_>) {
        let Values::F32(floats) = values else { return self.add(values.numbers()) };
        let wide::Sums { min, max, sum } = wide::sums(floats);
        // The sum is finite if and only if all float32 values are.
        if !sum.is_finite() || floats.is_empty() {
            return self.add(values.numbers());
        }
        let count = floats.len();
        let mean = sum / count as f64;
        let squares = wide::squares(floats, mean);
        let (min, max) = (f64::from(min), f64::from(max));
        self.merge(&Self { stats: Stats { min, max, mean, ..Self::default().stats }, count, squares });
    }

    /// Adds the statistics `more`. Means and deviations are combined by the method of Chan, Golub and LeVeque.
    pub fn merge(&mut self, more: &Self) {
        let stats = &mut self.stats;
        stats.neg_inf += more.stats.neg_inf;
        stats.pos_inf += more.stats.pos_inf;
        stats.nan += more.stats.nan;
        if more.count == 0 {
            return;
        }
        let (own, others, all) = (self.count as f64, more.count as f64, (self.count + more.count) as f64);
        let before = if self.count == 0 { more.stats.mean } else { stats.mean };
        let apart = more.stats.mean - before;
        self.squares += more.squares + apart * apart * own * others / all;
        self.count += more.count;
        // `min` and `max` ignore NaN.
        stats.min = stats.min.min(more.stats.min);
        stats.max = stats.max.max(more.stats.max);
        stats.mean = before + apart * others / all;
        stats.std = (self.squares / all).sqrt();
    }

    /// The statistics so far.
    pub fn stats(&self) -> Stats {
        self.stats
    }
}

impl Frame {
    /// The size of its values in bytes.
    pub fn bytes(&self) -> usize {
        self.shape().iter().product::<usize>() * self.site.stage.value_bytes()
    }

    /// The lengths of the axes.
    pub fn shape(&self) -> &[usize] {
        match &self.data {
            FrameData::F32(array) => array.shape(),
            FrameData::I64(array) => array.shape(),
            FrameData::I8(array) => array.shape(),
        }
    }

    /// The float32 values; `None` for integers.
    pub fn floats(&self) -> Option<ArrayViewD<'_, f32>> {
        match &self.data {
            FrameData::F32(array) => Some(array.view()),
            FrameData::I64(_) | FrameData::I8(_) => None,
        }
    }

    /// The value at `index`, one number per axis; `None` outside the frame.
    pub fn get(&self, index: &[usize]) -> Option<Number> {
        match &self.data {
            FrameData::F32(array) => array.get(IxDyn(index)).map(|&value| Number::F32(value)),
            FrameData::I64(array) => array.get(IxDyn(index)).map(|&value| Number::I64(value)),
            FrameData::I8(array) => array.get(IxDyn(index)).map(|&value| Number::I64(i64::from(value))),
        }
    }

    /// Minimum, maximum, mean, standard deviation, and the counts of non-finite values.
    pub fn stats(&self) -> Stats {
        Stats::of(self.values().numbers())
    }

    /// Its values, row-major.
    pub fn values(&self) -> Values<'_> {
        let values = match &self.data {
            FrameData::F32(array) => array.as_slice().map(Values::F32),
            FrameData::I64(array) => array.as_slice().map(Values::I64),
            FrameData::I8(array) => array.as_slice().map(Values::I8),
        };
        values.unwrap_or_else(|| unreachable!("frames are row-major"))
    }

    /// The values in the shape of `view`; `self` must be the frame of the view's source.
    pub fn view(&self, view: View, sizes: &Sizes) -> Self {
        /// Permutes the axes of `array`, or reshapes it. The shape fits unless the frame is of another stage.
        fn seen<T: Copy>(array: &ArrayD<T>, order: Option<[usize; 3]>, shape: &[usize]) -> ArrayD<T> {
            match order {
                Some(order) => array.view().permuted_axes(&order[..]).as_standard_layout().into_owned(),
                None => array.to_shape(shape).map_or_else(|_| array.clone(), ndarray::CowArray::into_owned),
            }
        }
        let (order, shape) = match Step::View(view).arranged() {
            Arranged::Same => (None, self.shape().to_vec()),
            Arranged::Axes(order) => (Some(order), Vec::new()),
            Arranged::Merged => (None, vec![self.shape()[0], sizes.heads * sizes.head_dim]),
        };
        let data = match &self.data {
            FrameData::F32(array) => FrameData::F32(seen(array, order, &shape)),
            FrameData::I64(array) => FrameData::I64(seen(array, order, &shape)),
            FrameData::I8(array) => FrameData::I8(seen(array, order, &shape)),
        };
        Self { site: self.site, axes: view.axes(), data }
    }
}

#[cfg(test)]
mod tests {
    use super::super::card::ModelCard;
    use super::super::stage::Stage;
    use super::*;

    #[test]
    fn stats_leave_out_what_is_not_finite_and_count_it() {
        let values = [1.0, 3.0, f64::NEG_INFINITY, f64::NAN];
        let stats = Stats::of(values.iter().copied());
        assert_eq!((stats.min, stats.max, stats.mean, stats.std), (1.0, 3.0, 2.0, 1.0));
        assert_eq!((stats.neg_inf, stats.pos_inf, stats.nan), (1, 0, 1));
    }

    #[test]
    fn stats_of_parts_are_those_of_the_whole_to_the_bit() {
        let mut values: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.7).sin() * 1e3).collect();
        (values[3], values[700], values[701]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
        for values in [&values[..], &values[..1], &values[700..702], &[]] {
            let whole = Stats::of(values.iter().map(|&value| f64::from(value)));
            let parts = Stats::of_parts(|see| {
                values.chunks(7).for_each(|part| see(Values::F32(part)));
                Ok::<_, std::convert::Infallible>(())
            });
            assert_eq!(format!("{:?}", parts.unwrap()), format!("{whole:?}"));
        }
    }

    #[test]
    fn values_that_are_summed_side_by_side_have_the_statistics_of_one_walk() {
        let mut values: Vec<f32> = (0..1003).map(|i| (i as f32 * 0.7).sin() * 1e3 + 40.0).collect();
        for broken in [None, Some(f32::NAN), Some(f32::NEG_INFINITY)] {
            for at in [5, 1001] {
                values[at] = broken.unwrap_or(values[at]);
            }
            for size in [1, 7, 8, 100, 1003] {
                let mut sum = Summing::default();
                for part in values.chunks(size) {
                    let mut own = Summing::default();
                    own.add_values(Values::F32(part));
                    sum.merge(&own);
                }
                let (ours, whole) = (sum.stats(), Stats::of(values.iter().map(|&value| f64::from(value))));
                assert_eq!((ours.min, ours.max, ours.nan), (whole.min, whole.max, whole.nan), "{size}");
                assert_eq!((ours.neg_inf, ours.pos_inf), (whole.neg_inf, whole.pos_inf));
                assert!(
                    (ours.mean - whole.mean).abs() < 1e-9 && (ours.std - whole.std).abs() < 1e-9,
                    "{size}"
                );
            }
        }
    }

    #[test]
    fn a_transposed_view_has_the_same_numbers_elsewhere() {
        let values: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let data = FrameData::F32(ArrayD::from_shape_vec(IxDyn(&[3, 2, 2]), values).unwrap());
        let keys = Frame { site: Site::layer(0, 0, Stage::Keys), axes: Stage::Keys.axes(), data };
        let sizes = ModelCard::small(|config| (config.dim, config.head_dim) = (4, 2)).sizes();
        let keys_t = keys.view(View::KeysT, &sizes);
        assert_eq!(keys_t.shape(), [2, 2, 3]);
        assert_eq!(keys_t.get(&[1, 0, 2]), keys.get(&[2, 1, 0]));
    }
}
