//! What must be known about all values of a frame before a few of them can be drawn: statistics, what a
//! colour scale should span, and for a vocabulary the order by size. Worked out once, on a thread of its own
//! where there are many values.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use ndarray::{ArrayD, Axis as Dimension};

use crate::trace::frame::{Frame, FrameData, Stats};
use crate::trace::{Block, Site, Stage};

/// A frame with more values than this is summed up on another thread.
const AT_ONCE: usize = 1 << 18;

/// Threads that sum up at the same time; each holds on to its frame.
const THREADS: usize = 2;

/// Some values of a frame: all, or those at one index of one of the frame's own axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// The frame.
    pub site: Site,
    /// Axis and index.
    pub held: Option<(usize, usize)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum What {
    Stats,
    Order,
}

type Key = (Part, What);

#[derive(Debug)]
enum Answer {
    Stats(Spread),
    Order(Order),
}

/// The statistics of some values, and how far they spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Minimum, maximum, mean, standard deviation, and what is not finite.
    pub stats: Stats,
    /// What the size of nearly all values is at most: of all but one in a hundred (and but one at least) of
    /// those that are not 0, where the largest is more than twice that; else the largest.
    pub usual: f64,
    /// How many are larger than that.
    pub beyond_usual: usize,
    /// How many are more than three standard deviations from 0, where that was counted.
    pub beyond_deviations: Option<usize>,
}

/// A vocabulary's ids by the size of their values, the largest first.
#[derive(Clone, Debug)]
pub struct Order {
    /// The ids.
    pub ids: Arc<[u32]>,
    /// How many have a value above 0; they come first.
    pub positive: usize,
    /// The sum of those values.
    pub sum: f64,
}

impl Spread {
    /// The spread of `values`, which are walked several times.
    pub fn of(values: impl Iterator<Item = f32> + Clone) -> Self {
        let wide = values.clone().map(f64::from);
        let stats = Stats::of(wide.clone());
        let largest = stats.min.abs().max(stats.max.abs());
        let usual = usual(values).filter(|usual| largest > 2.0 * usual).unwrap_or(largest);
        let beyond = |size: f64| wide.clone().filter(|value| value.is_finite() && value.abs() > size).count();
        Self { stats, usual, beyond_usual: beyond(usual), beyond_deviations: Some(beyond(3.0 * stats.std)) }
    }

    /// What is known where the values were not all seen here: they reach to the largest.
    fn told(stats: Stats) -> Self {
        let usual = stats.min.abs().max(stats.max.abs());
        let beyond_deviations = (usual <= 3.0 * stats.std).then_some(0);
        Self { stats, usual, beyond_usual: 0, beyond_deviations }
    }
}

/// The size that all but one in a hundred of the values that are finite and not 0 stay within, to 1 in 128.
/// None where there are too few to tell.
fn usual(values: impl Iterator<Item = f32>) -> Option<f64> {
    const FEWEST: usize = 16;
    // The leading bits of a size, exponent and seven binary digits, are in the order of sizes; counting by
    // them needs no copy of the values.
    const SHIFT: u32 = 16;
    let mut counts = vec![0_usize; 1 << (31 - SHIFT)];
    let mut count = 0;
    for value in values.filter(|value| value.is_finite() && *value != 0.0) {
        counts[(value.abs().to_bits() >> SHIFT) as usize] += 1;
        count += 1;
    }
    let mut rest = (count / 100).max(1);
    if count < FEWEST {
        return None;
    }
    for (bin, &here) in counts.iter().enumerate().rev() {
        if here > rest {
            // The first size that is too large for the bin.
            return u32::try_from(bin + 1).ok().map(|bin| f64::from(f32::from_bits(bin << SHIFT)));
        }
        rest -= here;
    }
    None
}

/// What is known so far.
#[derive(Debug)]
pub struct Summaries {
    stats: HashMap<Part, Spread>,
    order: Option<(Part, Order)>,
    asked: Vec<Key>,
    /// What could not be worked out; not asked again by itself.
    refused: HashSet<Part>,
    sender: Sender<(Key, Answer)>,
    receiver: Receiver<(Key, Answer)>,
}

impl Default for Summaries {
    fn default() -> Self {
        let (sender, receiver) = channel();
        Self {
            stats: HashMap::new(),
            order: None,
            asked: Vec::new(),
            refused: HashSet::new(),
            sender,
            receiver,
        }
    }
}

impl Summaries {
    /// The statistics of `part`, once they are known.
    pub fn stats(&self, part: Part) -> Option<Stats> {
        self.spread(part).map(|spread| spread.stats)
    }

    /// How far the values of `part` spread, once that is known.
    pub fn spread(&self, part: Part) -> Option<Spread> {
        self.stats.get(&part).copied()
    }

    /// The indices of `part`'s values, the largest first, once they are known.
    pub fn order(&self, part: Part) -> Option<&Order> {
        self.order.as_ref().filter(|(known, _)| *known == part).map(|(_, order)| order)
    }

    /// Whether something is still being worked out.
    pub fn busy(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Has the statistics of `part` worked out, unless they are known.
    pub fn want_stats(&mut self, frame: &Arc<Frame>, part: Part) {
        if !self.stats.contains_key(&part) {
            self.ask(frame, (part, What::Stats));
        }
    }

    /// Has the order of `part` worked out, unless it is known. The block must have all of it.
    pub fn want_order(&mut self, block: &Block, part: Part) {
        if self.order(part).is_none() {
            self.ask_inside(block, (part, What::Order));
        }
    }

    /// Whether the statistics of `part` are to be asked of the source, which has more than one frame of it.
    pub fn lacks_stats(&self, part: Part) -> bool {
        !self.stats.contains_key(&part) && !self.refused.contains(&part)
    }

    /// Takes in the statistics of `part`, or that there are none.
    pub fn put_stats(&mut self, part: Part, stats: Option<Stats>) {
        match stats {
            Some(stats) => drop(self.stats.insert(part, Spread::told(stats))),
            None => drop(self.refused.insert(part)),
        }
    }

    /// What could not be worked out may be asked again.
    pub fn try_again(&mut self) {
        self.refused.clear();
    }

    /// Takes in what has been worked out; true where there was something.
    pub fn poll(&mut self) -> bool {
        let mut news = false;
        while let Ok((key, answer)) = self.receiver.try_recv() {
            self.take(key, answer);
            news = true;
        }
        news
    }

    fn ask(&mut self, frame: &Arc<Frame>, key: Key) {
        self.ask_inside(&Block::whole(frame.clone()), key);
    }

    fn ask_inside(&mut self, block: &Block, key: Key) {
        let frame = &block.frame;
        let held = key.0.held.map(|(axis, index)| (axis, index - block.region.0[axis].start));
        let count: usize = frame.shape().iter().product();
        if count <= AT_ONCE {
            let answer = work(frame, held, key.1);
            return self.take(key, answer);
        }
        if self.asked.contains(&key) || self.asked.len() >= THREADS {
            return;
        }
        self.asked.push(key);
        let (frame, sender) = (frame.clone(), self.sender.clone());
        // The result of a thread that outlives the application has nowhere to go, and that is fine.
        std::thread::spawn(move || drop(sender.send((key, work(&frame, held, key.1)))));
    }

    fn take(&mut self, key: Key, answer: Answer) {
        self.asked.retain(|asked| *asked != key);
        match answer {
            Answer::Stats(stats) => drop(self.stats.insert(key.0, stats)),
            Answer::Order(order) => self.order = Some((key.0, order)),
        }
    }
}

/// Whether the frames of `stage` have a vocabulary as their last axis.
pub fn over_vocabulary(stage: Stage) -> bool {
    stage.axes().last() == Some(&crate::trace::Axis::Vocab)
}

/// `held` is an axis of the frame and an index on it.
fn work(frame: &Frame, held: Option<(usize, usize)>, what: What) -> Answer {
    match what {
        What::Stats => Answer::Stats(match &frame.data {
            FrameData::F32(array) => spread(array, held, |value| value),
            // Ids and int8 values are exact in float32 as far as colours and statistics go.
            FrameData::I64(array) => spread(array, held, |value| value as f32),
            FrameData::I8(array) => spread(array, held, f32::from),
        }),
        What::Order => {
            let values: Vec<f32> = match (held, frame.floats()) {
                (Some((axis, index)), Some(array))
                    if array.shape().get(axis).is_some_and(|&length| index < length) =>
                {
                    array.index_axis(Dimension(axis), index).iter().copied().collect()
                }
                (_, Some(array)) => array.iter().copied().collect(),
                (_, None) => Vec::new(),
            };
            let mut order: Vec<u32> = (0..u32::try_from(values.len()).unwrap_or(u32::MAX)).collect();
            // What is not a number goes last; equal values stay in the order of their ids.
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
            Answer::Order(Order { ids: order.into(), positive, sum })
        }
    }
}

/// The spread of the values of `array`, or of those at the index that is held.
fn spread<T: Copy>(
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

#[cfg(test)]
mod tests {
    use ndarray::IxDyn;

    use super::*;

    fn logits(rows: usize, columns: usize, value: impl Fn(usize) -> f32) -> Arc<Frame> {
        let values = (0..rows * columns).map(value).collect();
        let data = FrameData::F32(ArrayD::from_shape_vec(IxDyn(&[rows, columns]), values).unwrap());
        Arc::new(Frame { site: Site::once(0, Stage::Logits), axes: Stage::Logits.axes(), data })
    }

    #[test]
    fn the_largest_come_first_and_what_is_no_number_last() {
        let values = [1.0, 3.0, f32::NAN, 3.0, f32::NEG_INFINITY, -0.0];
        let frame = logits(1, 6, |i| values[i]);
        let part = Part { site: frame.site, held: Some((0, 0)) };
        let mut summaries = Summaries::default();
        summaries.want_order(&Block::whole(frame), part);
        let order = summaries.order(part).unwrap();
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
        assert_eq!((spread.beyond_usual, spread.beyond_deviations, spread.stats.neg_inf), (1, Some(1), 1));
        let few = Spread::of([1.0, 9.0].into_iter());
        assert_eq!((few.usual, few.beyond_usual), (9.0, 0));
    }

    #[test]
    fn many_values_are_summed_up_meanwhile() {
        let frame = logits(2, AT_ONCE, |i| (i % 7) as f32);
        let part = Part { site: frame.site, held: None };
        let mut summaries = Summaries::default();
        summaries.want_stats(&frame, part);
        assert!(summaries.busy());
        while summaries.busy() {
            summaries.poll();
            std::thread::yield_now();
        }
        assert_eq!(summaries.stats(part), Some(frame.stats()));
    }
}
