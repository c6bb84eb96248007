//! The device's work, in the order of the calls.
//!
//! Launches wait in the queue until another kind of request: a copy, freed memory, an event, the end of a pass. Then
//! all of them go to the device together. If the same launches with the same arguments were sent before, the device
//! captures them as a graph and launches the graph. A decode pass then costs one driver call, and the caller need not
//! know that it equals the previous pass. Ids, positions and random numbers differ from pass to pass, so they are not
//! arguments: they are in the device's memory. Consecutive launches of one kernel for several sequences are joined into
//! one. A graph is never out of date: it is launched only for launches with the same addresses and arguments.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::fusable::{Fusable, Rotation, Turns};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::stop::Stop;
use llama_trace_kernels::driver::{Address, Arguments, Driver, Event, Extra, Graph, Launch};

/// The result of a change to a launch in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The launch was changed.
    Did,
    /// The launch was not changed, but an earlier launch may be. This launch neither reads nor writes the memory that
    /// the change would affect.
    AskBefore,
    /// No launch is changed.
    Cannot,
}

/// Minimum number of launches that are worth a graph.
const MIN_GRAPH: usize = 8;

/// Maximum number of graphs that are kept. In a model with an odd number of layers, two buffers have changed places
/// after every pass. The texts of a batch may change places too. Each arrangement has its own graph.
const GRAPHS: usize = 8;

/// Maximum number of launches in the queue.
const MOST_WAITING: usize = 1 << 12;

/// Launches that were sent, and their graph if they were sent again.
struct Seen {
    launches: Vec<Launch>,
    graph: Option<Graph>,
    /// Whether the device cannot capture the launches: the driver may be too old for a feature of a launch.
    refused: bool,
}

#[derive(Default)]
struct State {
    waiting: Vec<Launch>,
    /// For each launch of `waiting`.
    fusable: Vec<Fusable>,
    /// Launches that were sent before, the most recently sent last.
    seen: Vec<Seen>,
    /// How often a graph was launched.
    repeated: usize,
    /// A deferred error: the call that sent the launches could not return it.
    failed: Option<Error>,
}

/// The device and its waiting work.
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

    /// The device, for requests whose order does not matter: new memory, loading of kernels.
    pub(super) fn device(&self) -> &dyn Driver {
        &*self.driver
    }

    /// Calls the device after all earlier work was sent. The lock excludes other callers, because the capture of a pass
    /// must contain only the launches of this pass.
    pub(super) fn ask<T>(&self, ask: impl FnOnce(&dyn Driver) -> Result<T>) -> Result<T> {
        let mut state = self.state();
        self.send(&mut state)?;
        ask(&*self.driver)
    }

    /// [`Queue::ask`] for calls that return no error. A deferred error is returned by the next call.
    pub(super) fn ask_anyway<T>(&self, ask: impl FnOnce(&dyn Driver) -> T) -> T {
        let mut state = self.state();
        if let Err(error) = self.send(&mut state) {
            state.failed = Some(error);
        }
        ask(&*self.driver)
    }

    /// Adds a launch to the queue.
    pub(super) fn launch(&self, launch: Launch, fusable: Fusable) -> Result<()> {
        let mut state = self.state();
        state.waiting.push(launch);
        state.fusable.push(fusable);
        if state.waiting.len() < MOST_WAITING { Ok(()) } else { self.send(&mut state) }
    }

    /// Adds a launch. If it is like the last launch, joins the two: see [`Launch::join`].
    pub(super) fn launch_together(&self, launch: Launch, words: usize) -> Result<()> {
        if self.state().waiting.last_mut().is_some_and(|last| last.join(&launch, words)) {
            return Ok(());
        }
        self.launch(launch, Fusable::No)
    }

    /// Withdraws the last launch, if it is still in the queue and unchanged, and `of` returns a value for it. The
    /// caller then queues a launch that does the same and more.
    pub(super) fn withdraw<T>(&self, of: impl FnOnce(Fusable) -> Option<T>) -> Option<T> {
        let mut state = self.state();
        let withdrawn = of(*state.fusable.last()?)?;
        state.waiting.pop();
        state.fusable.pop();
        Some(withdrawn)
    }

    /// Changes the arguments of the last launch, if it is still in the queue. Returns whether `change` has changed them.
    /// The launch is not withdrawn after that.
    pub(super) fn change(&self, change: impl FnOnce(&mut Arguments) -> bool) -> bool {
        let mut state = self.state();
        let changed = state.waiting.last_mut().is_some_and(|last| change(&mut last.arguments));
        if changed && let Some(last) = state.fusable.last_mut() {
            *last = Fusable::No;
        }
        changed
    }

    /// Makes the last launch also do `extra` for its result, with the addresses `to`. Possible if it is still in the
    /// queue and offers this. Returns whether it was changed.
    pub(super) fn request(&self, extra: Extra, result: (Address, usize), to: &[Address]) -> bool {
        self.change(|last| last.request(extra, result, to))
    }

    /// Whether [`Queue::request`] is possible.
    pub(super) fn offers(&self, extra: Extra, result: (Address, usize)) -> bool {
        self.state().waiting.last().is_some_and(|last| last.arguments.offers(extra, result))
    }

    /// Changes the last launch, if it is a rotation and still in the queue. Returns whether `change` has changed it.
    pub(super) fn change_rotation(&self, change: impl FnOnce(&mut Rotation) -> bool) -> bool {
        let State { waiting, fusable, .. } = &mut *self.state();
        let (Some(launch), Some(Fusable::Rotation(rotation))) = (waiting.last_mut(), fusable.last_mut())
        else {
            return false;
        };
        let changed = change(rotation);
        if changed {
            rotation.write(launch);
        }
        changed
    }

    /// Offers the products at the end of the queue to `change`, the last first, until `change` has changed a launch or
    /// says to stop. Returns whether a launch was changed.
    pub(super) fn change_turns(&self, mut change: impl FnMut(&Launch, &mut Turns) -> Change) -> bool {
        let State { waiting, fusable, .. } = &mut *self.state();
        for (launch, fusable) in waiting.iter_mut().zip(fusable).rev() {
            let Fusable::Products(turns) = fusable else { return false };
            match change(launch, turns) {
                Change::Did => {
                    turns.write(launch);
                    return true;
                }
                Change::AskBefore => {}
                Change::Cannot => return false,
            }
        }
        false
    }

    /// Sends all launches in the queue to the device.
    fn send(&self, state: &mut State) -> Result<()> {
        let State { waiting, fusable, seen, repeated, failed } = state;
        fusable.clear();
        if let Some(error) = failed.take() {
            waiting.clear();
            return Err(error);
        }
        if waiting.is_empty() {
            return Ok(());
        }
        // Recording launches differ from pass to pass; the launches before and after them do not.
        let result = waiting.chunk_by(|a, b| a.apart == b.apart).try_for_each(|launches| {
            if launches[0].apart || launches.len() < MIN_GRAPH {
                return self.driver.launch(launches);
            }
            let Some(at) = seen.iter().position(|seen| seen.launches == *launches) else {
                if seen.len() == GRAPHS {
                    let oldest = seen.remove(0);
                    oldest.graph.into_iter().for_each(|graph| self.driver.destroy_graph(graph));
                }
                seen.push(Seen { launches: launches.to_vec(), graph: None, refused: false });
                return self.driver.launch(launches);
            };
            let mut known = seen.remove(at);
            if known.graph.is_none() && !known.refused {
                known.graph = self.driver.capture(&known.launches).ok();
                known.refused = known.graph.is_none();
            }
            let done = match known.graph {
                Some(graph) => {
                    *repeated += 1;
                    self.driver.launch_graph(graph)
                }
                None => self.driver.launch(launches),
            };
            seen.push(known);
            done
        });
        waiting.clear();
        result
    }

    /// Waits until all work is done, or until a stop request. After a stop request, the device goes on with its queued
    /// work.
    pub(super) fn wait(&self, stop: &Stop) -> Result<()> {
        let end = self.ask(|device| device.mark())?;
        let reached = self.reach(end, stop);
        self.driver.release(end);
        reached
    }

    /// Waits for an event, or until a stop request as in [`Queue::wait`].
    pub(super) fn reach(&self, moment: Event, stop: &Stop) -> Result<()> {
        while !self.driver.reached(moment)? {
            stop.check()?;
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// How often a graph was launched.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn repeated(&self) -> usize {
        self.state().repeated
    }
}
