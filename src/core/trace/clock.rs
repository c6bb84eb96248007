//! How long each operation of a pass took: a probe around another one.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use super::probe::{Probe, Values};
use super::site::Site;
use super::stage::Runs;
use crate::time::Instant;

/// Times a pass, and lets `inner` record it.
///
/// The pass asks for each stage right after its operation, so the time from the last answer to this
/// question is the operation's. A stage without an operation of its own is part of the one that is asked for
/// after it. The time that `inner` takes to copy is left out.
///
/// Moments are the backend's (`M`, which `now` gives), for its work may lag behind the questions; how far they are
/// apart is asked when the pass is over.
pub struct Clock<P, M, N> {
    inner: P,
    now: N,
    state: RefCell<State<M>>,
}

struct State<M> {
    /// When the last answer was given.
    since: M,
    /// What `inner` has copied since.
    copied: Duration,
    laps: Vec<Lap<M>>,
}

/// An operation: from one answer to the next question.
struct Lap<M> {
    site: Site,
    from: M,
    to: M,
    copied: Duration,
}

impl<P: Probe, M, N: Fn() -> M> Clock<P, M, N> {
    /// A clock that starts now.
    pub fn new(inner: P, now: N) -> Self {
        let state = State { since: now(), copied: Duration::ZERO, laps: Vec::new() };
        Self { inner, now, state: RefCell::new(state) }
    }

    /// Stops the clock: the time of each stage that the pass asked for. `between` says how long it is from one moment
    /// to another.
    pub fn into_times(self, between: impl Fn(&M, &M) -> Duration) -> HashMap<Site, Duration> {
        let mut times = HashMap::new();
        for Lap { site, from, to, copied } in self.state.into_inner().laps {
            *times.entry(site).or_default() += between(&from, &to).saturating_sub(copied);
        }
        times
    }
}

impl<P: Probe, M, N: Fn() -> M> Probe for Clock<P, M, N> {
    fn enabled(&self) -> bool {
        true
    }

    fn wants(&self, site: Site) -> bool {
        if site.stage.info().runs == Runs::Derived {
            return self.inner.wants(site);
        }
        let to = (self.now)();
        let wants = self.inner.wants(site);
        let mut state = self.state.borrow_mut();
        let copied = std::mem::take(&mut state.copied);
        let from = std::mem::replace(&mut state.since, (self.now)());
        state.laps.push(Lap { site, from, to, copied });
        wants
    }

    fn record(&mut self, site: Site, rows: Range<usize>, values: Values<'_>) {
        let started = Instant::now();
        self.inner.record(site, rows, values);
        self.state.get_mut().copied += started.elapsed();
    }
}
