//! Turns options into the parts of a run: the model, the tokenizer, and the prompt as ids.

use crate::builtin::BUILT_IN;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::device::{Device, Room};
use super::edits;
use super::hub::{self, Need, SparseCopy};
use super::prompt::{self, Prompt};
use super::{
    CpuArgs, DeviceName, ModelArgs, PrecisionName, RunArgs, SamplingArgs, SelectArgs, tell, threads,
};
use llama_trace_core::config::{DEFAULT_GROUP, ModelConfig, Precision};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::manifest::Drawing;
use llama_trace_core::trace::select::Extent;
use llama_trace_core::trace::{PassDims, Select, Site, TokenLabel};
use llama_trace_engine::generate::{Batch, Prompts, Sampler, Sampling};
use llama_trace_engine::model::Model;
use llama_trace_formats::checkpoint::{self, Checkpoint};
use llama_trace_formats::files::printable;
use llama_trace_formats::tokenizer::{self, Tokenizer};

/// The parts that a run starts from.
pub(super) struct Run {
    pub(super) model: Model,
    pub(super) tokenizer: Option<Arc<dyn Tokenizer>>,
    pub(super) eos: Vec<u32>,
    /// The sampler of the first prompt. Each later prompt has the next stream of random numbers.
    pub(super) sampler: Sampler,
    /// The prompts, at least one. The index of a prompt is the number of its sequence.
    pub(super) prompts: Vec<Prompt>,
    /// Capacity of the KV cache in tokens, if `--context` is given.
    pub(super) context: Option<usize>,
    /// Maximum number of prompt tokens in one pass, if given.
    pub(super) chunk: Option<usize>,
}

impl Run {
    /// Opens the model and reads the prompts.
    pub(super) fn open(args: &RunArgs) -> Result<Self> {
        let sampler = args.sampling.sampler(args.stream)?;
        let room = Room { context: args.context, beside: 0 };
        let opened = open_for(&args.model, &args.cpu, room)?;
        let config = &opened.checkpoint.config;
        let context = context(args.context, config)?;
        let prompts = prompt::read(args, || opened.reads(), config.context)?;
        opened.say_unread();
        let (model, _) = opened.model?;
        recognise(&opened.checkpoint, &args.model, &model);
        let (eos, tokenizer) = (opened.checkpoint.eos, opened.tokenizer);
        Ok(Self { model, tokenizer, eos, sampler, prompts, context, chunk: None })
    }

    /// The sequence and the sizes of each pass. Up to `draws` tokens follow each prompt.
    pub(super) fn passes_by_sequence(&self, draws: usize) -> Vec<(usize, PassDims)> {
        let passes = |(sequence, prompt)| {
            let passes = 0..self.count(prompt, draws);
            passes.map(move |pass| (sequence, self.pass(prompt, pass)))
        };
        self.prompts.iter().enumerate().flat_map(passes).collect()
    }

    /// Reports what the edits changed.
    pub(super) fn say_edits(&self) -> Result<()> {
        edits::report(&self.model, self.tokenizer.as_deref(), self.prompts.first(), self.chunk)
    }

    /// The same run, with passes over at most `chunk` tokens of a prompt.
    pub(super) fn in_chunks(self, chunk: Option<usize>) -> Result<Self> {
        match chunk {
            Some(0) => Err(Error::usage("a pass reads at least one token")
                .at("--chunk")
                .expected("1 or more")
                .found(0)
                .next("give another number, or leave --chunk out: one pass reads all of the prompt")),
            chunk => Ok(Self { chunk, ..self }),
        }
    }

    /// Returns whether there are several prompts.
    pub(super) fn several(&self) -> bool {
        self.prompts.len() > 1
    }

    /// A batch of all prompts. Each has room for the prompt and for `draws` tokens after it.
    pub(super) fn batch(&self, draws: usize) -> Result<Batch<'_>> {
        let prompts = Prompts {
            ids: self.prompts.iter().map(|prompt| prompt.ids.clone()).collect(),
            ends: self.eos.clone(),
            draws,
            context: self.context,
            chunk: self.chunk,
            // A single text takes memory as it grows, and may end long before the context is full.
            memory: if self.several() { self.model.backend.free_memory() } else { None },
        };
        let place = |number: usize| self.prompts[number].place.clone();
        Batch::new(&self.model, self.sampler.clone(), prompts, place)
    }

    /// The largest number of passes of a sequence, if up to `draws` tokens are sampled after each prompt and all
    /// sequences start together.
    pub(super) fn most_passes(&self, draws: usize) -> usize {
        self.prompts.iter().map(|prompt| self.count(prompt, draws)).max().unwrap_or(0)
    }

    /// The number of passes over one prompt and over the tokens sampled after it. At most `draws` tokens are sampled,
    /// and only as many as the context holds.
    fn count(&self, prompt: &Prompt, draws: usize) -> usize {
        let room = 1 + self.context.unwrap_or(self.model.config.context).saturating_sub(prompt.ids.len());
        self.chunks(prompt) - 1 + draws.min(room)
    }

    /// The number of passes that read a prompt.
    fn chunks(&self, prompt: &Prompt) -> usize {
        prompt.ids.len().div_ceil(self.chunk(prompt)).max(1)
    }

    /// Maximum number of prompt tokens in one pass.
    fn chunk(&self, prompt: &Prompt) -> usize {
        self.chunk.unwrap_or(prompt.ids.len()).max(1)
    }

    /// The sizes of pass `pass` of a prompt whose first pass is pass 0.
    fn pass(&self, prompt: &Prompt, pass: usize) -> PassDims {
        let (tokens, chunk, chunks) = (prompt.ids.len(), self.chunk(prompt), self.chunks(prompt));
        let filters = self.sampler.sampling().filters();
        match pass < chunks {
            true => PassDims { pass, start: pass * chunk, tokens: chunk.min(tokens - pass * chunk), filters },
            false => PassDims { pass, start: tokens + pass - chunks, tokens: 1, filters },
        }
    }

    /// The passes of all prompts, if up to `draws` tokens are sampled after each and all sequences start together.
    pub(super) fn passes(&self, draws: usize) -> impl Iterator<Item = PassDims> {
        let passes = move |prompt| (0..self.count(prompt, draws)).map(move |pass| self.pass(prompt, pass));
        self.prompts.iter().flat_map(passes)
    }

    /// The sites that pass `pass` of a sequence can have. If some sequences wait for others, this one may start late.
    /// Its pass may then read a prompt or a single token.
    pub(super) fn sites(&self, sequence: usize, pass: usize, batch: &Batch<'_>) -> Vec<Site> {
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
    /// The sampling options, with defaults for options that are not given.
    pub(super) fn sampling(&self) -> Sampling {
        let Self { temperature, top_k, top_p, min_p, typical_p, repetition_penalty, seed } = *self;
        let default = Sampling::default();
        Sampling {
            temperature,
            top_k: top_k.unwrap_or(default.top_k),
            top_p: top_p.unwrap_or(default.top_p),
            min_p: min_p.unwrap_or(default.min_p),
            typical_p: typical_p.unwrap_or(default.typical_p),
            repetition_penalty: repetition_penalty.unwrap_or(default.repetition_penalty),
            seed: seed.unwrap_or(default.seed),
        }
    }

    /// The sampling options and the stream of random numbers, in the form for manifests and for the tracer's title.
    pub(super) fn drawing(&self, stream: u64) -> Drawing {
        Drawing { sampling: self.sampling(), stream }
    }

    /// A sampler at the start of a stream of random numbers. Warns about options that have no effect at temperature 0.
    pub(super) fn sampler(&self, stream: Option<u64>) -> Result<Sampler> {
        let sampler = Sampler::new(self.sampling())?.with_stream(stream.unwrap_or(0));
        let given = [
            ("--top-p", self.top_p.is_some()),
            ("--top-k", self.top_k.is_some()),
            ("--min-p", self.min_p.is_some()),
            ("--typical-p", self.typical_p.is_some()),
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
    /// The selected sites of a run of `batch`. Up to `draws` tokens follow each prompt.
    pub(super) fn select(&self, run: &Run, batch: &Batch<'_>, draws: usize, views: bool) -> Result<Select> {
        let at_once = batch.at_once();
        let most = |draws: usize| match at_once {
            true => run.most_passes(draws),
            // The latest possible start: each sequence begins when the one before it has ended.
            false => run.prompts.iter().map(|prompt| run.count(prompt, draws)).sum(),
        };
        let layers = run.model.sizes().layers;
        let extent = Extent { passes: most(draws), room: most(usize::MAX), layers, views };
        let select =
            Select::parse(self.pass.as_deref(), self.layer.as_deref(), self.stage.as_deref(), &extent)?;
        if at_once {
            // If sequences wait for others, it is not known yet which stages their passes have.
            select.check(&run.model.card(), &run.passes(draws).collect::<Vec<_>>())?;
        }
        Ok(select)
    }
}

/// Runs `command` on a compute thread. A compute thread can split work itself. Any other thread would have to wake a
/// compute thread first and wait for it. The command must not wait for another compute thread, because it may run on
/// the only free one.
pub(super) fn on_a_computing_thread<R: Send>(command: impl FnOnce() -> R + Send) -> R {
    rayon::scope(|_| command())
}

/// Copies the weights into huge pages if `--huge-pages` is given, and reports the result.
pub(super) fn copy_to_huge_pages(checkpoint: &mut Checkpoint, cpu: &CpuArgs) -> Result<()> {
    if cpu.huge_pages {
        tell(format_args!("--huge-pages: {}", checkpoint.copy_to_huge_pages()?));
    }
    Ok(())
}

/// A model, and the device that it is on, which is never `auto`.
type Loaded = (Model, DeviceName);

/// Loads the checkpoint on the device that the options choose.
fn load(checkpoint: &Checkpoint, args: &ModelArgs, cpu: &CpuArgs, room: Room) -> Result<Loaded> {
    let device = Device::choose(cpu, checkpoint, precision(args, checkpoint), room)?;
    let name = device.name();
    Ok((device.load(checkpoint)?, name))
}

/// The capacity of the KV cache in tokens, if given.
pub(super) fn context(asked: Option<usize>, config: &ModelConfig) -> Result<Option<usize>> {
    match asked {
        Some(tokens) if tokens == 0 || tokens > config.context => {
            Err(Error::usage("the model has no context of this length")
                .at("--context")
                .expected(format!("a number from 1 to {}, the model's own context", config.context))
                .found(tokens)
                .next("leave --context out to reserve what the run needs"))
        }
        asked => Ok(asked),
    }
}

/// Reports a context that was reduced to fit the free memory, if no limit was given.
pub(super) fn say_cut(capacity: usize, asked: Option<usize>, config: &ModelConfig) {
    if asked.is_none() && capacity < config.context {
        tell(format_args!(
            "The free memory is enough for a context of {capacity} tokens; the model's own context has {} tokens. --context sets another number.",
            config.context
        ));
    }
}

/// Reports that the contexts of `sequences` are full.
pub(super) fn say_full(run: &Run, sequences: &[usize]) {
    if sequences.is_empty() {
        return;
    }
    let which = if run.several() { listed(sequences) + ": " } else { String::new() };
    let context = run.model.config.context;
    match run.context {
        Some(reserved) if reserved < context => {
            let tokens = if reserved == 1 { "token" } else { "tokens" };
            tell(format_args!(
                "{which}The context of {reserved} {tokens} that --context reserved is full; the model's own context has {context} tokens."
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

/// Reports in one line what the program recognised in the named model, and in another line a kernel with other bits.
pub(super) fn recognise(checkpoint: &Checkpoint, args: &ModelArgs, model: &Model) {
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
    if !model.backend.arithmetic().is_fused() {
        tell(
            "kernel wasm: it rounds each product, so values differ from those of other kernels in the last bits",
        );
    }
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// The precision of `--precision`, or else the precision that the weights were made for.
pub(super) fn precision(args: &ModelArgs, checkpoint: &Checkpoint) -> Precision {
    match (args.precision, checkpoint.group()) {
        (Some(PrecisionName::F32), _) | (None, None) => Precision::F32,
        (Some(PrecisionName::Bf16), _) => Precision::Bf16,
        (Some(PrecisionName::Q8) | None, group) => Precision::Q8 { group: group.unwrap_or(DEFAULT_GROUP) },
    }
}

/// The configuration of the named model. Prints no warnings.
pub(super) fn config_quietly(args: &ModelArgs) -> Result<ModelConfig> {
    Ok(open_silently(args, Need::Headers)?.0.config)
}

/// The configuration of the named model.
pub(super) fn config(args: &ModelArgs) -> Result<ModelConfig> {
    Ok(open_checkpoint(args, Need::Headers)?.0.config)
}

/// Opens the checkpoint and applies the options that change its configuration.
fn open_checkpoint(args: &ModelArgs, need: Need) -> Result<(Checkpoint, Option<SparseCopy>)> {
    let (checkpoint, sparse) = open_silently(args, need)?;
    for line in checkpoint.notes.lines() {
        tell(format_args!("warning: {line}"));
    }
    edits::check(args, &checkpoint, precision(args, &checkpoint))?;
    Ok((checkpoint, sparse))
}

fn open_silently(args: &ModelArgs, need: Need) -> Result<(Checkpoint, Option<SparseCopy>)> {
    let place = hub::locate(args, need)?;
    let mut checkpoint = match &place.path {
        Some(path) => checkpoint::open_ignoring(path, &args.ignore_config)?,
        None => BUILT_IN.open(&args.ignore_config)?,
    };
    if let Some(name) = place.name {
        // In the hub's cache, the folder is named after a commit.
        checkpoint.name = name;
    }
    if let Some(factor) = args.rope_factor {
        checkpoint.config.set_rope_factor(factor)?;
    }
    Ok((checkpoint, place.sparse))
}

/// The model again, in the precision of `args`. Prints nothing, because the tracer has the screen.
pub(super) fn reload(args: &ModelArgs, cpu: &CpuArgs) -> Result<Model> {
    let checkpoint = open_silently(args, Need::Model)?.0;
    Ok(load(&checkpoint, args, cpu, Room::default())?.0)
}

/// A model with its tokenizer.
pub(super) struct Opened {
    pub(super) checkpoint: Checkpoint,
    pub(super) tokenizer: Option<Arc<dyn Tokenizer>>,
    /// The error of the model's own tokenizer. A run on ids does not need it.
    pub(super) unread: Option<Error>,
    /// Time to load the tokenizer.
    pub(super) tokenizer_time: Duration,
    /// The model or its error. Errors of the prompt are reported before this error.
    pub(super) model: Result<Loaded>,
    /// Time to open the file and load the model. This runs on another thread than loading the tokenizer.
    pub(super) model_time: Duration,
}

impl Opened {
    /// The tokenizer, if there is one.
    ///
    /// # Errors
    /// The error of the model's own tokenizer.
    pub(super) fn reads(&self) -> Result<&dyn Tokenizer> {
        let unread = || self.unread.clone().unwrap_or_else(prompt::no_tokenizer);
        self.tokenizer.as_deref().ok_or_else(unread)
    }

    /// Warns that tokens have no text if the tokenizer cannot be read.
    pub(super) fn say_unread(&self) {
        if let Some(error) = &self.unread {
            tell(format_args!("warning: tokens are shown as ids: {error}"));
        }
    }
}

/// Opens the checkpoint. Loads the model without edits and, on another thread, its tokenizer.
pub(super) fn open(args: &ModelArgs, cpu: &CpuArgs) -> Result<Opened> {
    open_for(args, cpu, Room::default())
}

/// As [`open`], for a run that needs the memory `room` besides the weights.
pub(super) fn open_for(args: &ModelArgs, cpu: &CpuArgs, room: Room) -> Result<Opened> {
    // The vocabulary is read on these threads.
    threads::start(cpu.threads)?;
    let started = Instant::now();
    let mut checkpoint = open_checkpoint(args, Need::Model)?.0;
    copy_to_huge_pages(&mut checkpoint, cpu)?;
    let (tokenizer, (model, model_time)) = std::thread::scope(|scope| {
        let find = || {
            let started = Instant::now();
            (tokenizer_of(&checkpoint, args), started.elapsed())
        };
        let tokenizer = std::thread::Builder::new().spawn_scoped(scope, find);
        let model = load(&checkpoint, args, cpu, room);
        let model = (model, started.elapsed());
        // If no second thread can be started, the two are loaded one after the other.
        (tokenizer.map_or_else(|_| Ok(find()), std::thread::ScopedJoinHandle::join), model)
    });
    let (tokenizer, tokenizer_time) = tokenizer.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let (tokenizer, unread) = or_unread(tokenizer, args)?;
    take_ends(&mut checkpoint, tokenizer.as_deref());
    Ok(Opened { checkpoint, tokenizer, unread, tokenizer_time, model, model_time })
}

/// A tokenizer if there is one, or the error of the model's own tokenizer.
type Readable = (Option<Arc<dyn Tokenizer>>, Option<Error>);

/// The tokenizer, or the error of the model's own tokenizer. An error of a named tokenizer (`--tokenizer`) ends the
/// run.
fn or_unread(found: Result<Option<Box<dyn Tokenizer>>>, args: &ModelArgs) -> Result<Readable> {
    match found {
        Ok(tokenizer) => Ok((tokenizer.map(Arc::from), None)),
        Err(error @ Error::Model(_)) if args.tokenizer.is_none() => Ok((None, Some(error))),
        Err(error) => Err(error),
    }
}

/// The named tokenizer, or the checkpoint's own.
fn tokenizer_of(checkpoint: &Checkpoint, args: &ModelArgs) -> Result<Option<Box<dyn Tokenizer>>> {
    tokenizer::find(&checkpoint.vocabulary(), &checkpoint.config, args.tokenizer.as_deref())
}

/// Takes the tokenizer's end-of-text tokens if the checkpoint names none.
fn take_ends(checkpoint: &mut Checkpoint, tokenizer: Option<&dyn Tokenizer>) {
    if let Some(tokenizer) = tokenizer.filter(|_| checkpoint.eos.is_empty()) {
        checkpoint.eos = tokenizer.ends();
    }
}

/// A checkpoint to inspect, not to run.
pub(super) struct Look {
    pub(super) checkpoint: Checkpoint,
    /// Its tokenizer, if it has one.
    pub(super) tokenizer: Option<Arc<dyn Tokenizer>>,
    /// The tokenizer's error.
    pub(super) unread: Option<Error>,
    /// The files that the checkpoint was opened from, if its values are still on the hub.
    pub(super) sparse: Option<SparseCopy>,
}

/// Opens the checkpoint without downloading its values, and opens its tokenizer.
pub(super) fn open_to_look(args: &ModelArgs) -> Result<Look> {
    let (mut checkpoint, sparse) = open_checkpoint(args, Need::Headers)?;
    // A checkpoint that a run refuses is refused here too.
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

/// The tokenizer of the named model, if it has one. Prints no warnings, because opening the model prints them.
pub(super) fn tokenizer_quietly(args: &ModelArgs) -> Option<Arc<dyn Tokenizer>> {
    let (checkpoint, _) = open_silently(args, Need::Headers).ok()?;
    tokenizer_of(&checkpoint, args).ok()?.map(Arc::from)
}

/// Only the tokenizer: the named file, or the model's tokenizer.
pub(super) fn open_tokenizer(args: &ModelArgs) -> Result<Arc<dyn Tokenizer>> {
    if let (None, Some(path)) = (&args.model, &args.tokenizer) {
        return tokenizer::open(path).map(Arc::from);
    }
    if hub::name(args).is_some() {
        // Only the tokenizer is downloaded, not gigabytes of weights.
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
