//! A live run that a viewer shows. A worker owns the model and the session. The worker runs on its own thread if the
//! platform has threads. The viewer's side answers from the store, and asks the worker for everything else.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use ndarray::{ArrayD, IxDyn};

use super::apart::{self, Apart};
use super::serve::{Asked, Member, NO_LAYER, Progress, Reply, Request, Serves, Serving, lock};
use super::store::Store;
use super::worker::Worker;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::stop::Stop;
use llama_trace_core::trace::pattern::Measuring;
use llama_trace_core::trace::{
    Answer, Block, Cached, End, Fork, Frame, FrameData, Order, Outline, Part, PassDims, PassOutline, Query,
    Run, Sampling, Site, Source, Spread, Stage, Status, TokenLabel,
};
use llama_trace_engine::generate::{Ended, Held, Sampler, Session};
use llama_trace_engine::model::Model;
use llama_trace_formats::tokenizer::Tokenizer;

/// Default limit of frame memory, in bytes.
pub const DEFAULT_MEMORY: usize = 1 << 30;

/// The smallest frame memory for a viewer, in bytes. A row of logits takes only a small part of it, even with the
/// largest vocabularies.
pub const LEAST_MEMORY: usize = 16 << 20;

/// The largest number of values that the viewer's side summarises or sorts itself, while a key press waits. The worker
/// handles larger numbers of values.
const AT_ONCE: usize = 1 << 15;

/// Columns of the progress bar.
const BAR: usize = 12;

/// Gives tokens their texts.
pub(super) type Label = Rc<dyn Fn(u32) -> String>;

/// A complete run, for [`Live::over`].
pub(super) struct Over {
    pub(super) outline: Outline,
    pub(super) store: Arc<Mutex<Store>>,
    pub(super) label: Label,
    pub(super) member: Member,
    pub(super) stop: Stop,
    /// The error if another pass is requested.
    pub(super) why: Error,
}

/// A live run, from the viewer's side.
pub struct Live {
    outline: Outline,
    store: Arc<Mutex<Store>>,
    label: Label,
    requests: Sender<Asked>,
    replies: Receiver<Reply>,
    /// Whether a reply was received since the last poll.
    arrived: bool,
    /// The worker of this run and its branches.
    work: Rc<Work>,
    pending: HashSet<Query>,
    failed: HashMap<Query, Error>,
    /// Answers that arrived and were not fetched yet. They stay available even if the store evicts them.
    fresh: HashMap<Query, Answer>,
    /// Cache of spreads: they are small, and take long to compute for a stage in blocks.
    spreads: HashMap<Part, Spread>,
    /// Number of passes to run without a request for each.
    draws: usize,
    advancing: bool,
    /// The reason why no pass follows the last one.
    ended: Option<Ended>,
    /// The capacity of the KV cache in tokens.
    capacity: usize,
    /// The error that ended the run.
    stopped: Option<Error>,
    /// End-of-text tokens.
    ends: Vec<u32>,
}

/// The worker of some runs. It ends when the last viewer of these runs is dropped.
struct Work {
    progress: Arc<Progress>,
    stop: Stop,
    apart: RefCell<Option<Apart>>,
}

impl Work {
    /// Does one piece of work, if the worker has no thread of its own.
    fn step(&self) {
        if let Some(apart) = &mut *self.apart.borrow_mut() {
            apart.step();
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // Stops the worker only if it is computing: the stop flag belongs to the model, which other workers may use
        // too.
        self.progress.over.store(true, Ordering::SeqCst);
        self.progress.stop(&self.stop, None);
        // After a panic there is no worker that could obey the request to stop.
        if self.apart.take().is_some_and(|apart| !apart.end()) {
            self.stop.clear();
        }
    }
}

/// The arguments of [`Live::start`].
#[derive(Clone)]
pub struct Start {
    /// The prompt.
    pub ids: Vec<u32>,
    /// Number of tokens to draw without a request: at least the one after the prompt.
    pub draws: usize,
    /// The sampler.
    pub sampler: Sampler,
    /// Gives tokens their texts.
    pub tokenizer: Option<Arc<dyn Tokenizer>>,
    /// End-of-text tokens.
    pub eos: Vec<u32>,
    /// Memory limit of all frames together, in bytes.
    pub memory: usize,
    /// Capacity of the KV cache in tokens. Default: the model's context, or as much of it as fits in free memory.
    pub context: Option<usize>,
}

impl Live {
    /// Starts to run the prompt on a new thread, and returns at once.
    ///
    /// # Errors
    /// An error if the prompt cannot be run, or no thread can be started.
    pub fn start(model: Arc<Model>, start: Start) -> Result<Self> {
        let store = Arc::new(Mutex::new(Store::new(start.memory)));
        Self::start_as(Member::alone(), store, model, start, Vec::new())
    }

    /// [`Live::start`] for a run that reads `forced` after its prompt, one token after each pass, in place of the drawn
    /// tokens.
    ///
    /// # Errors
    /// The errors of [`Live::start`].
    pub fn start_forced(model: Arc<Model>, start: Start, forced: Vec<u32>) -> Result<Self> {
        let store = Arc::new(Mutex::new(Store::new(start.memory)));
        Self::start_as(Member::alone(), store, model, start, forced)
    }

    /// Starts one of the sequences of a model; their frames share a store. The `forced` tokens follow its prompt in
    /// place of the drawn tokens.
    pub(super) fn start_as(
        member: Member,
        store: Arc<Mutex<Store>>,
        model: Arc<Model>,
        start: Start,
        forced: Vec<u32>,
    ) -> Result<Self> {
        let Start { ids, draws, sampler, tokenizer, eos, memory: _, context } = start;
        let session = match context {
            Some(tokens) => Session::with_capacity(&model, sampler.clone(), tokens)?,
            None => Session::new(&model, sampler.clone())?,
        };
        session.check(&ids)?;
        let (dims, capacity) = (session.next_pass(ids.len()), session.capacity());
        // The thread creates its own session, because it owns the model that the session borrows.
        drop(session);
        let (requests, inbox) = channel();
        let (outbox, replies) = channel();
        let progress = Arc::new(Progress::default());
        let stop = model.backend.stop().clone();
        let outline = Outline {
            run: member.run,
            fork: None,
            setting: member.setting,
            sequence: member.sequence,
            sequences: member.sequences,
            recorded: false,
            ended: None,
            card: model.card(),
            passes: Vec::new(),
            cache: Cached { dtype: model.backend.cache_dtype(), capacity: Some(capacity) },
        };
        let (shared, seen) = (Arc::clone(&store), Arc::clone(&progress));
        let splitter = tokenizer.clone();
        let label: Label = match tokenizer {
            Some(tokenizer) => Rc::new(move |id| tokenizer.label(id)),
            None => Rc::new(|id| format!("#{id}")),
        };
        let work = Rc::new(Work { progress, stop: stop.clone(), apart: RefCell::default() });
        let mut live = Self::of(outline, capacity, (store, label), (requests, replies), work);
        (live.draws, live.advancing, live.ends) = (draws, true, eos.clone());
        live.outline.passes.push(live.pass(dims, &ids, None));
        let make = move || {
            let session = Session::held(Held::Shared(model), sampler, capacity).and_then(|mut session| {
                session.begin(ids, &eos, usize::MAX)?;
                session.sequence.force(forced);
                Ok(session)
            });
            match session {
                Ok(session) => {
                    let worker = Worker::new(session, shared, Arc::clone(&seen), member.clone(), splitter);
                    Some(Serving::new(worker, (member, seen), stop, true, (inbox, outbox)))
                }
                Err(error) => {
                    // The receiver may be gone.
                    drop(outbox.send(Reply::Pass(dims, Err(error))));
                    None
                }
            }
        };
        live.work.apart.replace(Some(Apart::begin(("model", "for the model"), make)?));
        Ok(live)
    }

    /// The viewer's side of a complete run; `who` computes its answers on a new thread.
    ///
    /// # Errors
    /// An error if no thread can be started.
    pub(super) fn over(run: Over, who: impl Serves + Send + 'static) -> Result<Self> {
        let Over { outline, store, label, member, stop, why } = run;
        let (requests, inbox) = channel();
        let (outbox, replies) = channel();
        let progress = Arc::new(Progress::default());
        let (seen, asked) = (Arc::clone(&progress), stop.clone());
        let serving = Serving::new(who, (member, seen), asked, false, (inbox, outbox));
        let apart = Apart::begin(("trace", "for the trace"), move || Some(serving))?;
        let capacity = outline.passes.last().map_or(0, |pass| pass.dims.keys());
        let work = Rc::new(Work { progress, stop, apart: RefCell::new(Some(apart)) });
        let mut live = Self::of(outline, capacity, (store, label), (requests, replies), work);
        live.stopped = Some(why);
        Ok(live)
    }

    /// A run without any queries yet.
    fn of(
        outline: Outline,
        capacity: usize,
        (store, label): (Arc<Mutex<Store>>, Label),
        (requests, replies): (Sender<Asked>, Receiver<Reply>),
        work: Rc<Work>,
    ) -> Self {
        Self {
            outline,
            store,
            label,
            requests,
            replies,
            arrived: false,
            work,
            pending: HashSet::new(),
            failed: HashMap::new(),
            fresh: HashMap::new(),
            spreads: HashMap::new(),
            draws: 0,
            advancing: false,
            ended: None,
            capacity,
            stopped: None,
            ends: Vec::new(),
        }
    }

    fn send(&self, request: Request) -> Result<()> {
        self.requests.send((self.outline.run, request)).map_err(|_| gone())
    }

    /// Whether the first pass is still running.
    fn is_opening(&self) -> bool {
        self.outline.is_opening()
    }

    /// Whether `query` is about this run and sequence; weights belong to the model.
    fn is_asked(&self, query: &Query) -> bool {
        let here = (self.outline.run, self.outline.sequence);
        query.site().is_none_or(|site| (site.run, site.sequence) == here)
    }

    /// The ids of a pass, which are known before it runs.
    fn tokens(&self, site: Site) -> Option<Block> {
        let pass = self.outline.passes.get(site.pass).filter(|_| site.stage == Stage::Tokens)?;
        let ids: Vec<i64> = pass.tokens.iter().map(|token| i64::from(token.id)).collect();
        let data = FrameData::I64(ArrayD::from_shape_vec(IxDyn(&[ids.len()]), ids).ok()?);
        let block = Block::whole(Arc::new(Frame { site, axes: site.stage.axes(), data }));
        lock(&self.store).cache(block.clone());
        Some(block)
    }

    /// The largest number of bytes of frames that were held at once.
    pub fn most_held(&self) -> usize {
        lock(&self.store).most()
    }

    /// The capacity of the KV cache in tokens.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The error if another pass is requested.
    fn why(&self, ended: Ended) -> Error {
        let (tokens, context) = (self.capacity, self.outline.card.config.context);
        match ended {
            Ended::Text => {
                let last = self.outline.passes.last().and_then(|pass| pass.sampled.as_ref());
                let last = last.map_or("", |token| &token.text);
                Error::prompt(format!("the text has ended: the model sampled its end-of-text token {last}"))
                    .next("press b on a line of probs to continue with the token of this line")
            }
            Ended::Full if tokens < context => Error::prompt("the reserved context is full")
                .expected(format!("at most {tokens} tokens"))
                .next("start again with a larger --context"),
            Ended::Full | Ended::Limit => {
                Error::prompt("the model's context is full").expected(format!("at most {context} tokens"))
            }
        }
    }

    fn pass(&self, dims: PassDims, ids: &[u32], sampled: Option<u32>) -> PassOutline {
        let label = |id| TokenLabel { id, text: self.token_text(id) };
        let tokens = ids.iter().map(|&id| label(id)).collect();
        PassOutline { dims, tokens, sampled: sampled.map(label) }
    }

    fn take(&mut self, reply: Reply) {
        match reply {
            Reply::Answer(query, answer) => {
                let waited_for = self.pending.remove(&query);
                match answer {
                    Ok(Answer::Spread(spread)) => {
                        if let Query::Spread(part) = query {
                            self.spreads.insert(part, spread);
                        }
                    }
                    Ok(answer) if waited_for => drop(self.fresh.insert(query, answer)),
                    Ok(_) => {}
                    Err(error) if waited_for => drop(self.failed.insert(query, error)),
                    Err(_) => {}
                }
            }
            Reply::Pass(dims, result) => {
                self.advancing = false;
                match result {
                    Ok((ids, sampled, ended)) => {
                        self.ended = ended;
                        self.outline.ended = ended.map(told);
                        let pass = self.pass(dims, &ids, Some(sampled));
                        self.outline.passes.truncate(dims.pass);
                        self.outline.passes.push(pass);
                        if self.outline.passes.len() < self.draws {
                            // The error is reported when a pass is requested.
                            drop(self.advance());
                        }
                    }
                    // An interrupted pass can be asked for again.
                    Err(Error::Interrupted(_)) => self.draws = 0,
                    Err(error) => self.stopped = Some(error),
                }
            }
        }
    }

    /// The answer to `query`, if it is available without the model and without delay.
    fn at_hand(&mut self, query: &Query) -> Option<Answer> {
        match query {
            Query::Block(site, region) => {
                let block = lock(&self.store).get(*site, region);
                block.or_else(|| self.tokens(*site)).map(Answer::Block)
            }
            Query::Spread(part) => {
                let known = self.spreads.get(part).copied();
                let frame = known.is_none().then(|| lock(&self.store).whole(part.site)).flatten();
                let frame = frame.filter(|frame| frame.shape().iter().product::<usize>() <= AT_ONCE);
                let now = known.or_else(|| frame.map(|frame| Spread::of_frame(&frame, part.held)));
                if let Some(spread) = now {
                    self.spreads.insert(*part, spread);
                }
                now.map(Answer::Spread)
            }
            Query::Order(part) => {
                let dims = self.outline.passes.get(part.site.pass)?.dims;
                let region = part.region(&self.outline.card.sizes().shape(part.site.stage.axes(), dims));
                let block = lock(&self.store).get(part.site, &region)?;
                (region.count() <= AT_ONCE).then(|| Answer::Order(Order::of(&block, part.held)))
            }
            Query::Patterns(site) => {
                let dims = self.outline.passes.get(site.pass)?.dims;
                let frame = lock(&self.store).whole(*site)?;
                let small = frame.shape().iter().product::<usize>() <= AT_ONCE;
                let sizes = self.outline.card.sizes();
                let passes = self.outline.passes.iter().take(site.pass + 1);
                let text: Vec<u32> = passes.flat_map(|pass| &pass.tokens).map(|token| token.id).collect();
                small.then(|| Answer::Patterns(Measuring::of_frame(&frame, &sizes, dims, &text)))
            }
            _ => None,
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // Stops the computation for this viewer. The thread ends when its last viewer is dropped.
        Source::stop(self);
        self.requests = channel().0;
    }
}

/// The reason for the end of a run, as the viewer sees it.
fn told(ended: Ended) -> End {
    match ended {
        Ended::Text => End::Text,
        Ended::Full | Ended::Limit => End::Full,
    }
}

fn gone() -> Error {
    Error::terminal("the thread that runs the model has stopped").next("quit and start again")
}

impl Source for Live {
    fn outline(&self) -> &Outline {
        &self.outline
    }

    fn ask(&mut self, query: &Query) -> Poll<Result<Answer>> {
        if !self.is_asked(query) {
            let (run, here) = (self.outline.run, self.outline.sequence);
            return Poll::Ready(Err(Error::usage(format!(
                "{query} is not possible: only sequence {here} of {run} is open"
            ))));
        }
        if let Some(answer) = self.fresh.remove(query).or_else(|| self.at_hand(query)) {
            // A later reply of the worker would not be fetched, so the query is not pending any more.
            self.pending.remove(query);
            return Poll::Ready(Ok(answer));
        }
        if self.is_opening() {
            // Nothing can be answered yet; the viewer asks again.
            return Poll::Pending;
        }
        match self.failed.get(query) {
            // An interruption is reported once. The next query starts the computation again.
            Some(Error::Interrupted(_)) => {
                let error = self.failed.remove(query);
                return Poll::Ready(Err(error.unwrap_or_else(gone)));
            }
            Some(error) => return Poll::Ready(Err(error.clone())),
            None => {}
        }
        let new = self.pending.insert(query.clone());
        if new && self.send(Request::Answer(query.clone())).is_err() {
            return Poll::Ready(Err(gone()));
        }
        Poll::Pending
    }

    fn cancel(&mut self, query: &Query) {
        self.fresh.remove(query);
        if self.pending.remove(query) {
            // If the worker is gone, there is nothing to cancel.
            drop(self.send(Request::Cancel(query.clone())));
        }
    }

    fn stop(&mut self) {
        self.draws = 0;
        if self.status() != Status::Idle {
            // Running work sees the flag; waiting work is cancelled by the request. If the worker is gone, nothing
            // runs.
            drop(self.send(Request::Stop));
        }
        // The result being computed is no longer needed.
        self.work.progress.stop(&self.work.stop, Some(self.outline.run));
    }

    fn advance(&mut self) -> Result<()> {
        if let Some(error) = &self.stopped {
            return Err(error.clone());
        }
        if let Some(ended) = self.ended {
            return Err(self.why(ended));
        }
        if self.advancing && self.is_opening() {
            // The requested pass follows directly after the prompt.
            self.draws = self.draws.max(2);
        }
        if !self.advancing {
            self.advancing = true;
            self.send(Request::Advance)?;
        }
        Ok(())
    }

    fn branch(&mut self, run: Run, fork: Fork) -> Result<Box<dyn Source>> {
        if let Some(error) = &self.stopped {
            return Err(error.clone());
        }
        let passes = self.outline.passes.get(..=fork.pass).unwrap_or_default();
        let Some(last) = passes.last().filter(|pass| pass.sampled.is_some()) else {
            return Err(Error::usage(format!("there is no finished pass {} to branch from", fork.pass)));
        };
        if fork.token as usize >= self.outline.card.config.vocab {
            return Err(Error::usage(format!("there is no token {}", fork.token)));
        }
        let ended = match last.dims.keys() < self.capacity {
            _ if self.ends.contains(&fork.token) => Some(Ended::Text),
            true => None,
            false => Some(Ended::Full),
        };
        let fork = Fork { of: self.outline.run, ..fork };
        let mut outline = Outline {
            run,
            fork: Some(fork),
            setting: fork.setting.or(self.outline.setting),
            ended: ended.map(told),
            passes: passes.to_vec(),
            ..self.outline.clone()
        };
        if let Some(last) = outline.passes.last_mut() {
            last.sampled = Some(TokenLabel { id: fork.token, text: self.token_text(fork.token) });
            last.dims.filters = outline.setting.map_or(last.dims.filters, Sampling::filters);
        }
        let (outbox, replies) = channel();
        let shown = (Arc::clone(&self.store), Rc::clone(&self.label));
        let channels = (self.requests.clone(), replies);
        let mut branch = Self::of(outline, self.capacity, shown, channels, Rc::clone(&self.work));
        (branch.ended, branch.ends) = (ended, self.ends.clone());
        lock(&self.store).part(self.outline.sequence, run, fork);
        branch.send(Request::Branch(fork, outbox))?;
        Ok(Box::new(branch))
    }

    fn wait(&mut self, most: Duration) {
        self.work.step();
        if let Some(reply) = apart::next(&self.replies, most) {
            self.take(reply);
            self.arrived = true;
        }
    }

    fn poll(&mut self) -> Result<bool> {
        let mut news = std::mem::take(&mut self.arrived);
        self.work.step();
        loop {
            match self.replies.try_recv() {
                Ok(reply) => self.take(reply),
                Err(TryRecvError::Empty) => break,
                // The worker panicked. Earlier results stay available.
                Err(TryRecvError::Disconnected) if self.stopped.is_none() => {
                    self.pending.clear();
                    (self.advancing, self.stopped) = (false, Some(gone()));
                }
                Err(TryRecvError::Disconnected) => break,
            }
            news = true;
        }
        match &self.stopped {
            Some(error) if self.is_opening() => Err(error.clone()),
            _ => Ok(news),
        }
    }

    fn status(&self) -> Status {
        let doing = if self.advancing && self.is_opening() {
            "running the prompt".to_owned()
        } else if self.advancing && self.draws > self.outline.passes.len() {
            format!("running token {} of {}", self.outline.passes.len() + 1, self.draws)
        } else if self.advancing {
            "running the next token".to_owned()
        } else if let Some(query) = self.pending.iter().next() {
            query.to_string()
        } else {
            return Status::Idle;
        };
        Status::Working(match self.work.progress.layer.load(Ordering::Relaxed) {
            NO_LAYER => doing,
            layer => {
                let layers = self.outline.card.sizes().layers;
                let done = (layer + 1) * BAR / layers.max(1);
                let bar = "█".repeat(done) + &"░".repeat(BAR.saturating_sub(done));
                format!("{doing}: layer {layer} of 0-{} {bar}", layers - 1)
            }
        })
    }

    fn token_text(&self, id: u32) -> String {
        (self.label)(id)
    }
}
