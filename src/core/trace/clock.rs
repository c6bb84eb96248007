//! The time of each operation of a pass: a probe that wraps another.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use super::probe::{Probe, Values};
use super::site::Site;
use super::stage::Runs;
use crate::time::Instant;

/// Times a pass that `inner` records.
///
/// The pass asks for each stage ([`Probe::wants`]) right after its operation. The time from the previous answer to this
/// question is therefore the time of the operation. The time of a stage without its own operation counts towards the
/// next stage that is asked for. The time in which `inner` copies values is subtracted.
///
/// A moment is a value of the backend (`M`, from `now`), because a device may lag behind the questions. The time
/// between moments is computed after the pass.
pub struct Clock<P, M, N> {
    inner: P,
    now: N,
    state: RefCell<State<M>>,
}

struct State<M> {
    /// The time of the last answer.
    since: M,
    /// The copying time of `inner` since then.
    copied: Duration,
    laps: Vec<Lap<M>>,
}

/// One operation: from an answer to the next question.
struct Lap<M> {
    site: Site,
    from: M,
    to: M,
    copied: Duration,
}

impl<P: Probe, M, N: Fn() -> M> Clock<P, M, N> {
    /// A clock, started now.
    pub fn new(inner: P, now: N) -> Self {
        let state = State { since: now(), copied: Duration::ZERO, laps: Vec::new() };
        Self { inner, now, state: RefCell::new(state) }
    }

    /// Stops the clock. Returns the time of each stage that the pass asked for. `between` gives the time between two
    /// moments.
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
