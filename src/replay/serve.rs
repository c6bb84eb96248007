//! How a viewer's side and the side that computes talk: what is asked, what is answered, and in which order the work is
//! done.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::generate::Ended;
use crate::stop::Stop;
use crate::trace::{Answer, PassDims, Query};

/// What the viewer asks the worker for.
pub(super) enum Request {
    Answer(Query),
    Cancel(Query),
    Advance,
    /// Nothing of what was asked for before is to be begun any more.
    Stop,
}

/// What the worker answers.
pub(super) enum Reply {
    Answer(Query, Result<Answer>),
    /// The tokens that the pass read, the one that was drawn, and why no pass follows.
    Pass(PassDims, Result<(Vec<u32>, u32, Option<Ended>)>),
}

/// [`Progress::layer`] outside the layers.
pub(super) const NO_LAYER: usize = usize::MAX;

/// What both sides see of the work.
#[derive(Debug)]
pub(super) struct Progress {
    /// The layer that is being computed.
    pub(super) layer: AtomicUsize,
    /// Whether the viewer is gone.
    pub(super) over: AtomicBool,
    /// Held while work begins or ends, so that a request to stop meets the work that it is meant for.
    working: Mutex<bool>,
}

impl Default for Progress {
    fn default() -> Self {
        let working = Mutex::new(false);
        Self { layer: AtomicUsize::new(NO_LAYER), over: AtomicBool::new(false), working }
    }
}

impl Progress {
    pub(super) fn set(&self, layer: Option<usize>) {
        self.layer.store(layer.unwrap_or(NO_LAYER), Ordering::Relaxed);
    }

    /// Asks the work under way to stop, if there is any.
    pub(super) fn stop(&self, stop: &Stop) {
        if *lock(&self.working) {
            stop.ask();
        }
    }

    fn begin(&self) {
        *lock(&self.working) = true;
    }

    fn end(&self, stop: &Stop) {
        let mut working = lock(&self.working);
        *working = false;
        stop.clear();
        self.set(None);
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while the lock was held leaves at worst a frame missing.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which of the sequences of a model a run is.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) sequence: usize,
    pub(super) sequences: usize,
    /// Held by who computes. Their model has one request to stop, which so meets the one that it is meant for; and
    /// side by side they would only share the processor.
    pub(super) turn: Arc<Mutex<()>>,
}

impl Member {
    /// The only one.
    pub(super) fn alone() -> Self {
        Self { sequence: 0, sequences: 1, turn: Arc::default() }
    }
}

/// Who computes.
pub(super) trait Serves {
    /// The answer to a query.
    fn answer(&mut self, query: &Query) -> Result<Answer>;

    /// Runs one more pass.
    fn advance(&mut self) -> Reply;

    /// The pass that would be run.
    fn next_pass(&self) -> PassDims;
}

/// Answers requests, one after the other, until the viewer is gone; where it is to `begin`, runs a first pass before. What
/// is asked for comes before further passes.
pub(super) fn serve(
    mut who: impl Serves,
    (member, progress): (&Member, &Progress),
    stop: &Stop,
    begin: bool,
    (inbox, outbox): (&Receiver<Request>, &Sender<Reply>),
) {
    let (mut advance, mut queries) = (begin, VecDeque::new());
    loop {
        let mut first = None;
        if !advance && queries.is_empty() {
            let Ok(request) = inbox.recv() else { return };
            first = Some(request);
        }
        let turn = lock(&member.turn);
        // From here on a request to stop meets the work, and what was asked for before it is found in the inbox.
        progress.begin();
        if progress.over.load(Ordering::SeqCst) {
            return progress.end(stop);
        }
        let mut stopped = Vec::new();
        for request in first.into_iter().chain(inbox.try_iter()) {
            match request {
                Request::Advance => advance = true,
                Request::Answer(query) => queries.push_back(query),
                Request::Cancel(query) => queries.retain(|waiting| *waiting != query),
                Request::Stop => {
                    let waiting = queries.drain(..);
                    stopped.extend(waiting.map(|query| Reply::Answer(query, Err(interrupted()))));
                    if std::mem::take(&mut advance) {
                        stopped.push(Reply::Pass(who.next_pass(), Err(interrupted())));
                    }
                }
            }
        }
        let reply = match queries.pop_front() {
            Some(query) => {
                let answer = who.answer(&query);
                Some(Reply::Answer(query, answer))
            }
            None => std::mem::take(&mut advance).then(|| who.advance()),
        };
        progress.end(stop);
        drop(turn);
        let mut replies = stopped.into_iter().chain(reply);
        if replies.any(|reply| outbox.send(reply).is_err()) || progress.over.load(Ordering::SeqCst) {
            return;
        }
    }
}

fn interrupted() -> Error {
    Error::interrupted("stopped before it was begun")
}
