//! The messages between the viewer's side of a run and the worker that computes, and the order of the work.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use llama_trace_core::error::{Error, Result};
use llama_trace_core::stop::Stop;
use llama_trace_core::trace::{Answer, Fork, PassDims, Query, Run, Sampling};
use llama_trace_engine::generate::Ended;

/// A request from the viewer's side of a run to the worker.
pub(super) enum Request {
    Answer(Query),
    Cancel(Query),
    Advance,
    /// Cancels all earlier requests that have not started.
    Stop,
    /// Starts the run as a branch of another one. Its replies go to this sender.
    Branch(Fork, Sender<Reply>),
}

/// A request and its run.
pub(super) type Asked = (Run, Request);

/// A reply of the worker.
pub(super) enum Reply {
    Answer(Query, Result<Answer>),
    /// The tokens that the pass read, the drawn token, and the reason why no pass follows.
    Pass(PassDims, Result<(Vec<u32>, u32, Option<Ended>)>),
}

/// [`Progress::layer`] outside the layers.
pub(super) const NO_LAYER: usize = usize::MAX;

/// The progress of the work, shared by both sides.
#[derive(Debug)]
pub(super) struct Progress {
    /// The current layer.
    pub(super) layer: AtomicUsize,
    /// Whether the viewer is gone.
    pub(super) over: AtomicBool,
    /// Locked while work starts or ends, which directs a stop request to the right work.
    working: Mutex<Working>,
}

/// The owner of the current work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Working {
    Idle,
    /// The owner is not known yet.
    Unknown,
    Of(Run),
}

impl Default for Progress {
    fn default() -> Self {
        let working = Mutex::new(Working::Idle);
        Self { layer: AtomicUsize::new(NO_LAYER), over: AtomicBool::new(false), working }
    }
}

impl Progress {
    pub(super) fn set(&self, layer: Option<usize>) {
        self.layer.store(layer.unwrap_or(NO_LAYER), Ordering::Relaxed);
    }

    /// Stops the current work, if there is any. If `run` is given, only the work of that run.
    pub(super) fn stop(&self, stop: &Stop, run: Option<Run>) {
        let meets = match *lock(&self.working) {
            Working::Idle => false,
            Working::Unknown => true,
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
        *working = Working::Idle;
        stop.clear();
        self.set(None);
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while the lock was held can at worst lose a frame.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An open further run. The copies of the counter count these runs.
#[derive(Debug)]
pub(super) struct OpenRun {
    pub(super) _counter: Arc<()>,
}

/// The identity of a run or sequence among those of a model.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) run: Run,
    pub(super) sequence: usize,
    pub(super) sequences: usize,
    /// The number of runs that share the permanently kept frames.
    pub(super) shares: usize,
    /// Locked by the worker that computes. The model has only one stop flag, which must reach the right work. Two
    /// workers in parallel would also only share the processor.
    pub(super) turn: Arc<Mutex<()>>,
    /// The sampler settings of a further run, if they differ from those of the first run.
    pub(super) setting: Option<Sampling>,
    /// Held by the sequences of a further run, so that the open further runs can be counted.
    pub(super) _open: Option<Arc<OpenRun>>,
}

impl Member {
    /// The member of a single run.
    pub(super) fn alone() -> Self {
        Self {
            run: Run::ITSELF,
            sequence: 0,
            sequences: 1,
            shares: 1,
            turn: Arc::default(),
            setting: None,
            _open: None,
        }
    }
}

/// The computing side of a run.
pub(super) trait Serves {
    /// The answer to a query of `run`.
    fn answer(&mut self, run: Run, query: &Query) -> Result<Answer>;

    /// Runs one more pass of `run`.
    fn advance(&mut self, run: Run) -> Reply;

    /// Runs the next step of one more pass of `run`. Returns the reply after the last step. Until then, the buffers belong
    /// to the pass.
    fn step(&mut self, run: Run) -> Option<Reply> {
        Some(self.advance(run))
    }

    /// Gives up a pass that is under way between two steps.
    fn give_up(&mut self) {}

    /// The next pass of `run`.
    fn next_pass(&self, run: Run) -> PassDims;

    /// Starts `run`, a branch.
    ///
    /// # Errors
    /// An error if there is no such pass to branch from.
    fn branch(&mut self, run: Run, fork: Fork) -> Result<()>;
}

/// Answers requests one after the other, queries before passes. Each run receives its own answers.
pub(super) struct Serving<W> {
    who: W,
    member: Member,
    progress: Arc<Progress>,
    stop: Stop,
    inbox: Receiver<Asked>,
    outboxes: HashMap<Run, Sender<Reply>>,
    advance: VecDeque<Run>,
    queries: VecDeque<(Run, Query)>,
    /// Whether a pass is one piece of work, or each of its steps is.
    whole: bool,
    /// The run whose pass is under way between two steps.
    under_way: Option<Run>,
}

impl<W: Serves> Serving<W> {
    /// Starts without requests. If `begin` is set, a first pass is waiting. The answers of the first run go to
    /// `outbox`.
    pub(super) fn new(
        who: W,
        (member, progress): (Member, Arc<Progress>),
        stop: Stop,
        begin: bool,
        (inbox, outbox): (Receiver<Asked>, Sender<Reply>),
    ) -> Self {
        let advance = begin.then_some(member.run).into_iter().collect();
        let outboxes = HashMap::from([(member.run, outbox)]);
        let queries = VecDeque::new();
        let (whole, under_way) = (true, None);
        Self { who, member, progress, stop, inbox, outboxes, advance, queries, whole, under_way }
    }

    /// Makes each step of a pass a piece of work, so that the viewer can do other work between them.
    #[cfg(not(feature = "native"))]
    #[must_use]
    pub(super) fn in_steps(self) -> Self {
        Self { whole: false, ..self }
    }

    /// The inbox of requests, if there is no work until one comes.
    pub(super) fn waits(&self) -> Option<&Receiver<Asked>> {
        (self.advance.is_empty() && self.queries.is_empty()).then_some(&self.inbox)
    }

    /// Receives the requests, `first` before all others, and does one piece of work. Returns whether the viewer is
    /// still there.
    pub(super) fn step(&mut self, first: Option<Asked>) -> bool {
        let Self { who, member, progress, stop, inbox, outboxes, advance, queries, whole, under_way } = self;
        let turn = lock(&member.turn);
        // From here on a stop request reaches the work. Earlier requests are found in the inbox.
        progress.set_working(Working::Unknown);
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
                        if under_way.take_if(|of| *of == run).is_some() {
                            who.give_up();
                        }
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
        // The buffers belong to a pass that is under way, so queries wait for its end.
        let next = (*under_way).or(queries.front().map(|(run, _)| *run)).or(advance.front().copied());
        if let Some(run) = next {
            progress.set_working(Working::Of(run));
        }
        let query = if under_way.is_none() { queries.pop_front() } else { None };
        replies.extend(match query {
            Some((run, query)) => {
                let answer = who.answer(run, &query);
                Some((run, Reply::Answer(query, answer)))
            }
            None if *whole => advance.pop_front().map(|run| (run, who.advance(run))),
            None => match under_way.take().or_else(|| advance.front().copied()) {
                None => None,
                Some(run) => match who.step(run) {
                    Some(reply) => {
                        if let Some(at) = advance.iter().position(|of| *of == run) {
                            advance.remove(at);
                        }
                        Some((run, reply))
                    }
                    None => {
                        *under_way = Some(run);
                        None
                    }
                },
            },
        });
        progress.end(stop);
        drop(turn);
        // The viewer of a run may be gone; other runs continue.
        for (run, reply) in replies {
            if let Some(outbox) = outboxes.get(&run) {
                drop(outbox.send(reply));
            }
        }
        !progress.over.load(Ordering::SeqCst)
    }
}

fn interrupted() -> Error {
    Error::interrupted("stopped before it started")
}
