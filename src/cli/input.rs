//! From options to what a run needs: the model, the tokenizer, and the prompt as ids.

use crate::builtin::BUILT_IN;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::device::Device;
use super::hub;
use super::prompt::{self, Prompt};
use super::{CpuArgs, ModelArgs, PrecisionName, RunArgs, SamplingArgs, SelectArgs, tell};
use llama_trace_core::config::{DEFAULT_GROUP, ModelConfig, Precision};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::manifest::Drawing;
use llama_trace_core::trace::select::Extent;
use llama_trace_core::trace::{PassDims, Select, Site, TokenLabel};
use llama_trace_engine::backend::Backend;
use llama_trace_engine::generate::{Batch, Prompts, Sampler, Sampling};
use llama_trace_engine::model::Model;
use llama_trace_formats::checkpoint::{self, Checkpoint};
use llama_trace_formats::files::printable;
use llama_trace_formats::tokenizer::{self, Tokenizer};
use llama_trace_hub::{Need, SparseCopy};

/// Everything that a run starts from.
pub(super) struct Run<D: Device> {
    pub(super) model: Model<D>,
    pub(super) tokenizer: Option<Arc<dyn Tokenizer>>,
    pub(super) eos: Vec<u32>,
    /// What draws for the first prompt; each prompt after it has the next stream of random numbers.
    pub(super) sampler: Sampler,
    /// One or more; the place of each is its sequence's number.
    pub(super) prompts: Vec<Prompt>,
    /// Tokens that the cache is reserved for, where that was asked for.
    pub(super) context: Option<usize>,
    /// Tokens of a prompt that a pass reads at most, where that was asked for.
    pub(super) chunk: Option<usize>,
}

impl<D: Device> Run<D> {
    /// Opens the model and reads the prompts.
    pub(super) fn open(args: &RunArgs) -> Result<Self> {
        let sampler = args.sampling.sampler(args.stream)?;
        let opened = open_for::<D>(&args.model, &args.cpu, args.context)?;
        let config = &opened.checkpoint.config;
        let context = context(args.context, config)?;
        let prompts = prompt::read(args, || opened.reads(), config.context)?;
        opened.say_unread();
        let model = opened.model?;
        recognise(&opened.checkpoint, &args.model, &model);
        let eos = opened.checkpoint.eos;
        Ok(Self { model, tokenizer: opened.tokenizer, eos, sampler, prompts, context, chunk: None })
    }

    /// The same, with passes over so many tokens of a prompt each.
    pub(super) fn in_chunks(self, chunk: Option<usize>) -> Result<Self> {
        match chunk {
            Some(0) => Err(Error::usage("a pass reads a token at least")
                .at("--chunk")
                .expected("1 or more")
                .found(0)
                .next("give another number, or leave --chunk out: one pass reads all of the prompt")),
            chunk => Ok(Self { chunk, ..self }),
        }
    }

    /// Whether there are two prompts or more.
    pub(super) fn several(&self) -> bool {
        self.prompts.len() > 1
    }

    /// A batch of all prompts, each with room for it and `draws` tokens after it.
    pub(super) fn batch(&self, draws: usize) -> Result<Batch<'_, D>> {
        let prompts = Prompts {
            ids: self.prompts.iter().map(|prompt| prompt.ids.clone()).collect(),
            ends: self.eos.clone(),
            draws,
            context: self.context,
            chunk: self.chunk,
            // One alone takes memory as its text grows, and may end long before that is full.
            memory: if self.several() { self.model.backend.free_memory() } else { None },
        };
        let place = |number: usize| self.prompts[number].place.clone();
        Batch::new(&self.model, self.sampler.clone(), prompts, place)
    }

    /// How many passes there are at most, where up to `draws` tokens are drawn after each prompt and all begin at once.
    pub(super) fn most_passes(&self, draws: usize) -> usize {
        self.prompts.iter().map(|prompt| self.count(prompt, draws)).max().unwrap_or(0)
    }

    /// How many passes over one prompt and each token after it the context has room for, where up to `draws` are drawn.
    fn count(&self, prompt: &Prompt, draws: usize) -> usize {
        let room = 1 + self.context.unwrap_or(self.model.config.context).saturating_sub(prompt.ids.len());
        self.chunks(prompt) - 1 + draws.min(room)
    }

    /// How many passes read a prompt.
    fn chunks(&self, prompt: &Prompt) -> usize {
        prompt.ids.len().div_ceil(self.chunk(prompt)).max(1)
    }

    /// How many tokens of a prompt a pass reads at most.
    fn chunk(&self, prompt: &Prompt) -> usize {
        self.chunk.unwrap_or(prompt.ids.len()).max(1)
    }

    /// Pass number `pass` over a prompt that begins with the first of them.
    fn pass(&self, prompt: &Prompt, pass: usize) -> PassDims {
        let (tokens, chunk, chunks) = (prompt.ids.len(), self.chunk(prompt), self.chunks(prompt));
        match pass < chunks {
            true => PassDims { pass, start: pass * chunk, tokens: chunk.min(tokens - pass * chunk) },
            false => PassDims { pass, start: tokens + pass - chunks, tokens: 1 },
        }
    }

    /// The passes over each prompt, where up to `draws` tokens are drawn and all begin at once.
    pub(super) fn passes(&self, draws: usize) -> impl Iterator<Item = PassDims> {
        let passes = move |prompt| (0..self.count(prompt, draws)).map(move |pass| self.pass(prompt, pass));
        self.prompts.iter().flat_map(passes)
    }

    /// The sites that pass number `pass` over a sequence can have: of several that may begin late, a prompt's and a
    /// token's.
    pub(super) fn sites(&self, sequence: usize, pass: usize, batch: &Batch<'_, D>) -> Vec<Site> {
        let (sizes, prompt) = (self.model.sizes(), &self.prompts[sequence]);
        let own = Site::all(&sizes, self.pass(prompt, pass));
        let sites = match pass == 0 || batch.at_once() {
            true => own,
            false => {
                let first = PassDims { pass, ..self.pass(prompt, 0) };
                [Site::all(&sizes, first), own].concat()
            }
        };
        sites.into_iter().map(|site| Site { sequence, ..site }).collect()
    }

    /// The label of a token: its text, or `#id`.
    pub(super) fn label(&self, id: u32) -> TokenLabel {
        let text = self.tokenizer.as_ref().map_or_else(|| format!("#{id}"), |tokenizer| tokenizer.label(id));
        TokenLabel { id, text }
    }
}

impl SamplingArgs {
    /// How to draw, with the defaults of what was left out.
    pub(super) fn sampling(&self) -> Sampling {
        let Self { temperature, top_k, top_p, seed } = *self;
        let default = Sampling::default();
        Sampling {
            temperature,
            top_k: top_k.unwrap_or(default.top_k),
            top_p: top_p.unwrap_or(default.top_p),
            seed: seed.unwrap_or(default.seed),
        }
    }

    /// The same as a manifest and the tracer's title have it, from a stream of random numbers.
    pub(super) fn drawing(&self, stream: u64) -> Drawing {
        Drawing { sampling: self.sampling(), stream }
    }

    /// A sampler at the start of a stream of random numbers. Says which options temperature 0 overrules.
    pub(super) fn sampler(&self, stream: Option<u64>) -> Result<Sampler> {
        let sampler = Sampler::new(self.sampling())?.with_stream(stream.unwrap_or(0));
        let given = [
            ("--top-p", self.top_p.is_some()),
            ("--top-k", self.top_k.is_some()),
            ("--seed", self.seed.is_some()),
            ("--stream", stream.is_some()),
        ];
        let given: Vec<_> = given.into_iter().filter(|(_, given)| *given).map(|(name, _)| name).collect();
        if self.temperature == 0.0 && !given.is_empty() {
            let verb = if given.len() > 1 { "change" } else { "changes" };
            tell(format_args!(
                "{} {verb} nothing at temperature 0, which takes the most likely token; add --temperature 1",
                given.join(", ")
            ));
        }
        Ok(sampler)
    }
}

impl SelectArgs {
    /// What is chosen of a run of `batch`, in which up to `draws` tokens follow each prompt.
    pub(super) fn select<D: Device>(
        &self,
        run: &Run<D>,
        batch: &Batch<'_, D>,
        draws: usize,
        views: bool,
    ) -> Result<Select> {
        let at_once = batch.at_once();
        let most = |draws: usize| match at_once {
            true => run.most_passes(draws),
            // As if each began when the one before it has ended.
            false => run.prompts.iter().map(|prompt| run.count(prompt, draws)).sum(),
        };
        let layers = run.model.sizes().layers;
        let extent = Extent { passes: most(draws), room: most(usize::MAX), layers, views };
        let select =
            Select::parse(self.pass.as_deref(), self.layer.as_deref(), self.stage.as_deref(), &extent)?;
        if at_once {
            // Of those that begin later nobody knows yet which stages a pass has.
            select.check(&run.model.card(), &run.passes(draws).collect::<Vec<_>>())?;
        }
        Ok(select)
    }
}

/// Runs `command` on one of the threads that compute: from there work is shared out without waking a thread only to
/// have this one wait for it. The command must not wait for another thread that computes: it may have taken the last.
pub(super) fn on_a_computing_thread<R: Send>(command: impl FnOnce() -> R + Send) -> R {
    rayon::scope(|_| command())
}

/// Copies the weights into huge pages where that was asked for, and says what came of it.
pub(super) fn copy_to_huge_pages(checkpoint: &mut Checkpoint, cpu: &CpuArgs) -> Result<()> {
    if cpu.huge_pages {
        tell(format_args!("--huge-pages: {}", checkpoint.copy_to_huge_pages()?));
    }
    Ok(())
}

/// Hands the checkpoint to the device.
fn load<D: Device>(
    checkpoint: &Checkpoint,
    args: &ModelArgs,
    cpu: &CpuArgs,
    context: Option<usize>,
) -> Result<Model<D>> {
    let device = D::start(cpu, precision(args, checkpoint))?;
    device.check_room(checkpoint, context, 0)?;
    device.load(checkpoint)
}

/// The model once more with other options, beside one that runs. What there is to warn of was said of that one.
pub(super) fn load_quietly<D: Device>(args: &ModelArgs, cpu: &CpuArgs) -> Result<Model<D>> {
    let (checkpoint, _) = open_silently(args, Need::Model)?;
    load(&checkpoint, args, cpu, None)
}

/// How many tokens the cache is reserved for, where that was asked for.
pub(super) fn context(asked: Option<usize>, config: &ModelConfig) -> Result<Option<usize>> {
    match asked {
        Some(tokens) if tokens == 0 || tokens > config.context => {
            Err(Error::usage("the model has no context of this length")
                .at("--context")
                .expected(format!("a number from 1 to {}, the model's own", config.context))
                .found(tokens)
                .next("leave --context out: what is needed is reserved"))
        }
        asked => Ok(asked),
    }
}

/// Says where a context that nobody limited was cut to the memory that is free.
pub(super) fn say_cut(capacity: usize, asked: Option<usize>, config: &ModelConfig) {
    if asked.is_none() && capacity < config.context {
        tell(format_args!(
            "Memory is free for a context of {capacity} of the model's {} tokens; --context asks for another number.",
            config.context
        ));
    }
}

/// Says of `sequences` that no more tokens fit.
pub(super) fn say_full<D: Device>(run: &Run<D>, sequences: &[usize]) {
    if sequences.is_empty() {
        return;
    }
    let which = if run.several() { listed(sequences) + ": " } else { String::new() };
    let context = run.model.config.context;
    match run.context {
        Some(reserved) if reserved < context => {
            let tokens = if reserved == 1 { "token" } else { "tokens" };
            tell(format_args!(
                "{which}The context of {reserved} {tokens} that --context reserved is full; the model's has {context}."
            ));
        }
        _ => tell(format_args!("{which}The model's context of {context} tokens is full.")),
    }
}

/// s0, s4, s5, and 6 more
fn listed(sequences: &[usize]) -> String {
    const NAMED: usize = 8;
    let mut names: Vec<_> = sequences.iter().take(NAMED).map(|number| format!("s{number}")).collect();
    if sequences.len() > NAMED {
        names.push(format!("and {} more", sequences.len() - NAMED));
    }
    names.join(", ")
}

/// Of a model that was named, says in one line what it was taken for.
pub(super) fn recognise(checkpoint: &Checkpoint, args: &ModelArgs, model: &Model<impl Backend>) {
    if args.model.is_some() {
        let ModelConfig { layers, dim, heads, vocab, .. } = checkpoint.config;
        tell(format_args!(
            "{} ({}): {layers} layer{}, width {dim}, {heads} head{}, {vocab} tokens; precision {}",
            printable(&checkpoint.name),
            checkpoint.format,
            plural(layers),
            plural(heads),
            model.backend.precision().name()
        ));
    }
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// The arithmetic that was asked for, or that the weights are made for.
pub(super) fn precision(args: &ModelArgs, checkpoint: &Checkpoint) -> Precision {
    match (args.precision, checkpoint.group()) {
        (Some(PrecisionName::F32), _) | (None, None) => Precision::F32,
        (Some(PrecisionName::Bf16), _) => Precision::Bf16,
        (Some(PrecisionName::Q8) | None, group) => Precision::Q8 { group: group.unwrap_or(DEFAULT_GROUP) },
    }
}

/// The configuration of the model that was named.
pub(super) fn config(args: &ModelArgs) -> Result<ModelConfig> {
    Ok(open_checkpoint(args, Need::Headers)?.0.config)
}

/// Opens the checkpoint, with what the options change in its configuration.
fn open_checkpoint(args: &ModelArgs, need: Need) -> Result<(Checkpoint, Option<SparseCopy>)> {
    let (checkpoint, sparse) = open_silently(args, need)?;
    for line in checkpoint.notes.lines() {
        tell(format_args!("warning: {line}"));
    }
    Ok((checkpoint, sparse))
}

/// What the model takes, to choose a device by: its checkpoint, and the arithmetic that it would run in. Whoever opens
/// it then says what there is to warn of.
pub(super) fn open_quietly(args: &ModelArgs) -> Result<(Checkpoint, Precision)> {
    let (checkpoint, _) = open_silently(args, Need::Headers)?;
    let precision = precision(args, &checkpoint);
    Ok((checkpoint, precision))
}

fn open_silently(args: &ModelArgs, need: Need) -> Result<(Checkpoint, Option<SparseCopy>)> {
    let place = hub::locate(args, need)?;
    let mut checkpoint = match &place.path {
        Some(path) => checkpoint::open_ignoring(path, &args.ignore_config)?,
        None => BUILT_IN.open(&args.ignore_config)?,
    };
    if let Some(name) = place.name {
        // The folder's own name there is a commit.
        checkpoint.name = name;
    }
    if let Some(factor) = args.rope_factor {
        checkpoint.config.set_rope_factor(factor)?;
    }
    checkpoint.ablate(&args.without)?;
    Ok((checkpoint, place.sparse))
}

/// A model with its tokenizer.
pub(super) struct Opened<D: Device> {
    pub(super) checkpoint: Checkpoint,
    pub(super) tokenizer: Option<Arc<dyn Tokenizer>>,
    /// Why the model's own tokenizer cannot be read, which stops no run on ids.
    pub(super) unread: Option<Error>,
    /// How long the tokenizer took.
    pub(super) tokenizer_time: Duration,
    /// The model, or why there is none: what is wrong with the prompt is to be said first.
    pub(super) model: Result<Model<D>>,
    /// How long opening the file and loading the model took, on another thread than the tokenizer.
    pub(super) model_time: Duration,
}

impl<D: Device> Opened<D> {
    /// The tokenizer, where texts can be read.
    ///
    /// # Errors
    /// Why they cannot.
    pub(super) fn reads(&self) -> Result<&dyn Tokenizer> {
        let unread = || self.unread.clone().unwrap_or_else(prompt::no_tokenizer);
        self.tokenizer.as_deref().ok_or_else(unread)
    }

    /// Says where tokens have no text because the tokenizer cannot be read.
    pub(super) fn say_unread(&self) {
        if let Some(error) = &self.unread {
            tell(format_args!("warning: tokens are shown as ids: {error}"));
        }
    }
}

/// Opens the checkpoint; loads the model, and on another thread the tokenizer that belongs to it.
pub(super) fn open<D: Device>(args: &ModelArgs, cpu: &CpuArgs) -> Result<Opened<D>> {
    open_for(args, cpu, None)
}

/// The same, for a context of so many tokens.
pub(super) fn open_for<D: Device>(
    args: &ModelArgs,
    cpu: &CpuArgs,
    context: Option<usize>,
) -> Result<Opened<D>> {
    let started = Instant::now();
    let mut checkpoint = open_checkpoint(args, Need::Model)?.0;
    copy_to_huge_pages(&mut checkpoint, cpu)?;
    let (tokenizer, (model, model_time)) = std::thread::scope(|scope| {
        let find = || {
            let started = Instant::now();
            (tokenizer_of(&checkpoint, args), started.elapsed())
        };
        let tokenizer = std::thread::Builder::new().spawn_scoped(scope, find);
        let model = load(&checkpoint, args, cpu, context);
        let model = (model, started.elapsed());
        // Where the system gives no thread, the one comes after the other.
        (tokenizer.map_or_else(|_| Ok(find()), std::thread::ScopedJoinHandle::join), model)
    });
    let (tokenizer, tokenizer_time) = tokenizer.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let (tokenizer, unread) = or_unread(tokenizer, args)?;
    take_ends(&mut checkpoint, tokenizer.as_deref());
    Ok(Opened { checkpoint, tokenizer, unread, tokenizer_time, model, model_time })
}

/// A tokenizer, if there is one, or why the model's own cannot be read.
type Readable = (Option<Arc<dyn Tokenizer>>, Option<Error>);

/// The tokenizer that was found, or why the model's own cannot be read. One that was named must be right.
fn or_unread(found: Result<Option<Box<dyn Tokenizer>>>, args: &ModelArgs) -> Result<Readable> {
    match found {
        Ok(tokenizer) => Ok((tokenizer.map(Arc::from), None)),
        Err(error @ Error::Model(_)) if args.tokenizer.is_none() => Ok((None, Some(error))),
        Err(error) => Err(error),
    }
}

/// The tokenizer that was named, or that belongs to the checkpoint.
fn tokenizer_of(checkpoint: &Checkpoint, args: &ModelArgs) -> Result<Option<Box<dyn Tokenizer>>> {
    tokenizer::find(&checkpoint.vocabulary(), &checkpoint.config, args.tokenizer.as_deref())
}

/// The ends of a text that the tokenizer knows, where the checkpoint names none.
fn take_ends(checkpoint: &mut Checkpoint, tokenizer: Option<&dyn Tokenizer>) {
    if let Some(tokenizer) = tokenizer.filter(|_| checkpoint.eos.is_empty()) {
        checkpoint.eos = tokenizer.ends();
    }
}

/// A checkpoint to be looked at, not run.
pub(super) struct Look {
    pub(super) checkpoint: Checkpoint,
    /// Its tokenizer, where it has one.
    pub(super) tokenizer: Option<Arc<dyn Tokenizer>>,
    /// Why that cannot be read.
    pub(super) unread: Option<Error>,
    /// What it was opened from, where its values are still on the hub.
    pub(super) sparse: Option<SparseCopy>,
}

/// Opens the checkpoint, without fetching its values, and its tokenizer.
pub(super) fn open_to_look(args: &ModelArgs) -> Result<Look> {
    let (mut checkpoint, sparse) = open_checkpoint(args, Need::Headers)?;
    // What a run would refuse is no model to look at.
    checkpoint.check_weights()?;
    let (tokenizer, unread) = or_unread(tokenizer_of(&checkpoint, args), args)?;
    take_ends(&mut checkpoint, tokenizer.as_deref());
    Ok(Look { checkpoint, tokenizer, unread, sparse })
}

fn find_tokenizer(
    mut checkpoint: Checkpoint,
    args: &ModelArgs,
) -> Result<(Checkpoint, Option<Arc<dyn Tokenizer>>)> {
    let tokenizer = tokenizer_of(&checkpoint, args)?.map(Arc::from);
    take_ends(&mut checkpoint, tokenizer.as_deref());
    Ok((checkpoint, tokenizer))
}

/// The tokenizer of the model that was named, where it has one: whoever opens the model says what there is to say.
pub(super) fn tokenizer_quietly(args: &ModelArgs) -> Option<Arc<dyn Tokenizer>> {
    let (checkpoint, _) = open_silently(args, Need::Headers).ok()?;
    tokenizer_of(&checkpoint, args).ok()?.map(Arc::from)
}

/// The tokenizer alone: the file that was named, or the model's.
pub(super) fn open_tokenizer(args: &ModelArgs) -> Result<Arc<dyn Tokenizer>> {
    if let (None, Some(path)) = (&args.model, &args.tokenizer) {
        return tokenizer::open(path).map(Arc::from);
    }
    if hub::name(args).is_some() {
        // Nobody fetches gigabytes to see the tokens of a text.
        let path = match &args.tokenizer {
            Some(path) => Some(path.clone()),
            None => hub::locate(args, Need::Tokenizer)?.path,
        };
        return path
            .map_or_else(|| Err(prompt::no_tokenizer()), |path| tokenizer::open(&path).map(Arc::from));
    }
    let (checkpoint, tokenizer) = find_tokenizer(open_checkpoint(args, Need::Model)?.0, args)?;
    let tokenizer = tokenizer.ok_or_else(prompt::no_tokenizer)?;
    if args.model.is_some() {
        let Checkpoint { name, format, .. } = &checkpoint;
        tell(format_args!(
            "{} ({format}): a tokenizer of {} tokens",
            printable(name),
            tokenizer.vocab_size()
        ));
    }
    Ok(tokenizer)
}
