//! State of a search in a tensor: the filter, and the running scan.

use llama_trace_core::trace::block::index_of;
use llama_trace_core::trace::{Block, Query, Region, Site, Step};

use super::filter::Filter;

/// The filter and the scan of the shown tensor.
#[derive(Debug, Default)]
pub(super) struct Search {
    filter: Option<Filter>,
    scan: Option<Scan>,
}

impl Search {
    /// The filter, if it was set on `step`.
    pub(super) fn filter(&self, step: Step) -> Option<Filter> {
        self.filter.filter(|filter| filter.step == step)
    }

    /// Sets the filter, or removes it.
    pub(super) fn set_filter(&mut self, filter: Option<Filter>) {
        self.filter = filter;
    }

    /// Starts a scan of `regions` of `site`, in the axes of the stage. The last region is scanned first.
    pub(super) fn start(&mut self, site: Site, regions: Vec<Region>, goal: Goal) {
        self.scan = Some(Scan { site, rest: regions, goal });
    }

    /// Cancels the scan.
    pub(super) fn cancel(&mut self) {
        self.scan = None;
    }

    /// Returns whether a scan is under way.
    pub(super) fn is_scanning(&self) -> bool {
        self.scan.is_some()
    }

    /// Takes the scan out. [`Search::put_back`] puts it back, so that it continues.
    pub(super) fn take(&mut self) -> Option<Scan> {
        self.scan.take()
    }

    /// Puts back a scan whose next region has not come yet.
    pub(super) fn put_back(&mut self, scan: Scan) {
        self.scan = Some(scan);
    }

    /// The question whose answer the scan needs next.
    pub(super) fn question(&self) -> Option<Query> {
        let scan = self.scan.as_ref()?;
        Some(Query::Block(scan.site, scan.next()?.clone()))
    }
}

/// A scan of a stage. It goes region by region, so that a large tensor is never needed as a whole.
#[derive(Debug)]
pub(super) struct Scan {
    pub(super) site: Site,
    /// Regions that are not scanned yet; the next one is the last of the list.
    rest: Vec<Region>,
    pub(super) goal: Goal,
}

/// Goal of a scan.
#[derive(Debug)]
pub(super) enum Goal {
    /// The largest value so far and its index.
    Largest(Option<(f64, Vec<usize>)>),
    /// Values that a filter accepts.
    Matches(Matches),
}

impl Scan {
    /// The next region.
    pub(super) fn next(&self) -> Option<&Region> {
        self.rest.last()
    }

    /// Scans the next region, whose values are in `block`.
    pub(super) fn read(&mut self, block: &Block) {
        let Some(region) = self.rest.pop() else { return };
        let (shape, width) = (&block.shape, region.0.last().map_or(1, ExactSizeIterator::len));
        let at = |index: &[usize]| index.iter().zip(shape).fold(0, |at, (index, length)| at * length + index);
        for index in rows(&region) {
            let first = at(&index);
            let Some(run) = block.run(first) else { continue };
            let values = block.frame.values().slice(run.start..run.start + width);
            match &mut self.goal {
                Goal::Largest(best) => {
                    let Some((offset, value)) = largest(values.numbers()) else { continue };
                    if best.as_ref().is_none_or(|(other, _)| value > *other) {
                        let mut index = index;
                        index.last_mut().into_iter().for_each(|last| *last += offset);
                        *best = Some((value, index));
                    }
                }
                Goal::Matches(matches) => {
                    for (offset, value) in values.numbers().enumerate() {
                        if matches.filter.takes(value) {
                            matches.add(first + offset);
                        }
                    }
                }
            }
        }
    }
}

/// Values that a filter accepts, among those scanned so far. A position is an index in the stage's row-major order.
#[derive(Debug)]
pub(super) struct Matches {
    pub(super) filter: Filter,
    /// Position of the cursor.
    from: usize,
    /// 1 for the next match, -1 for the previous one, 0 to count only.
    by: isize,
    pub(super) count: usize,
    /// Number of matches before the cursor, and number up to and including it.
    before: usize,
    up_to: usize,
    /// Positions of the first and the last match, of the last match before the cursor, and of the first match after it.
    first: Option<usize>,
    last: Option<usize>,
    previous: Option<usize>,
    next: Option<usize>,
}

impl Matches {
    pub(super) fn new(filter: Filter, from: usize, by: isize) -> Self {
        let none = (None, None, None, None);
        let (first, last, previous, next) = none;
        Self { filter, from, by, count: 0, before: 0, up_to: 0, first, last, previous, next }
    }

    /// Counts the match at position `at`.
    fn add(&mut self, at: usize) {
        let smaller = |now: &mut Option<usize>| *now = Some(now.map_or(at, |now| now.min(at)));
        let larger = |now: &mut Option<usize>| *now = Some(now.map_or(at, |now| now.max(at)));
        self.count += 1;
        smaller(&mut self.first);
        larger(&mut self.last);
        if at < self.from {
            self.before += 1;
            larger(&mut self.previous);
        }
        self.up_to += usize::from(at <= self.from);
        if at > self.from {
            smaller(&mut self.next);
        }
    }

    /// Position of the match to go to, and its number among all matches. After the last match comes the first one
    /// again.
    pub(super) fn chosen(&self) -> Option<(usize, usize)> {
        match self.by {
            0 => None,
            1.. => self.next.map(|at| (at, self.up_to + 1)).or(self.first.map(|at| (at, 1))),
            _ => self.previous.map(|at| (at, self.before)).or(self.last.map(|at| (at, self.count))),
        }
    }
}

/// Index of the first value of each row of `region`, in the axes of the stage.
fn rows(region: &Region) -> impl Iterator<Item = Vec<usize>> + '_ {
    let mut lengths = region.shape();
    lengths.last_mut().into_iter().for_each(|last| *last = (*last).min(1));
    let count = lengths.iter().product();
    (0..count).map(move |row| {
        let inside = index_of(&lengths, row);
        inside.iter().zip(&region.0).map(|(index, range)| range.start + index).collect()
    })
}

/// The largest of `values` with its offset before it; the first one if several are equal. NaN is skipped.
fn largest(values: impl Iterator<Item = f64>) -> Option<(usize, f64)> {
    let mut best: Option<(usize, f64)> = None;
    for (at, value) in values.enumerate() {
        if !value.is_nan() && best.is_none_or(|(_, other)| value > other) {
            best = Some((at, value));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_equals_is_the_largest_and_nan_is_none() {
        let largest = |values: &[f32]| largest(values.iter().map(|&value| f64::from(value)));
        assert_eq!(largest(&[f32::NAN, -1.0, 2.0, 2.0]), Some((2, 2.0)));
        assert_eq!(largest(&[f32::NAN]), None);
        assert_eq!(largest(&[f32::NEG_INFINITY]), Some((0, f64::NEG_INFINITY)));
    }
}
