//! How long each operation of a pass took: a probe around another one.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::probe::{Probe, Values};
use super::site::Site;
use super::stage::Runs;

/// Times a pass, and lets `inner` record it.
///
/// The pass asks for each stage right after its operation, so the time from the last answer to this
/// question is the operation's. A stage without an operation of its own is part of the one that is asked for
/// after it. The time that `inner` takes to copy is left out.
pub struct Clock<P> {
    inner: P,
    since: Cell<Instant>,
    times: RefCell<HashMap<Site, Duration>>,
}

impl<P: Probe> Clock<P> {
    /// A clock that starts now.
    pub fn new(inner: P) -> Self {
        Self { inner, since: Cell::new(Instant::now()), times: RefCell::default() }
    }

    /// Stops the clock: the time of each stage that the pass asked for.
    pub fn into_times(self) -> HashMap<Site, Duration> {
        self.times.into_inner()
    }
}

impl<P: Probe> Probe for Clock<P> {
    const ENABLED: bool = true;

    fn wants(&self, site: Site) -> bool {
        if site.stage.info().runs == Runs::Derived {
            return self.inner.wants(site);
        }
        *self.times.borrow_mut().entry(site).or_default() += self.since.get().elapsed();
        let wants = self.inner.wants(site);
        self.since.set(Instant::now());
        wants
    }

    fn record(&mut self, site: Site, rows: Range<usize>, values: Values<'_>) {
        let started = Instant::now();
        self.inner.record(site, rows, values);
        self.since.set(self.since.get() + started.elapsed());
    }
}
