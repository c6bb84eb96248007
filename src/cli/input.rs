//! From options to what a run needs: the model, the tokenizer, and the prompt as ids.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::device::Device;
use super::hub;
use super::{CpuArgs, ModelArgs, PrecisionName, RunArgs, SamplingArgs, SelectArgs, tell};
use crate::backend::Backend;
use crate::checkpoint::{self, Checkpoint};
use crate::config::{DEFAULT_GROUP, ModelConfig, Precision};
use crate::error::{Error, Result};
use crate::files::{at_once, printable};
use crate::generate::{Sampler, Sampling, Session};
use crate::hub::{Need, SparseCopy};
use crate::model::Model;
use crate::stop;
use crate::tokenizer::{self, Tokenizer};
use crate::trace::select::Extent;
use crate::trace::{PassDims, Select, TokenLabel};

/// The text of a run without `--prompt`.
pub(super) const DEFAULT_PROMPT: &str = "Once upon a time";

/// Everything that a run starts from.
pub(super) struct Run<D: Device> {
    pub(super) model: Model<D>,
    pub(super) tokenizer: Option<Arc<dyn Tokenizer>>,
    pub(super) eos: Vec<u32>,
    pub(super) sampler: Sampler,
    /// The prompt as it was given; none where ids were.
    pub(super) text: Option<String>,
    pub(super) ids: Vec<u32>,
    /// Tokens that the cache is reserved for, where that was asked for.
    pub(super) context: Option<usize>,
}

impl<D: Device> Run<D> {
    /// Opens the model and reads the prompt.
    pub(super) fn open(args: &RunArgs) -> Result<Self> {
        let sampler = args.sampling.sampler()?;
        let opened = open::<D>(&args.model, &args.cpu)?;
        let context = context(args.context, &opened.checkpoint.config)?;
        let (text, ids) = prompt(args, opened.tokenizer.as_deref(), opened.checkpoint.config.context)?;
        let model = opened.model?;
        recognise(&opened.checkpoint, &args.model, &model);
        let eos = opened.checkpoint.eos;
        Ok(Self { model, tokenizer: opened.tokenizer, eos, sampler, text, ids, context })
    }

    /// A session that begins with the prompt, and has room for it and `draws` tokens after it.
    pub(super) fn session(&self, draws: usize) -> Result<Session<'_, D>> {
        let tokens = self.context.unwrap_or(self.ids.len().saturating_add(draws));
        let mut session = Session::with_capacity(&self.model, self.sampler.clone(), tokens)?;
        session.begin(self.ids.clone(), &self.eos, draws)?;
        Ok(session)
    }

    /// How many passes the context has room for: the one over the prompt, and one for each token after it.
    pub(super) fn room(&self) -> usize {
        1 + self.context.unwrap_or(self.model.config.context).saturating_sub(self.ids.len())
    }

    /// The first `count` passes.
    pub(super) fn passes(&self, count: usize) -> Vec<PassDims> {
        let prompt = self.ids.len();
        let decode = (1..count).map(|pass| PassDims { pass, start: prompt + pass - 1, tokens: 1 });
        std::iter::once(PassDims { pass: 0, start: 0, tokens: prompt }).chain(decode).collect()
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

    /// A sampler at the start of its random numbers. Says which options temperature 0 overrules.
    pub(super) fn sampler(&self) -> Result<Sampler> {
        let sampler = Sampler::new(self.sampling())?;
        let given = [
            ("--top-p", self.top_p.is_some()),
            ("--top-k", self.top_k.is_some()),
            ("--seed", self.seed.is_some()),
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
    /// What is chosen of a run of `count` passes.
    pub(super) fn select<D: Device>(&self, run: &Run<D>, count: usize, views: bool) -> Result<Select> {
        let extent = Extent {
            passes: count.min(run.room()),
            room: run.room(),
            layers: run.model.sizes().layers,
            views,
        };
        let select =
            Select::parse(self.pass.as_deref(), self.layer.as_deref(), self.stage.as_deref(), &extent)?;
        select.check(&run.model.card(), &run.passes(extent.passes))?;
        Ok(select)
    }
}

/// Runs `command` on one of the threads that compute: from there work is shared out without waking a thread only to
/// have this one wait for it. The command must not wait for another thread that computes: it may have taken the last.
pub(super) fn on_a_computing_thread<R: Send>(command: impl FnOnce() -> R + Send) -> R {
    rayon::scope(|_| command())
}

/// Hands the checkpoint to the device.
fn load<D: Device>(checkpoint: &Checkpoint, args: &ModelArgs, cpu: &CpuArgs) -> Result<Model<D>> {
    Model::load(checkpoint, D::start(cpu, precision(args, checkpoint))?)
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

/// That no more tokens fit.
pub(super) fn full<B: Backend>(session: &Session<'_, B>) -> String {
    let (reserved, context) = (session.capacity(), session.model.config.context);
    if reserved < context {
        let tokens = if reserved == 1 { "token" } else { "tokens" };
        format!(
            "The context of {reserved} {tokens} that --context reserved is full; the model's has {context}."
        )
    } else {
        format!("The model's context of {context} tokens is full.")
    }
}

/// Of a model that was named, says in one line what it was taken for.
pub(super) fn recognise(checkpoint: &Checkpoint, args: &ModelArgs, model: &Model<impl Backend>) {
    if args.model.is_some() {
        let ModelConfig { layers, dim, heads, vocab, .. } = checkpoint.config;
        tell(format_args!(
            "{} ({}): {layers} layers, width {dim}, {heads} heads, {vocab} tokens; precision {}",
            printable(&checkpoint.name),
            checkpoint.format,
            model.backend.precision().name()
        ));
    }
}

/// The arithmetic that was asked for, or that the weights are made for.
pub(super) fn precision(args: &ModelArgs, checkpoint: &Checkpoint) -> Precision {
    match (args.precision, checkpoint.group()) {
        (Some(PrecisionName::F32), _) | (None, None) => Precision::F32,
        (Some(PrecisionName::Bf16), _) => Precision::Bf16,
        (Some(PrecisionName::Q8) | None, group) => Precision::Q8 { group: group.unwrap_or(DEFAULT_GROUP) },
    }
}

/// Opens the checkpoint, with what the options change in its configuration.
fn open_checkpoint(args: &ModelArgs, need: Need) -> Result<(Checkpoint, Option<SparseCopy>)> {
    let place = hub::locate(args, need)?;
    let mut checkpoint = checkpoint::open_ignoring(place.path.as_deref(), &args.ignore_config)?;
    for line in checkpoint.notes.lines() {
        tell(format_args!("warning: {line}"));
    }
    if let Some(name) = place.name {
        // The folder's own name there is a commit.
        checkpoint.name = name;
    }
    if let Some(factor) = args.rope_factor {
        checkpoint.config.set_rope_factor(factor)?;
    }
    Ok((checkpoint, place.sparse))
}

/// A model with its tokenizer.
pub(super) struct Opened<D: Device> {
    pub(super) checkpoint: Checkpoint,
    pub(super) tokenizer: Option<Arc<dyn Tokenizer>>,
    /// How long the tokenizer took.
    pub(super) tokenizer_time: Duration,
    /// The model, or why there is none: what is wrong with the prompt is to be said first.
    pub(super) model: Result<Model<D>>,
    /// How long opening the file and loading the model took, on another thread than the tokenizer.
    pub(super) model_time: Duration,
}

/// Opens the checkpoint; loads the model, and on another thread the tokenizer that belongs to it.
pub(super) fn open<D: Device>(args: &ModelArgs, cpu: &CpuArgs) -> Result<Opened<D>> {
    let started = Instant::now();
    let mut checkpoint = open_checkpoint(args, Need::Model)?.0;
    let (tokenizer, (model, model_time)) = std::thread::scope(|scope| {
        let find = || {
            let started = Instant::now();
            (tokenizer_of(&checkpoint, args), started.elapsed())
        };
        let tokenizer = std::thread::Builder::new().spawn_scoped(scope, find);
        let model = load(&checkpoint, args, cpu);
        let model = (model, started.elapsed());
        // Where the system gives no thread, the one comes after the other.
        (tokenizer.map_or_else(|_| Ok(find()), std::thread::ScopedJoinHandle::join), model)
    });
    let (tokenizer, tokenizer_time) = tokenizer.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let tokenizer = tokenizer?.map(Arc::from);
    take_ends(&mut checkpoint, tokenizer.as_deref());
    Ok(Opened { checkpoint, tokenizer, tokenizer_time, model, model_time })
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
    /// How many tokens its tokenizer has, where it has one.
    pub(super) tokens: Option<usize>,
    /// What it was opened from, where its values are still on the hub.
    pub(super) sparse: Option<SparseCopy>,
}

/// Opens the checkpoint, without fetching its values. The tokenizer is loaded only where the number of its
/// tokens cannot be told otherwise.
pub(super) fn open_to_look(args: &ModelArgs) -> Result<Look> {
    let (checkpoint, sparse) = open_checkpoint(args, Need::Headers)?;
    let inside =
        if args.tokenizer.is_none() { tokenizer::count_inside(&checkpoint.vocabulary())? } else { None };
    if inside.is_some() {
        return Ok(Look { checkpoint, tokens: inside, sparse });
    }
    let (checkpoint, tokenizer) = find_tokenizer(checkpoint, args)?;
    let tokens = tokenizer.map(|tokenizer| tokenizer.vocab_size());
    Ok(Look { checkpoint, tokens, sparse })
}

fn find_tokenizer(
    mut checkpoint: Checkpoint,
    args: &ModelArgs,
) -> Result<(Checkpoint, Option<Arc<dyn Tokenizer>>)> {
    let tokenizer = tokenizer_of(&checkpoint, args)?.map(Arc::from);
    take_ends(&mut checkpoint, tokenizer.as_deref());
    Ok((checkpoint, tokenizer))
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
        return path.map_or_else(|| Err(no_tokenizer()), |path| tokenizer::open(&path).map(Arc::from));
    }
    let (checkpoint, tokenizer) = find_tokenizer(open_checkpoint(args, Need::Model)?.0, args)?;
    let tokenizer = tokenizer.ok_or_else(no_tokenizer)?;
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

fn no_tokenizer() -> Error {
    Error::prompt("this model has no tokenizer, so it cannot read a text")
        .expected(
            "a tokenizer in or beside the model (tokenizer.json, tokenizer.model, or tokenizer.bin for a .bin), or --tokenizer FILE",
        )
        .found("none")
        .next("give a tokenizer, or the prompt as token ids: --ids 1,403,407")
}

/// The prompt's text, where there is one, and its ids, for a model with a context of so many tokens.
fn prompt(
    args: &RunArgs,
    tokenizer: Option<&dyn Tokenizer>,
    context: usize,
) -> Result<(Option<String>, Vec<u32>)> {
    if let Some(list) = &args.ids {
        return Ok((None, read_ids(list)?));
    }
    let text = match (&args.prompt, &args.prompt_file) {
        (Some(text), _) if text == "-" => read_text(Path::new("-"))?,
        (Some(text), _) => text.clone(),
        (None, Some(path)) => read_text(path)?,
        (None, None) => DEFAULT_PROMPT.into(),
    };
    let Some(tokenizer) = tokenizer else {
        return Err(no_tokenizer());
    };
    if text.is_empty() && tokenizer.bos().is_none() {
        return Err(Error::prompt(
            "the prompt is empty, and this model has no beginning-of-text token to start from",
        )
        .expected("at least one token")
        .next("give a prompt, or ids with --ids"));
    }
    tokenizer::check_length(tokenizer, text.len(), Some(context))?;
    let ids = tokenizer.encode(&text)?;
    Ok((Some(text), ids))
}

/// The largest prompt that is read; no model's context holds a tenth of it.
const MAX_PROMPT: u64 = 64 << 20;

/// The text in a file, or in standard input for `-`.
pub(super) fn read_text(path: &Path) -> Result<String> {
    let read = |from: &mut dyn Read| {
        // One byte more than allowed, so that an input without an end is noticed.
        let mut bytes = Vec::new();
        from.take(MAX_PROMPT + 1).read_to_end(&mut bytes).map(|_| bytes)
    };
    let bytes = if path == Path::new("-") {
        read(&mut std::io::stdin().lock())
    } else {
        open_text(path).and_then(|mut text| read(&mut text))
    };
    if bytes.is_err() {
        stop::check()?;
    }
    let bytes = bytes.map_err(|error| {
        Error::prompt("the prompt's file cannot be read")
            .in_file(path)
            .expected("a file that may be read")
            .found(error)
            .next("check the path, or use - for standard input")
    })?;
    if bytes.len() as u64 > MAX_PROMPT {
        return Err(Error::prompt("the prompt is larger than any that a model could read")
            .in_file(path)
            .expected(format!("at most {MAX_PROMPT} bytes"))
            .found("more")
            .next("give a shorter text"));
    }
    String::from_utf8(bytes).map_err(|error| {
        Error::prompt("the prompt's file is not a text")
            .in_file(path)
            .expected("UTF-8")
            .found(format!("byte {} is not part of a UTF-8 character", error.utf8_error().valid_up_to()))
            .next("convert the file to UTF-8")
    })
}

/// Opens the file of a text. What a shell puts there for `<(command)` is read to its end like any file. A pipe with a
/// name is waited for, but not for ever, until somebody writes to it.
fn open_text(path: &Path) -> std::io::Result<Box<dyn Read>> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let named = !["/dev/fd", "/proc"].iter().any(|folder| path.starts_with(folder));
        if named && std::fs::metadata(path)?.file_type().is_fifo() {
            return open_pipe(path);
        }
    }
    Ok(Box::new(File::open(path)?))
}

/// How long a pipe is waited for to which nobody writes.
#[cfg(unix)]
const PIPE_WAIT: Duration = Duration::from_secs(10);

#[cfg(unix)]
fn open_pipe(path: &Path) -> std::io::Result<Box<dyn Read>> {
    use std::io::ErrorKind;

    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

    let mut file = at_once(File::options().read(true)).open(path)?;
    let started = Instant::now();
    let mut first = vec![0; 4096];
    let count = loop {
        match file.read(&mut first) {
            // Nobody has opened it for writing yet.
            Ok(0) if started.elapsed() < PIPE_WAIT => {
                stop::sleep(Duration::from_millis(20)).map_err(std::io::Error::other)?;
            }
            Ok(0) => {
                let what = format!("a pipe to which nobody has written for {} seconds", PIPE_WAIT.as_secs());
                return Err(std::io::Error::new(ErrorKind::TimedOut, what));
            }
            Ok(count) => break count,
            // Somebody has, and takes their time.
            Err(error) if error.kind() == ErrorKind::WouldBlock => break 0,
            Err(error) => return Err(error),
        }
    };
    first.truncate(count);
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(Box::new(std::io::Cursor::new(first).chain(file)))
}

/// Ids from `1,403,407` or `@file`; commas, blanks, line ends and JSON's brackets separate them.
fn read_ids(list: &str) -> Result<Vec<u32>> {
    let text = match list.strip_prefix('@') {
        Some(path) => read_text(Path::new(path))?,
        None => list.to_owned(),
    };
    let separator = |c: char| c.is_whitespace() || matches!(c, ',' | '[' | ']');
    let words = text.split(separator).filter(|word| !word.is_empty());
    let ids = words.map(|word| {
        word.parse().map_err(|_| {
            Error::prompt("the list of ids has something else in it")
                .expected("numbers separated by commas: 1,403,407, or @FILE with such a list")
                .found(format!("`{}`", printable(word)))
                .next("leave it out")
        })
    });
    ids.collect()
}
