//! A frame: all values of one stage, with the names of its axes.

use ndarray::{ArrayD, ArrayViewD, IxDyn};

use super::card::Sizes;
use super::site::Site;
use super::stage::{Axis, View};

/// The values of one stage of one pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// Where it was recorded.
    pub site: Site,
    /// What each axis means, outermost first; as many as the array has.
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

/// A summary of a frame's values. The four figures are over the finite ones; the counts tell how many
/// were not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stats {
    /// Smallest finite value; NaN where there is none.
    pub min: f64,
    /// Largest finite value.
    pub max: f64,
    /// Mean of the finite values.
    pub mean: f64,
    /// Standard deviation of the finite values (divided by their number).
    pub std: f64,
    /// How many values are −∞.
    pub neg_inf: usize,
    /// How many are +∞.
    pub pos_inf: usize,
    /// How many are not a number.
    pub nan: usize,
}

impl Stats {
    /// The summary of `values`, which are walked twice.
    pub fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let mut stats = Self {
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
            mean: f64::NAN,
            std: f64::NAN,
            neg_inf: 0,
            pos_inf: 0,
            nan: 0,
        };
        let (mut count, mut sum) = (0_usize, 0.0);
        for value in values.clone() {
            if value.is_nan() {
                stats.nan += 1;
            } else if value == f64::INFINITY {
                stats.pos_inf += 1;
            } else if value == f64::NEG_INFINITY {
                stats.neg_inf += 1;
            } else {
                stats.min = stats.min.min(value);
                stats.max = stats.max.max(value);
                sum += value;
                count += 1;
            }
        }
        if count == 0 {
            return Self { min: f64::NAN, max: f64::NAN, ..stats };
        }
        let mean = sum / count as f64;
        let squares: f64 = values.filter(|value| value.is_finite()).map(|value| (value - mean).powi(2)).sum();
        Self { mean, std: (squares / count as f64).sqrt(), ..stats }
    }
}

/// The statistics of values that come one run after the other and are not kept.
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
    /// Takes in more values. Mean and deviation of both parts are put together as Chan, Golub and LeVeque do it.
    pub fn add(&mut self, values: impl Iterator<Item = f64> + Clone) {
        let count = values.clone().filter(|value| value.is_finite()).count();
        let Stats { min, max, mean, std, neg_inf, pos_inf, nan } = Stats::of(values);
        let stats = &mut self.stats;
        (stats.neg_inf, stats.pos_inf, stats.nan) =
            (stats.neg_inf + neg_inf, stats.pos_inf + pos_inf, stats.nan + nan);
        if count == 0 {
            return;
        }
        let (own, more, all) = (self.count as f64, count as f64, (self.count + count) as f64);
        let before = if self.count == 0 { mean } else { stats.mean };
        let apart = mean - before;
        self.squares += std * std * more + apart * apart * own * more / all;
        self.count += count;
        // What is not a number gives way to what is.
        stats.min = stats.min.min(min);
        stats.max = stats.max.max(max);
        stats.mean = before + apart * more / all;
        stats.std = (self.squares / all).sqrt();
    }

    /// The statistics so far.
    pub fn stats(&self) -> Stats {
        self.stats
    }
}

impl Frame {
    /// How many bytes its values take.
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

    /// The float32 values; none for integers.
    pub fn floats(&self) -> Option<ArrayViewD<'_, f32>> {
        match &self.data {
            FrameData::F32(array) => Some(array.view()),
            FrameData::I64(_) | FrameData::I8(_) => None,
        }
    }

    /// The value at `index`, one number an axis; none outside the frame.
    pub fn get(&self, index: &[usize]) -> Option<Number> {
        match &self.data {
            FrameData::F32(array) => array.get(IxDyn(index)).map(|&value| Number::F32(value)),
            FrameData::I64(array) => array.get(IxDyn(index)).map(|&value| Number::I64(value)),
            FrameData::I8(array) => array.get(IxDyn(index)).map(|&value| Number::I64(i64::from(value))),
        }
    }

    /// Minimum, maximum, mean, standard deviation, and what is not finite.
    pub fn stats(&self) -> Stats {
        match &self.data {
            FrameData::F32(array) => Stats::of(array.iter().map(|&value| f64::from(value))),
            FrameData::I64(array) => Stats::of(array.iter().map(|&value| value as f64)),
            FrameData::I8(array) => Stats::of(array.iter().map(|&value| f64::from(value))),
        }
    }

    /// The same values as `view` shows them; `self` must be the frame of the view's source.
    pub fn view(&self, view: View, sizes: &Sizes) -> Self {
        /// `array` with its axes in another order, or reshaped; only a frame of another stage does not fit.
        fn seen<T: Copy>(array: &ArrayD<T>, order: Option<[usize; 3]>, shape: &[usize]) -> ArrayD<T> {
            match order {
                Some(order) => array.view().permuted_axes(&order[..]).as_standard_layout().into_owned(),
                None => array.to_shape(shape).map_or_else(|_| array.clone(), ndarray::CowArray::into_owned),
            }
        }
        let (order, shape) = match view {
            View::XqHeads | View::XkHeads | View::XvHeads => (None, self.shape().to_vec()),
            View::QueriesT | View::ValuesT => (Some([1, 0, 2]), Vec::new()),
            View::KeysT => (Some([1, 2, 0]), Vec::new()),
            View::AttnMerged => (None, vec![self.shape()[0], sizes.heads * sizes.head_dim]),
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
    fn a_transposed_view_has_the_same_numbers_elsewhere() {
        let values: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let data = FrameData::F32(ArrayD::from_shape_vec(IxDyn(&[3, 2, 2]), values).unwrap());
        let keys = Frame { site: Site::layer(0, 0, Stage::Keys), axes: Stage::Keys.axes(), data };
        let sizes = Sizes {
            layers: 1,
            dim: 4,
            heads: 2,
            kv_heads: 1,
            head_dim: 2,
            hidden: 4,
            vocab: 4,
            qk_norm: false,
            window: None,
            window_from: 0,
            group: None,
        };
        let keys_t = keys.view(View::KeysT, &sizes);
        assert_eq!(keys_t.shape(), [2, 2, 3]);
        assert_eq!(keys_t.get(&[1, 0, 2]), keys.get(&[2, 1, 0]));
    }
}
