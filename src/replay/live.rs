//! A run that is being watched: a worker thread owns the model and the session; the viewer's side answers
//! from the store and asks the worker for what is not there.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread::{self, JoinHandle};

use ndarray::{ArrayD, IxDyn};

use super::store::Store;
use super::worker::{NO_LAYER, Progress, Question, Reply, Request, Worker, lock};
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::generate::{Sampler, Session};
use crate::model::Model;
use crate::stop::Stop;
use crate::tokenizer::Tokenizer;
use crate::trace::{
    Block, Frame, FrameData, Outline, PassDims, PassOutline, Region, Run, Site, Source, Stage, Stats, Status,
    TokenLabel,
};

/// Bytes of frames that are held where nobody says another number.
pub const DEFAULT_MEMORY: usize = 1 << 30;

/// The fewest bytes that a run can be watched with: a row of the largest vocabularies is then a small part.
pub const LEAST_MEMORY: usize = 16 << 20;

/// A live run, seen from the viewer's side.
pub struct Live {
    outline: Outline,
    store: Arc<Mutex<Store>>,
    tokenizer: Option<Arc<dyn Tokenizer>>,
    eos: Vec<u32>,
    requests: Sender<Request>,
    replies: Receiver<Reply>,
    progress: Arc<Progress>,
    stop: Stop,
    pending: HashSet<Question>,
    failed: HashMap<Question, Error>,
    /// The answer that came last, so that it is there when it is fetched whatever the store lets go.
    latest: Option<(Question, Block)>,
    stats: HashMap<(Site, Option<(usize, usize)>), Stats>,
    /// Passes that are run without being asked for one by one.
    draws: usize,
    advancing: bool,
    /// Why there will be no more passes.
    stopped: Option<Error>,
    worker: Option<JoinHandle<()>>,
}

/// What to run, for [`Live::start`].
pub struct Start {
    /// The prompt.
    pub ids: Vec<u32>,
    /// Tokens to draw without being asked: at least the one after the prompt.
    pub draws: usize,
    /// What draws them.
    pub sampler: Sampler,
    /// What gives tokens their texts.
    pub tokenizer: Option<Arc<dyn Tokenizer>>,
    /// Tokens that end a text.
    pub eos: Vec<u32>,
    /// Bytes that all frames together may take.
    pub memory: usize,
}

impl Live {
    /// Begins to run the prompt on a new thread, and does not wait for it.
    ///
    /// # Errors
    /// Where the prompt cannot be run, or no thread can be started.
    pub fn start<B: Backend + 'static>(model: Arc<Model<B>>, start: Start) -> Result<Self> {
        let Start { ids, draws, sampler, tokenizer, eos, memory } = start;
        let session = Session::new(&model, sampler.clone());
        session.check(&ids)?;
        let dims = session.next_pass(ids.len());
        drop(session);
        let (requests, inbox) = channel();
        let (outbox, replies) = channel();
        let store = Arc::new(Mutex::new(Store::new(memory)));
        let progress = Arc::new(Progress::default());
        let stop = model.backend.stop().clone();
        let outline = Outline { run: Run::ITSELF, sequence: 0, card: model.card(), passes: Vec::new() };
        let (shared, seen) = (Arc::clone(&store), Arc::clone(&progress));
        let mut live = Self {
            outline,
            store,
            tokenizer,
            eos,
            requests,
            replies,
            progress,
            stop,
            pending: HashSet::new(),
            failed: HashMap::new(),
            latest: None,
            stats: HashMap::new(),
            draws,
            advancing: true,
            stopped: None,
            worker: None,
        };
        live.outline.passes.push(live.pass(dims, &ids, None));
        let worker = thread::Builder::new()
            .name("model".into())
            .spawn(move || {
                let session = Session::new(&model, sampler);
                Worker::new(session, shared, seen).serve(ids, &inbox, &outbox);
            })
            .map_err(|error| Error::terminal("no thread can be started for the model").found(error))?;
        live.worker = Some(worker);
        Ok(live)
    }

    /// Whether the first pass is not done yet.
    fn is_opening(&self) -> bool {
        self.outline.passes.iter().all(|pass| pass.sampled.is_none())
    }

    /// The ids that a pass reads. They are known before it is run.
    fn tokens(&self, site: Site) -> Option<Block> {
        let pass = self.outline.passes.get(site.pass).filter(|_| site.stage == Stage::Tokens)?;
        let ids: Vec<i64> = pass.tokens.iter().map(|token| i64::from(token.id)).collect();
        let data = FrameData::I64(ArrayD::from_shape_vec(IxDyn(&[ids.len()]), ids).ok()?);
        let block = Block::whole(Arc::new(Frame { site, axes: site.stage.axes(), data }));
        lock(&self.store).cache(block.clone());
        Some(block)
    }

    /// The most bytes of frames that were ever held at the same time.
    pub fn most_held(&self) -> usize {
        lock(&self.store).most()
    }

    fn pass(&self, dims: PassDims, ids: &[u32], sampled: Option<u32>) -> PassOutline {
        let label = |id| TokenLabel { id, text: self.token_text(id) };
        let tokens = ids.iter().map(|&id| label(id)).collect();
        PassOutline { dims, tokens, sampled: sampled.map(label) }
    }

    fn take(&mut self, reply: Reply) {
        match reply {
            Reply::Block(question, result) => {
                self.pending.remove(&question);
                match result {
                    Ok(block) => self.latest = Some((question, block)),
                    Err(error) => drop(self.failed.insert(question, error)),
                }
            }
            Reply::Stats(question, result) => {
                self.pending.remove(&question);
                match (result, question) {
                    (Ok(stats), Question::Stats(site, held)) => drop(self.stats.insert((site, held), stats)),
                    (Ok(_), Question::Block(..)) => {}
                    (Err(error), question) => drop(self.failed.insert(question, error)),
                }
            }
            Reply::Dropped(question) => drop(self.pending.remove(&question)),
            Reply::Pass(dims, result) => {
                self.advancing = false;
                match result {
                    Ok((ids, sampled)) => {
                        let pass = self.pass(dims, &ids, Some(sampled));
                        self.outline.passes.truncate(dims.pass);
                        self.outline.passes.push(pass);
                        if self.outline.passes.len() < self.draws {
                            // Why there are no more is told to whoever asks for one.
                            drop(self.advance());
                        }
                    }
                    // What was stopped can be asked for again.
                    Err(Error::Interrupted(_)) => self.draws = 0,
                    Err(error) => self.stopped = Some(error),
                }
            }
        }
    }

    /// Whether the answer to `question` is on its way, or why there is none.
    fn ask(&mut self, question: Question) -> Poll<Result<()>> {
        if self.is_opening() {
            // There is nothing to look at before; who waits for it asks again.
            return Poll::Pending;
        }
        match self.failed.get(&question) {
            // What was stopped is told of once; who asks then asks for it again.
            Some(Error::Interrupted(_)) => {
                let error = self.failed.remove(&question);
                return Poll::Ready(Err(error.unwrap_or_else(gone)));
            }
            Some(error) => return Poll::Ready(Err(error.clone())),
            None => {}
        }
        if self.pending.insert(question.clone()) && self.requests.send(Request::Answer(question)).is_err() {
            return Poll::Ready(Err(gone()));
        }
        Poll::Pending
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // The worker must not go on for nobody, and who has the model next must not be stopped.
        self.progress.over.store(true, Ordering::SeqCst);
        self.stop.ask();
        self.requests = channel().0;
        if let Some(worker) = self.worker.take() {
            // Where it panicked that was said, or there is nobody left to tell.
            drop(worker.join());
        }
        self.stop.clear();
    }
}

fn gone() -> Error {
    Error::terminal("the thread that runs the model has stopped").next("quit and start again")
}

impl Source for Live {
    fn outline(&self) -> &Outline {
        &self.outline
    }

    fn block(&mut self, site: Site, region: &Region) -> Poll<Result<Block>> {
        if let Some(block) = lock(&self.store).get(site, region) {
            return Poll::Ready(Ok(block));
        }
        if let Some(block) = self.tokens(site) {
            return Poll::Ready(Ok(block));
        }
        let question = Question::Block(site, region.clone());
        if self.latest.as_ref().is_some_and(|(latest, _)| *latest == question)
            && let Some((_, block)) = self.latest.take()
        {
            return Poll::Ready(Ok(block));
        }
        // Nobody waits for another answer any more.
        self.latest = None;
        match self.ask(question) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
        }
    }

    fn stats(&mut self, site: Site, held: Option<(usize, usize)>) -> Poll<Result<Stats>> {
        if let Some(stats) = self.stats.get(&(site, held)) {
            return Poll::Ready(Ok(*stats));
        }
        match self.ask(Question::Stats(site, held)) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
        }
    }

    fn stop(&mut self) {
        self.draws = 0;
        if self.status() != Status::Idle {
            self.progress.stop(&self.stop);
        }
    }

    fn advance(&mut self) -> Result<()> {
        if let Some(error) = &self.stopped {
            return Err(error.clone());
        }
        if let Some(last) = self.outline.passes.last().and_then(|pass| pass.sampled.as_ref())
            && self.eos.contains(&last.id)
        {
            return Err(Error::prompt(format!(
                "the text has ended: the model drew its end-of-text token {}",
                last.text
            )));
        }
        if self.advancing && self.is_opening() {
            // It comes right after the prompt.
            self.draws = self.draws.max(2);
        }
        if !self.advancing {
            self.advancing = true;
            self.requests.send(Request::Advance).map_err(|_| gone())?;
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<bool> {
        let mut news = false;
        loop {
            match self.replies.try_recv() {
                Ok(reply) => self.take(reply),
                Err(TryRecvError::Empty) => break,
                // It panicked. What was computed before can still be looked at.
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
        } else if let Some(question) = self.pending.iter().next() {
            question.to_string()
        } else {
            return Status::Idle;
        };
        Status::Working(match self.progress.layer.load(Ordering::Relaxed) {
            NO_LAYER => doing,
            layer => format!("{doing}: layer {layer} of 0-{}", self.outline.card.sizes.layers - 1),
        })
    }

    fn token_text(&self, id: u32) -> String {
        self.tokenizer.as_ref().map_or_else(|| format!("#{id}"), |tokenizer| tokenizer.label(id))
    }
}
