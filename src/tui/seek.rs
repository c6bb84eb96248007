//! A search in a tensor, as far as it has come.

use llama_trace_core::trace::{Region, Site};

use super::filter::Filter;

/// A search that is under way.
#[derive(Clone, Debug)]
pub(super) struct Seek {
    pub(super) site: Site,
    /// What is still to be seen, in the axes of the stage, the next one last.
    pub(super) rest: Vec<Region>,
    pub(super) goal: Goal,
}

/// What is looked for.
#[derive(Clone, Debug)]
pub(super) enum Goal {
    /// The largest value so far, and where it is.
    Largest(Option<(f64, Vec<usize>)>),
    /// Values that a filter takes.
    Like(Like),
}

/// Values that a filter takes, as far as they were seen. Places are counted in the order of the stage.
#[derive(Clone, Debug)]
pub(super) struct Like {
    pub(super) filter: Filter,
    /// Where the cursor is.
    pub(super) from: usize,
    /// To the next one, to the one before, or nowhere.
    pub(super) by: isize,
    pub(super) count: usize,
    /// Those before the cursor, and those up to it.
    pub(super) before: usize,
    pub(super) up_to: usize,
    /// The first and the last of all; the last before the cursor and the first after it.
    pub(super) first: Option<usize>,
    pub(super) last: Option<usize>,
    pub(super) previous: Option<usize>,
    pub(super) next: Option<usize>,
}

impl Like {
    pub(super) fn new(filter: Filter, from: usize, by: isize) -> Self {
        let none = (None, None, None, None);
        let (first, last, previous, next) = none;
        Self { filter, from, by, count: 0, before: 0, up_to: 0, first, last, previous, next }
    }

    /// Takes in one more.
    pub(super) fn add(&mut self, at: usize) {
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

    /// Where to go, and the number of that among all; past the last comes the first.
    pub(super) fn chosen(&self) -> Option<(usize, usize)> {
        match self.by {
            0 => None,
            1.. => self.next.map(|at| (at, self.up_to + 1)).or(self.first.map(|at| (at, 1))),
            _ => self.previous.map(|at| (at, self.before)).or(self.last.map(|at| (at, self.count))),
        }
    }
}
