//! What must be known about all values of a frame before a few of them can be drawn: statistics, and for a
//! vocabulary the order by size. Worked out once, on a thread of its own where there are many values.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use ndarray::Axis as Dimension;

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
    Stats(Stats),
    Order(Arc<[u32]>),
}

/// What is known so far.
#[derive(Debug)]
pub struct Summaries {
    stats: HashMap<Part, Stats>,
    order: Option<(Part, Arc<[u32]>)>,
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
        self.stats.get(&part).copied()
    }

    /// The indices of `part`'s values, the largest first, once they are known.
    pub fn order(&self, part: Part) -> Option<&Arc<[u32]>> {
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
            Some(stats) => drop(self.stats.insert(part, stats)),
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
        What::Stats => Answer::Stats(match (held, &frame.data) {
            (Some((axis, index)), FrameData::F32(array))
                if array.shape().get(axis).is_some_and(|&length| index < length) =>
            {
                Stats::of(array.index_axis(Dimension(axis), index).iter().map(|&value| f64::from(value)))
            }
            _ => frame.stats(),
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
            Answer::Order(order.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{ArrayD, IxDyn};

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
        assert_eq!(summaries.order(part).unwrap()[..], [1, 3, 0, 5, 4, 2]);
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
