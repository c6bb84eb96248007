//! Cancels work at each of its checks, for tests of everything that can be cancelled.

use std::sync::atomic::AtomicUsize;

use super::*;

/// Counts the checks of a request.
#[derive(Debug, Default)]
pub struct Looks {
    count: AtomicUsize,
    /// The number of the check that sets the request; 0 for none.
    last: AtomicUsize,
}

impl Looks {
    pub(super) fn look(&self, stop: &Stop) {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        if count == self.last.load(Ordering::Relaxed) {
            stop.ask();
        }
    }
}

impl Stop {
    /// A request that sets itself at its check number `last`, counted from 1.
    pub fn at_look(last: usize) -> Self {
        let stop = Self::default();
        stop.looks.last.store(last, Ordering::Relaxed);
        stop
    }

    /// The number of checks so far.
    pub fn looks(&self) -> usize {
        self.looks.count.load(Ordering::Relaxed)
    }
}

/// Runs `work` once to its end. Then runs it again for some of its checks, with the request set at that check. Each of
/// these runs must fail after at most `after` further checks: one for each running thread and loop. Returns the number
/// of checks of the complete run.
pub fn stops_at_every_look(what: &str, after: usize, mut work: impl FnMut(&Stop) -> Result<()>) -> usize {
    let whole = Stop::default();
    work(&whole).unwrap_or_else(|error| panic!("{what}: {error}"));
    let looks = whole.looks();
    assert!(looks > 0, "{what} never looks");
    for last in (1..=looks).step_by((looks / 20).max(1)) {
        let stop = Stop::at_look(last);
        let result = work(&stop);
        assert!(matches!(result, Err(Error::Interrupted(_))), "{what} goes on after look {last} of {looks}");
        let more = stop.looks() - last;
        assert!(more <= after, "{what} looks {more} times after it was asked to stop at {last} of {looks}");
    }
    looks
}
