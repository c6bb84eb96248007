//! How a viewer's side and the side that computes talk: what is asked, what is answered, and in which order the work is
//! done.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use llama_trace_core::error::{Error, Result};
use llama_trace_core::stop::Stop;
use llama_trace_core::trace::{Answer, Fork, PassDims, Query, Run};
use llama_trace_engine::generate::Ended;

/// What the viewer's side of a run asks the worker for.
pub(super) enum Request {
    Answer(Query),
    Cancel(Query),
    Advance,
    /// Nothing of what was asked for before is to be begun any more.
    Stop,
    /// Its run begins: it parts from another one, and hears what comes here.
    Branch(Fork, Sender<Reply>),
}

/// A request and the run that it is from.
pub(super) type Asked = (Run, Request);

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
    working: Mutex<Working>,
}

/// Whose work is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Working {
    Nobodys,
    /// It is not known yet.
    Somebodys,
    Of(Run),
}

impl Default for Progress {
    fn default() -> Self {
        let working = Mutex::new(Working::Nobodys);
        Self { layer: AtomicUsize::new(NO_LAYER), over: AtomicBool::new(false), working }
    }
}

impl Progress {
    pub(super) fn set(&self, layer: Option<usize>) {
        self.layer.store(layer.unwrap_or(NO_LAYER), Ordering::Relaxed);
    }

    /// Asks the work under way to stop, if there is any; only that for `run` where one is given.
    pub(super) fn stop(&self, stop: &Stop, run: Option<Run>) {
        let meets = match *lock(&self.working) {
            Working::Nobodys => false,
            Working::Somebodys => true,
            Working::Of(other) => run.is_none_or(|run| run == other),
        };
        if meets {
            stop.ask();
        }
    }

    fn set_working(&self, working: Working) {
        *lock(&self.working) = working;
    }

    fn end(&self, stop: &Stop) {
        let mut working = lock(&self.working);
        *working = Working::Nobodys;
        stop.clear();
        self.set(None);
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while the lock was held leaves at worst a frame missing.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which of the runs and sequences of a model this is.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) run: Run,
    pub(super) sequence: usize,
    pub(super) sequences: usize,
    /// How many of them share what is kept for good.
    pub(super) shares: usize,
    /// Held by who computes. Their model has one request to stop, which so meets the one that it is meant for; and
    /// side by side they would only share the processor.
    pub(super) turn: Arc<Mutex<()>>,
}

impl Member {
    /// The only one.
    pub(super) fn alone() -> Self {
        Self { run: Run::ITSELF, sequence: 0, sequences: 1, shares: 1, turn: Arc::default() }
    }
}

/// Who computes.
pub(super) trait Serves {
    /// The answer to a query of `run`.
    fn answer(&mut self, run: Run, query: &Query) -> Result<Answer>;

    /// Runs one more pass of `run`.
    fn advance(&mut self, run: Run) -> Reply;

    /// The pass of `run` that would be run.
    fn next_pass(&self, run: Run) -> PassDims;

    /// Begins `run`, a branch.
    ///
    /// # Errors
    /// Where there is no such pass to part from.
    fn branch(&mut self, run: Run, fork: Fork) -> Result<()>;
}

/// Answers requests, one after the other; where it is to begin, runs a first pass before. What is asked for comes before
/// further passes. Each run hears its own answers.
pub(super) struct Serving<W> {
    who: W,
    member: Member,
    progress: Arc<Progress>,
    stop: Stop,
    inbox: Receiver<Asked>,
    outboxes: HashMap<Run, Sender<Reply>>,
    advance: VecDeque<Run>,
    queries: VecDeque<(Run, Query)>,
}

impl<W: Serves> Serving<W> {
    /// Nothing was asked yet; where it is to `begin`, a first pass waits. The answers of the first run go to `outbox`.
    pub(super) fn new(
        who: W,
        (member, progress): (Member, Arc<Progress>),
        stop: Stop,
        begin: bool,
        (inbox, outbox): (Receiver<Asked>, Sender<Reply>),
    ) -> Self {
        let advance = begin.then_some(member.run).into_iter().collect();
        let outboxes = HashMap::from([(member.run, outbox)]);
        Self { who, member, progress, stop, inbox, outboxes, advance, queries: VecDeque::new() }
    }

    /// Where requests come from, if there is no work until one comes.
    pub(super) fn waits(&self) -> Option<&Receiver<Asked>> {
        (self.advance.is_empty() && self.queries.is_empty()).then_some(&self.inbox)
    }

    /// Takes in what was asked, `first` before all else, and does one piece of work. Whether the viewer is still there.
    pub(super) fn step(&mut self, first: Option<Asked>) -> bool {
        let Self { who, member, progress, stop, inbox, outboxes, advance, queries } = self;
        let turn = lock(&member.turn);
        // From here on a request to stop meets the work, and what was asked for before it is found in the inbox.
        progress.set_working(Working::Somebodys);
        if progress.over.load(Ordering::SeqCst) {
            progress.end(stop);
            return false;
        }
        let mut replies = Vec::new();
        for (run, request) in first.into_iter().chain(inbox.try_iter()) {
            match request {
                Request::Advance => advance.push_back(run),
                Request::Answer(query) => queries.push_back((run, query)),
                Request::Cancel(query) => queries.retain(|(of, waiting)| (*of, waiting) != (run, &query)),
                Request::Stop => {
                    let (stopped, others): (VecDeque<_>, _) =
                        std::mem::take(queries).into_iter().partition(|(of, _)| *of == run);
                    *queries = others;
                    let stopped = stopped.into_iter();
                    replies
                        .extend(stopped.map(|(run, query)| (run, Reply::Answer(query, Err(interrupted())))));
                    if let Some(at) = advance.iter().position(|of| *of == run) {
                        advance.remove(at);
                        replies.push((run, Reply::Pass(who.next_pass(run), Err(interrupted()))));
                    }
                }
                Request::Branch(fork, outbox) => {
                    outboxes.insert(run, outbox);
                    if let Err(error) = who.branch(run, fork) {
                        replies.push((run, Reply::Pass(who.next_pass(run), Err(error))));
                    }
                }
            }
        }
        let next = queries.front().map(|(run, _)| *run).or(advance.front().copied());
        if let Some(run) = next {
            progress.set_working(Working::Of(run));
        }
        replies.extend(match queries.pop_front() {
            Some((run, query)) => {
                let answer = who.answer(run, &query);
                Some((run, Reply::Answer(query, answer)))
            }
            None => advance.pop_front().map(|run| (run, who.advance(run))),
        });
        progress.end(stop);
        drop(turn);
        // Whoever looked at a run may look at it no more, and others go on.
        for (run, reply) in replies {
            if let Some(outbox) = outboxes.get(&run) {
                drop(outbox.send(reply));
            }
        }
        !progress.over.load(Ordering::SeqCst)
    }
}

fn interrupted() -> Error {
    Error::interrupted("stopped before it was begun")
}
