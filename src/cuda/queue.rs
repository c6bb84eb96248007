//! The work that a device is asked for, in its order.
//!
//! Launches wait until something is asked for that is none: a copy, memory given back, a moment, the end of a pass. Then
//! all of them go to the device together. Where the same launches, to the last argument, went there before, the device
//! has taken them down as a graph, and is told to repeat it. So a decode pass costs one call of the driver, and nobody
//! has to know beforehand that it is the same as the one before: what differs from pass to pass (ids, positions, random
//! numbers) lies in the device's memory. Launches of one kernel for several sequences that follow one another go as one. A graph can never be out of date either: one whose buffers are gone has
//! other launches than any that come.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::driver::{Driver, Event, Graph, Launch};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::stop::Stop;

/// What became of a launch that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It was changed.
    Did,
    /// It was not, but one before it may be: this one neither reads nor writes what that would change.
    AskBefore,
    /// None is changed.
    Cannot,
}

/// Launches from which taking them down pays.
const MIN_GRAPH: usize = 8;

/// Graphs that are kept. The buffers of a model with an odd number of layers change places in every pass, and so do texts in a
/// batch: each way is a graph of its own.
const GRAPHS: usize = 8;

/// Launches after which they go to the device in any case.
const MOST_WAITING: usize = 1 << 12;

/// Launches that were seen, and the graph that they became where they were seen again.
struct Seen {
    launches: Vec<Launch>,
    graph: Option<Graph>,
    /// Whether the device cannot take them down, as drivers may that are older than what a launch asks for.
    refused: bool,
}

#[derive(Default)]
struct State {
    waiting: Vec<Launch>,
    /// The last used comes last.
    seen: Vec<Seen>,
    /// How often a graph was repeated.
    repeated: usize,
    /// That launches went wrong, where nobody could be told.
    failed: Option<Error>,
}

/// The device and the work that waits for it.
pub(super) struct Queue {
    driver: Box<dyn Driver>,
    state: Mutex<State>,
}

impl Queue {
    pub(super) fn new(driver: Box<dyn Driver>) -> Self {
        Self { driver, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device, for what has no place in its order: memory that is new, kernels that are loaded.
    pub(super) fn device(&self) -> &dyn Driver {
        &*self.driver
    }

    /// Asks the device for what follows all that was asked for before. Nobody else asks meanwhile: what a pass is taken
    /// down from must be its launches alone.
    pub(super) fn ask<T>(&self, ask: impl FnOnce(&dyn Driver) -> Result<T>) -> Result<T> {
        let mut state = self.state();
        self.send(&mut state)?;
        ask(&*self.driver)
    }

    /// The same for what cannot fail by itself: that what waited went wrong is told whoever asks next.
    pub(super) fn ask_anyway<T>(&self, ask: impl FnOnce(&dyn Driver) -> T) -> T {
        let mut state = self.state();
        if let Err(error) = self.send(&mut state) {
            state.failed = Some(error);
        }
        ask(&*self.driver)
    }

    /// Has a launch wait.
    pub(super) fn launch(&self, launch: Launch) -> Result<()> {
        let mut state = self.state();
        state.waiting.push(launch);
        if state.waiting.len() < MOST_WAITING { Ok(()) } else { self.send(&mut state) }
    }

    /// Has a launch wait, in one with that before it where they are alike: see [`Launch::join`].
    pub(super) fn launch_together(&self, launch: Launch, words: usize) -> Result<()> {
        if self.state().waiting.last_mut().is_some_and(|last| last.join(&launch, words)) {
            return Ok(());
        }
        self.launch(launch)
    }

    /// Takes the launch back that was asked for last, where it still waits and `of` makes something of it.
    pub(super) fn take_back<T>(&self, of: impl FnOnce(&Launch) -> Option<T>) -> Option<T> {
        let mut state = self.state();
        let made = state.waiting.last().and_then(of);
        if made.is_some() {
            state.waiting.pop();
        }
        made
    }

    /// Changes one of the launches that wait, the last first, as far as `change` goes back; whether it did.
    pub(super) fn change_recent(&self, mut change: impl FnMut(&mut Launch) -> Change) -> bool {
        let mut state = self.state();
        let mut changes = state.waiting.iter_mut().rev().map(&mut change);
        changes.find(|change| *change != Change::AskBefore) == Some(Change::Did)
    }

    /// Changes the launch that was asked for last, where it still waits; whether `change` did.
    pub(super) fn change(&self, change: impl FnOnce(&mut Launch) -> bool) -> bool {
        self.state().waiting.last_mut().is_some_and(change)
    }

    /// Sends all that waits to the device.
    fn send(&self, state: &mut State) -> Result<()> {
        let State { waiting, seen, repeated, failed } = state;
        if let Some(error) = failed.take() {
            waiting.clear();
            return Err(error);
        }
        if waiting.is_empty() {
            return Ok(());
        }
        // What is recorded differs from pass to pass; what comes before and after it does not.
        let result = waiting.chunk_by(|a, b| a.apart == b.apart).try_for_each(|launches| {
            if launches[0].apart || launches.len() < MIN_GRAPH {
                return self.driver.launch(launches);
            }
            let Some(at) = seen.iter().position(|seen| seen.launches == *launches) else {
                if seen.len() == GRAPHS {
                    let oldest = seen.remove(0);
                    oldest.graph.into_iter().for_each(|graph| self.driver.forget(graph));
                }
                seen.push(Seen { launches: launches.to_vec(), graph: None, refused: false });
                return self.driver.launch(launches);
            };
            let mut known = seen.remove(at);
            if known.graph.is_none() && !known.refused {
                known.graph = self.driver.take_down(&known.launches).ok();
                known.refused = known.graph.is_none();
            }
            let done = match known.graph {
                Some(graph) => {
                    *repeated += 1;
                    self.driver.repeat(graph)
                }
                None => self.driver.launch(launches),
            };
            seen.push(known);
            done
        });
        waiting.clear();
        result
    }

    /// Waits until everything is done, or until somebody asks to stop: what the device was told then goes on by itself.
    pub(super) fn wait(&self, stop: &Stop) -> Result<()> {
        let end = self.ask(|device| device.mark())?;
        let reached = self.reach(end, stop);
        self.driver.release(end);
        reached
    }

    /// Waits for a moment, or in vain as [`Queue::wait`].
    pub(super) fn reach(&self, moment: Event, stop: &Stop) -> Result<()> {
        while !self.driver.reached(moment)? {
            stop.check()?;
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// How often launches were repeated from a graph.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn repeated(&self) -> usize {
        self.state().repeated
    }
}
