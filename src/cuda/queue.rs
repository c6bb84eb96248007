//! The device's work, in the order of the calls.
//!
//! Launches wait in the queue until another kind of request: a copy, freed memory, an event, the end of a pass. Then
//! all of them go to the device together. If the same launches with the same arguments were sent before, the device
//! captures them as a graph and launches the graph. A decode pass then costs one driver call, and the caller need not
//! know that it equals the previous pass. Ids, positions and random numbers differ from pass to pass, so they are not
//! arguments: they are in the device's memory. Consecutive launches of one kernel for several sequences are joined into
//! one. A graph is never out of date: it is launched only for launches with the same addresses and arguments.

use std::sync::{Mutex, MutexGuard, PoisonError};

use llama_trace_core::error::{Error, Result};
use llama_trace_core::stop::Stop;
use llama_trace_kernels::driver::{Address, Driver, Event, Graph, Launch};

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

/// A norm of rows of `width` values, the first at `x`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Norm {
    pub(super) x: Address,
    pub(super) weight: Address,
    pub(super) eps: f32,
    pub(super) width: usize,
}

/// The computation of a launch, if a later operation can do it in its own launch. The later operation can withdraw this
/// launch as long as it is the last one in the queue.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fusable {
    /// The norm of one row, written to `out`.
    Norm { norm: Norm, out: Address },
    /// The sum of two inputs of `count` values.
    Add { inputs: [Address; 2], count: usize, sum: Address },
    /// `count` values of silu(gate), and of hidden = silu(gate) · up.
    SiluMul { inputs: [Address; 2], count: usize, silu: Address, hidden: Address },
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
    /// Describes the last launch of `waiting`, if it can be withdrawn.
    fusable: Option<Fusable>,
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

    /// Adds a launch to the queue. A later operation can withdraw it if it is `fusable`.
    pub(super) fn launch(&self, launch: Launch, fusable: Option<Fusable>) -> Result<()> {
        let mut state = self.state();
        state.waiting.push(launch);
        state.fusable = fusable;
        if state.waiting.len() < MOST_WAITING { Ok(()) } else { self.send(&mut state) }
    }

    /// Adds a launch. If it is like the last launch, joins the two: see [`Launch::join`].
    pub(super) fn launch_together(&self, launch: Launch, words: usize) -> Result<()> {
        if self.state().waiting.last_mut().is_some_and(|last| last.join(&launch, words)) {
            return Ok(());
        }
        self.launch(launch, None)
    }

    /// Withdraws the last launch, if it is fusable, still in the queue and unchanged, and `of` returns a value for it.
    /// The caller then queues a launch that does the same and more.
    pub(super) fn withdraw<T>(&self, of: impl FnOnce(Fusable) -> Option<T>) -> Option<T> {
        let mut state = self.state();
        let withdrawn = state.fusable.and_then(of)?;
        state.waiting.pop();
        state.fusable = None;
        Some(withdrawn)
    }

    /// Offers the launches in the queue to `change`, the last first, until `change` has changed a launch or says to
    /// stop. Returns whether a launch was changed.
    pub(super) fn change_recent(&self, mut change: impl FnMut(&mut Launch) -> Change) -> bool {
        let mut state = self.state();
        let mut changes = state.waiting.iter_mut().rev().map(&mut change);
        let changed = changes.find(|change| *change != Change::AskBefore) == Some(Change::Did);
        if changed {
            state.fusable = None;
        }
        changed
    }

    /// Changes the last launch, if it is still in the queue. Returns whether `change` has changed it.
    pub(super) fn change(&self, change: impl FnOnce(&mut Launch) -> bool) -> bool {
        let mut state = self.state();
        let changed = state.waiting.last_mut().is_some_and(change);
        if changed {
            state.fusable = None;
        }
        changed
    }

    /// Sends all launches in the queue to the device.
    fn send(&self, state: &mut State) -> Result<()> {
        let State { waiting, fusable, seen, repeated, failed } = state;
        *fusable = None;
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
