//! `diff --a --b`: two live runs, each on its own thread. They send their stages as they compute them, and each waits
//! for the other.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, Scope};

use rayon::{ThreadPool, ThreadPoolBuilder};

use super::super::device::{Room, needs};
use super::super::edited;
use super::super::{DeviceName, DiffArgs, prompt};
use super::judged::verdict;
use super::setting::Setting;
use super::{Bar, beside, sample};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::{Frame, NoProbe, PassDims, Recorder, Select, Site, Source, TokenLabel};
use llama_trace_engine::generate::{Next, Sampler, Sampling, Session};
use llama_trace_engine::model::Model;
use llama_trace_formats::tokenizer::Tokenizer;
use llama_trace_judge::diff::{self, About, Found, Pass, Traced};
use llama_trace_runs::replay::{DEFAULT_MEMORY, Live, Start};

/// Maximum number of frames by which one run is ahead of the other.
const AHEAD: usize = 2;

/// A run that is ready to start.
struct Ready {
    model: Model,
    tokenizer: Option<Arc<dyn Tokenizer>>,
    /// The tokens of the prompt.
    ids: Vec<u32>,
    pool: Option<ThreadPool>,
    setting: Setting,
    /// Bytes that the run will allocate on GPU 0.
    to_allocate: usize,
}

/// A message from a run's thread.
type Sent = Result<Frame>;

/// A run that is compared while it is recorded.
struct Recording {
    about: About,
    frames: Receiver<Sent>,
    /// Frames that came before `diff` asked for them.
    early: HashMap<Site, Arc<Frame>>,
}

/// Runs both settings on the devices that their options name.
pub(super) fn run(args: &DiffArgs) -> Result<()> {
    if args.tui {
        super::require_terminal()?;
    }
    let (a, b) = (Setting::read("a", args, &args.set_a)?, Setting::read("b", args, &args.set_b)?);
    let text = prompt::only(args.prompt.as_deref().unwrap_or(prompt::DEFAULT_PROMPT))?;
    let a = Ready::open(args, &text, a, 0)?;
    let b = Ready::open(args, &text, b, a.to_allocate)?;
    let decoded = a.pooled(|| a.decoded(args.tokens.unwrap_or(1).max(1)))?;
    let bar = Bar::default();
    let (report, about_a, about_b) = thread::scope(|scope| {
        // If one run ends early, the channel of the other run closes, so the other run ends too.
        let two = a.setting.own_model || b.setting.own_model;
        let (mut a_runs, mut b_runs) =
            (a.start(scope, a.passes(&decoded), two)?, b.start(scope, b.passes(&decoded), two)?);
        let shown = |doing| bar.show(doing);
        // Two different models are compared with each other. Otherwise the one model is the reference for both
        // runs.
        let same = a_runs.about.fingerprint == b_runs.about.fingerprint;
        let report = match two && !same {
            true => diff::compare(&mut a_runs, &mut b_runs, &shown),
            false => diff::compare_with(&a.model, &mut a_runs, &mut b_runs, sample(args), &shown),
        }?;
        Ok::<_, Error>((report, a_runs.about, b_runs.about))
    })?;
    bar.finish();
    if args.tui {
        let verdict = verdict(&report, [&about_a.name, &about_b.name]);
        let runs = [a.live(&decoded)?, b.live(&decoded)?];
        return beside::show_runs(runs, decoded.len() + 1, verdict);
    }
    super::print(args.format, &report, [&about_a, &about_b])
}

impl Ready {
    /// The same run as a source for the viewer.
    fn live(self, decoded: &[u32]) -> Result<Box<dyn Source>> {
        let start = Start {
            draws: decoded.len() + 1,
            context: Some(self.ids.len() + decoded.len() + 1),
            ids: self.ids,
            sampler: Sampler::new(Sampling::default())?,
            tokenizer: self.tokenizer,
            eos: Vec::new(),
            memory: DEFAULT_MEMORY / 2,
        };
        Ok(Box::new(Live::start_forced(Arc::new(self.model), start, decoded.to_vec())?))
    }

    /// Opens the model. Another run will allocate `beside` bytes on GPU 0.
    fn open(args: &DiffArgs, text: &str, setting: Setting, beside: usize) -> Result<Self> {
        let opened = edited::open(&setting.model, &setting.cpu, Room { context: None, beside })?;
        let context = opened.checkpoint.config.context;
        let ids = match &args.ids {
            Some(list) => prompt::read_ids(list)?,
            None => prompt::encode(text, opened.reads(), context)?,
        };
        opened.say_unread();
        let tokenizer = opened.tokenizer;
        let ((model, device), mut pool) = (opened.model?, None);
        let needs = needs(&opened.checkpoint, model.backend.precision(), None);
        // The weights are already allocated.
        let to_allocate = if device == DeviceName::Cuda(0) { needs.total() - needs.weights } else { 0 };
        if let Some(threads) = setting.threads {
            let built = ThreadPoolBuilder::new().num_threads(threads).build();
            pool = Some(built.map_err(|error| {
                Error::usage("the threads cannot be started").found(error).next("ask for fewer threads")
            })?);
        }
        Ok(Self { model, tokenizer, ids, pool, setting, to_allocate })
    }

    /// Runs `work` on the run's thread pool.
    fn pooled<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match &self.pool {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }

    fn session(&self, tokens: usize) -> Result<Session<'_>> {
        Session::with_capacity(&self.model, Sampler::new(Sampling::default())?, tokens)
    }

    /// The tokens that this run samples and then reads. Both runs read these tokens, so that their passes can be
    /// compared.
    fn decoded(&self, draws: usize) -> Result<Vec<u32>> {
        let mut session = self.session(self.ids.len() + draws)?;
        session.begin(self.ids.clone(), &[], draws)?;
        let mut decoded = Vec::new();
        while decoded.len() + 1 < draws && matches!(session.next(), Next::Pass(_)) {
            decoded.push(session.pass(&mut NoProbe)?);
        }
        Ok(decoded)
    }

    /// The pass over the prompt, and a pass over each decoded token for which the context has room.
    fn passes(&self, decoded: &[u32]) -> Vec<Pass> {
        let label = |id: u32| {
            let text =
                self.tokenizer.as_ref().map_or_else(|| format!("#{id}"), |tokenizer| tokenizer.label(id));
            TokenLabel { id, text }
        };
        let first = self.ids.iter().copied().map(label).collect::<Vec<_>>();
        let (tokens, room) = (first.len(), self.model.config.context.saturating_sub(first.len()));
        let after = decoded.iter().take(room).enumerate().map(|(i, &id)| Pass {
            dims: PassDims { pass: i + 1, start: tokens + i, tokens: 1, ..PassDims::default() },
            tokens: vec![label(id)],
        });
        let first =
            Pass { dims: PassDims { pass: 0, start: 0, tokens, ..PassDims::default() }, tokens: first };
        std::iter::once(first).chain(after).collect()
    }

    /// Starts the recorded run on its own thread. With `weights`, its description has a fingerprint of the weights.
    fn start<'scope, 'env>(
        &'env self,
        scope: &'scope Scope<'scope, 'env>,
        passes: Vec<Pass>,
        weights: bool,
    ) -> Result<Recording> {
        let card = self.model.card();
        let about = About {
            name: self.setting.name.clone(),
            precision: Some(card.precision),
            card: Some(card),
            cache: Some(self.model.backend.cache_dtype()),
            fingerprint: if weights { Some(self.model.fingerprint()?.weights) } else { None },
            sampling: Some(Sampling::default()),
            passes: passes.clone(),
            ..About::default()
        };
        let (send, frames) = sync_channel(AHEAD);
        let record = move || {
            if let Err(error) = self.pooled(|| self.record(&passes, &send)) {
                drop(send.send(Err(error)));
            }
        };
        let started = thread::Builder::new().spawn_scoped(scope, record);
        started.map_err(|error| Error::no_thread("to run a model on", &error))?;
        Ok(Recording { about, frames, early: HashMap::new() })
    }

    /// Runs the passes and sends every stage.
    fn record(&self, passes: &[Pass], send: &SyncSender<Sent>) -> Result<()> {
        let tokens = passes.iter().map(|pass| pass.dims.tokens).sum();
        let (mut session, select) = (self.session(tokens)?, Select::all());
        for pass in passes {
            let ids: Vec<u32> = pass.tokens.iter().map(|token| token.id).collect();
            let mut gone = false;
            // If the receiver is gone, this pass is the last one.
            let sink = |frame: Frame| gone |= send.send(Ok(frame)).is_err();
            session.run(&ids, &mut Recorder::new(self.model.sizes(), pass.dims, &select, sink))?;
            if gone {
                break;
            }
        }
        Ok(())
    }
}

impl Traced for Recording {
    fn about(&self) -> &About {
        &self.about
    }

    fn stage(&mut self, site: Site) -> Result<Found> {
        loop {
            if let Some(frame) = self.early.remove(&site) {
                return Ok(Found::Frame(frame));
            }
            match self.frames.recv() {
                Ok(frame) => {
                    let frame = frame?;
                    self.early.insert(frame.site, Arc::new(frame));
                }
                // The run is over.
                Err(_) => return Ok(Found::Missing),
            }
        }
    }
}
