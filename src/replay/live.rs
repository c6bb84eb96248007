//! A run that is being watched: a worker thread owns the model and the session; the viewer's side answers
//! from the store and asks the worker for what is not there.
//!
//! A pass keeps only what enters each layer. A layer that somebody looks at is run again from there: the
//! same function on the same numbers, so the same bits as in the pass itself.

use std::collections::{HashMap, HashSet};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::thread;

use super::derive::{derive, is_derivable, layer_input, values};
use super::store::Store;
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::generate::{Sampler, Session};
use crate::model::{Model, forward};
use crate::tokenizer::Tokenizer;
use crate::trace::{
    Frame, NoProbe, Outline, PassDims, PassOutline, Recorder, Select, Site, Source, Stage, Status, TokenLabel,
};

/// What the viewer asks the worker for.
enum Request {
    Frame(Site),
    Advance,
}

/// What the worker answers. A frame that could be made is in the store.
enum Reply {
    Frame(Site, Result<()>),
    Pass(Result<(PassDims, Vec<u32>, u32)>),
}

/// A live run, seen from the viewer's side.
pub struct Live {
    outline: Outline,
    store: Arc<Mutex<Store>>,
    tokenizer: Option<Arc<dyn Tokenizer>>,
    eos: Vec<u32>,
    requests: Sender<Request>,
    replies: Receiver<Reply>,
    pending: HashSet<Site>,
    failed: HashMap<Site, Error>,
    advancing: bool,
    stopped: Option<Error>,
}

impl Live {
    /// Runs the prompt `ids` on a new thread, draws `draws` tokens (at least the one after the prompt) and
    /// waits until that is done.
    ///
    /// # Errors
    /// Where the prompt cannot be run, or no thread can be started.
    pub fn start<B: Backend + 'static>(
        model: Arc<Model<B>>,
        sampler: Sampler,
        ids: Vec<u32>,
        draws: usize,
        tokenizer: Option<Arc<dyn Tokenizer>>,
        eos: Vec<u32>,
    ) -> Result<Self> {
        let (requests, inbox) = channel();
        let (outbox, replies) = channel();
        let store = Arc::new(Mutex::new(Store::default()));
        let outline = Outline { card: model.card(), passes: Vec::new() };
        let shared = Arc::clone(&store);
        thread::Builder::new()
            .name("model".into())
            .spawn(move || {
                let session = Session::new(&model, sampler);
                Worker { session, store: shared, passes: Vec::new() }.serve(ids, &inbox, &outbox);
            })
            .map_err(|error| Error::terminal("no thread can be started for the model").found(error))?;
        let mut live = Self {
            outline,
            store,
            tokenizer,
            eos,
            requests,
            replies,
            pending: HashSet::new(),
            failed: HashMap::new(),
            advancing: true,
            stopped: None,
        };
        live.wait()?;
        while live.outline.passes.len() < draws && live.advance().is_ok() {
            live.wait()?;
        }
        Ok(live)
    }

    /// Waits for the worker's next answer.
    fn wait(&mut self) -> Result<()> {
        let reply = self.replies.recv().map_err(|_| gone())?;
        self.take(reply);
        // Before the first pass there is nothing to look at; later the text just ends here.
        match &self.stopped {
            Some(error) if self.outline.passes.is_empty() => Err(error.clone()),
            _ => Ok(()),
        }
    }

    fn take(&mut self, reply: Reply) {
        match reply {
            Reply::Frame(site, result) => {
                self.pending.remove(&site);
                if let Err(error) = result {
                    self.failed.insert(site, error);
                }
            }
            Reply::Pass(result) => {
                self.advancing = false;
                match result {
                    Ok((dims, ids, sampled)) => {
                        let label = |id| TokenLabel { id, text: self.token_text(id) };
                        let tokens = ids.into_iter().map(label).collect();
                        let sampled = label(sampled);
                        self.outline.passes.push(PassOutline { dims, tokens, sampled });
                    }
                    Err(error) => self.stopped = Some(error),
                }
            }
        }
    }
}

fn gone() -> Error {
    Error::terminal("the thread that runs the model has stopped").next("quit and start again")
}

fn lock(store: &Mutex<Store>) -> MutexGuard<'_, Store> {
    // A panic while the lock was held leaves at worst a frame missing.
    store.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Source for Live {
    fn outline(&self) -> &Outline {
        &self.outline
    }

    fn frame(&mut self, site: Site) -> Poll<Result<Arc<Frame>>> {
        if let Some(error) = self.failed.get(&site) {
            return Poll::Ready(Err(error.clone()));
        }
        if let Some(frame) = lock(&self.store).get(site) {
            return Poll::Ready(Ok(frame));
        }
        if self.pending.insert(site) && self.requests.send(Request::Frame(site)).is_err() {
            return Poll::Ready(Err(gone()));
        }
        Poll::Pending
    }

    fn advance(&mut self) -> Result<()> {
        if let Some(error) = &self.stopped {
            return Err(error.clone());
        }
        if let Some(last) = self.outline.passes.last()
            && self.eos.contains(&last.sampled.id)
        {
            return Err(Error::prompt(format!(
                "the text has ended: the model drew its end-of-text token {}",
                last.sampled.text
            )));
        }
        if !self.advancing {
            self.advancing = true;
            self.requests.send(Request::Advance).map_err(|_| gone())?;
        }
        Ok(())
    }

    fn poll(&mut self) -> bool {
        let mut news = false;
        while let Ok(reply) = self.replies.try_recv() {
            self.take(reply);
            news = true;
        }
        news
    }

    fn status(&self) -> Status {
        if self.advancing {
            return Status::Working("running the next token".into());
        }
        match self.pending.iter().next() {
            Some(site) => Status::Working(format!("computing {site}")),
            None => Status::Idle,
        }
    }

    fn token_text(&self, id: u32) -> String {
        self.tokenizer.as_ref().map_or_else(|| format!("#{id}"), |tokenizer| tokenizer.label(id))
    }
}

/// The worker's side.
struct Worker<'m, B: Backend> {
    session: Session<'m, B>,
    store: Arc<Mutex<Store>>,
    passes: Vec<(PassDims, Vec<u32>)>,
}

impl<B: Backend> Worker<'_, B> {
    /// Runs the prompt, then answers requests until the viewer is gone. Of the frames that were asked for
    /// while it was busy, the latest comes first: that is the one on the screen.
    fn serve(mut self, prompt: Vec<u32>, inbox: &Receiver<Request>, outbox: &Sender<Reply>) {
        let mut next = match self.pass(prompt, outbox) {
            Some(sampled) => sampled,
            None => return,
        };
        while let Ok(first) = inbox.recv() {
            let mut requests = vec![first];
            requests.extend(inbox.try_iter());
            while let Some(request) = requests.pop() {
                let done = match request {
                    Request::Frame(site) => {
                        let result = self.frame(site).map(drop);
                        outbox.send(Reply::Frame(site, result)).is_ok()
                    }
                    Request::Advance => {
                        if let Some(sampled) = self.pass(vec![next], outbox) {
                            next = sampled;
                        }
                        true
                    }
                };
                if !done {
                    return;
                }
                requests.extend(inbox.try_iter());
            }
        }
    }

    /// Runs a pass, keeping what its layers can be run again from, and reports it. None where it failed.
    fn pass(&mut self, ids: Vec<u32>, outbox: &Sender<Reply>) -> Option<u32> {
        let dims = self.session.next_pass(ids.len());
        let select = Select::stages(&[
            Stage::Tokens,
            Stage::Embedding,
            Stage::RopeCos,
            Stage::RopeSin,
            Stage::FfnResidual,
            Stage::Probs,
            Stage::Nucleus,
            Stage::Sampled,
        ]);
        let store = Arc::clone(&self.store);
        let sizes = self.session.model.sizes();
        let mut recorder = Recorder::new(sizes, dims, &select, |frame| lock(&store).keep(frame));
        let result = self.session.run(&ids, &mut recorder);
        drop(recorder);
        let sampled = result.as_ref().ok().copied();
        let reply = result.map(|sampled| {
            self.passes.push((dims, ids.clone()));
            (dims, ids, sampled)
        });
        outbox.send(Reply::Pass(reply)).ok()?;
        sampled
    }

    /// The frame of `site`: from the store, derived, or by running its layer again.
    fn frame(&mut self, site: Site) -> Result<Arc<Frame>> {
        if let Some(frame) = lock(&self.store).get(site) {
            return Ok(frame);
        }
        let missing = || Error::usage(format!("there is no {site} in this run"));
        let Some((dims, _)) = self.passes.get(site.pass) else { return Err(missing()) };
        let dims = *dims;
        let sizes = self.session.model.sizes();
        let in_model = site.layer.is_none_or(|layer| layer < sizes.layers);
        if !site.stage.present(&sizes, dims) || !in_model || site.stage.in_layer() != site.layer.is_some() {
            return Err(missing());
        }
        if is_derivable(site.stage) {
            let precision = self.session.model.backend.precision();
            let frame = derive(site, &sizes, precision, dims, &mut |input| self.frame(input))?;
            return Ok(lock(&self.store).cache(frame));
        }
        self.run_again(site, dims)?;
        lock(&self.store).get(site).ok_or_else(missing)
    }

    /// Runs the layer of `site` (or what comes after the layers) once more, from the kept input, and keeps
    /// every frame of it that cannot be derived.
    fn run_again(&mut self, site: Site, dims: PassDims) -> Result<()> {
        let last = Site::layer(site.pass, self.session.model.config.layers, site.stage);
        let input = self.frame(layer_input(if site.layer.is_some() { site } else { last }))?;
        let Session { model, cache, work, .. } = &mut self.session;
        let ids = &self.passes[site.pass].1;
        forward::begin(model, work, dims, ids, &mut NoProbe)?;
        work.set_input(model, values(&input));

        let stages: Vec<Stage> = Stage::ALL.iter().copied().filter(|stage| !is_derivable(*stage)).collect();
        let (select, store) = (Select::stages(&stages), Arc::clone(&self.store));
        let mut recorder = Recorder::new(model.sizes(), dims, &select, |frame| {
            lock(&store).cache(frame);
        });
        match site.layer {
            Some(layer) => forward::layer(model, cache, work, dims, layer, &mut recorder),
            None => forward::finish(model, work, dims, &mut recorder),
        }
    }
}
