//! Models and traces that the page opens, and their runs.

use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use ndarray::ArrayD;

use crate::builtin;
use llama_trace_core::config::{Arithmetic, DEFAULT_GROUP, Precision};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::lesson::{PromptSetting, RunSetting};
use llama_trace_core::trace::{ModelCard, Run, Sampling, Source};
use llama_trace_engine::backend::cpu::{Cpu, Kernel};
use llama_trace_engine::generate::Sampler;
use llama_trace_engine::model::Model;
use llama_trace_formats::checkpoint::{self, Checkpoint};
use llama_trace_formats::tokenizer::{self, Tokenizer};
use llama_trace_runs::begin::Starter;
use llama_trace_runs::begin::edits::Files;
use llama_trace_runs::begin::prompt;
use llama_trace_runs::record::{Kept, Trace};
use llama_trace_runs::replay::{Recorded, Sequences, Start};
use llama_trace_tui::{NewRun, Runs};

/// The prompt of a page without a link.
const DEFAULT_PROMPT: &str = "Once upon a time";

/// Limit of frame memory, in bytes. A page has at most 4 GiB in all.
const MEMORY: usize = 256 << 20;

/// Tokens of the context that are reserved for an opened model. Its own context may not fit beside the weights.
const CONTEXT: usize = 2048;

/// The cards of the built-in model have this name.
const BUILT_IN: &str = "built-in";

/// An open model.
pub struct Opened {
    checkpoint: Rc<Checkpoint>,
    model: Arc<Model>,
    tokenizer: Option<Arc<dyn Tokenizer>>,
    eos: Vec<u32>,
    arithmetic: Arithmetic,
}

impl Opened {
    /// The built-in model in the named precision (f32, bf16 or q8), or in the one that its weights were made for.
    ///
    /// # Errors
    /// None in a program that passed its tests.
    pub fn built_in(precision: Option<&str>) -> Result<Self> {
        Self::of(builtin::open()?, precision, Arithmetic::Separate)
    }

    /// The model at a path.
    ///
    /// # Errors
    /// [`Error::Model`] if the files are no model, or are damaged.
    pub fn at(path: &Path) -> Result<Self> {
        Self::of(checkpoint::open(path)?, None, Arithmetic::Separate)
    }

    /// The model in the named precision, or in the one that its weights were made for.
    fn of(checkpoint: Checkpoint, name: Option<&str>, arithmetic: Arithmetic) -> Result<Self> {
        let tokenizer = tokenizer::find(&checkpoint.vocabulary(), &checkpoint.config, None)?;
        let tokenizer: Option<Arc<dyn Tokenizer>> = tokenizer.map(Arc::from);
        let model = load(&checkpoint, precision(&checkpoint, name), arithmetic)?;
        let mut eos = checkpoint.eos.clone();
        if let Some(tokenizer) = tokenizer.as_deref().filter(|_| eos.is_empty()) {
            eos = tokenizer.ends();
        }
        Ok(Self { checkpoint: Rc::new(checkpoint), model: Arc::new(model), tokenizer, eos, arithmetic })
    }

    /// Whether it is the built-in model.
    pub fn is_built_in(&self) -> bool {
        self.checkpoint.path.is_none()
    }

    /// The ids of a text.
    ///
    /// # Errors
    /// [`Error::Prompt`] if the model has no tokenizer, or the text cannot be run.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let tokenizer = self.tokenizer.as_deref().ok_or_else(prompt::no_tokenizer);
        prompt::encode(text, tokenizer, self.model.config.context)
    }

    /// The ids with which a model begins that cannot read the default prompt: its first tokens.
    fn first_ids(&self) -> Vec<u32> {
        (1..=4).map(|id| id.min(self.model.config.vocab as u32 - 1)).collect()
    }

    /// The text with which the page begins, or none if this model has no tokens for it.
    pub fn default_prompt(&self) -> Option<&'static str> {
        self.encode(DEFAULT_PROMPT).is_ok().then_some(DEFAULT_PROMPT)
    }

    /// The runs of a viewer: the run of `text`, with `draws` passes, and others that begin on demand. Without a text, the
    /// first tokens of the vocabulary are run.
    ///
    /// # Errors
    /// [`Error::Prompt`] if the text cannot be run.
    pub fn runs(&self, text: Option<&str>, draws: usize, sampling: Sampling) -> Result<Runs> {
        let (ids, prompt) = match text {
            Some(text) => (self.encode(text)?, PromptSetting::Text(text.to_owned())),
            None => (self.first_ids(), PromptSetting::Ids(self.first_ids())),
        };
        let mut starter = self.starter(draws, Sampler::new(sampling)?);
        let sequences = Sequences::new(Arc::clone(&self.model), vec![starter.start(0, ids)]);
        let sequences = Rc::new(sequences);
        starter.sequences = Rc::clone(&sequences);
        let live = sequences.open(0)?;
        let opener = move |number| Ok(Box::new(sequences.open(number)?) as Box<dyn Source>);
        let sampling = sampling.options();
        let setting = RunSetting { prompts: vec![prompt], passes: draws, sampling, ..RunSetting::default() };
        let runs = Runs::of_sequences(Box::new(live), Box::new(opener)).with_setting(setting);
        Ok(runs.with_starter(Box::new(move |run, new| begin(&mut starter, run, new))))
    }

    fn starter(&self, draws: usize, sampler: Sampler) -> Starter {
        let checkpoint = Rc::clone(&self.checkpoint);
        let arithmetic = self.arithmetic;
        let reload = move |name: &str| load(&checkpoint, precision(&checkpoint, Some(name)), arithmetic);
        Starter {
            reload: Box::new(reload),
            files: Box::new(NoFiles),
            sequences: Rc::new(Sequences::new(Arc::clone(&self.model), Vec::new())),
            sampler: Box::new(move |number| sampler.after(number)),
            tokenizer: self.tokenizer.clone(),
            eos: self.eos.clone(),
            draws,
            memory: MEMORY,
            context: (!self.is_built_in()).then(|| self.model.config.context.min(CONTEXT)),
            others: HashMap::new(),
        }
    }
}

/// Loads a model. WebAssembly has no fused multiply-add, so the page uses the kernel that needs none. Only the values of
/// a trace that was computed with fused multiply-adds are computed again in the same way.
fn load(checkpoint: &Checkpoint, precision: Precision, arithmetic: Arithmetic) -> Result<Model> {
    let kernel = match arithmetic {
        Arithmetic::Separate => Kernel::wasm(),
        Arithmetic::Fused => Kernel::default(),
    };
    Model::load(checkpoint, Cpu::with_kernel(kernel).with_precision(precision))
}

/// The precision with this name, or the one that the weights were made for.
fn precision(checkpoint: &Checkpoint, name: Option<&str>) -> Precision {
    match (name, checkpoint.group()) {
        (Some("f32"), _) | (None, None) => Precision::F32,
        (Some("bf16"), _) => Precision::Bf16,
        (_, group) => Precision::Q8 { group: group.unwrap_or(DEFAULT_GROUP) },
    }
}

/// Begins another run, with all its sequences.
fn begin(starter: &mut Starter, run: Run, new: NewRun) -> Result<Vec<Box<dyn Source>>> {
    let live = match new {
        NewRun::Prompt(text) => starter.prompt(run, &text),
        NewRun::Edited(new) => starter.edited(run, new),
        NewRun::Scene(setting) => starter.scene(run, &setting),
    };
    Ok(live?.into_iter().map(|live| Box::new(live) as Box<dyn Source>).collect())
}

/// A page reads no files for edits.
struct NoFiles;

fn no_files(file: &Path) -> Error {
    Error::usage("an edit in a web page reads no file")
        .at(file.display())
        .expected("a number, mean, or cells of this run or of another prompt")
        .next("write the value itself, or use the tracer in a terminal")
}

impl Files for NoFiles {
    fn trace(&self, file: &Path, _: usize) -> Result<Box<dyn Source>> {
        Err(no_files(file))
    }

    fn array(&self, file: &Path) -> Result<ArrayD<f32>> {
        Err(no_files(file))
    }

    fn prompts(&self, file: &Path) -> Result<String> {
        Err(no_files(file))
    }
}

/// An open trace.
pub struct OpenedTrace {
    /// The runs of a viewer.
    pub runs: Runs,
    /// The sampling of the recorded run, for the title.
    pub drawing: Option<llama_trace_core::trace::manifest::Drawing>,
    /// Whether the built-in model computed it.
    pub of_built_in: bool,
}

/// The runs of a trace at a path. If the built-in model computed the trace, values that it lacks are computed again, and
/// other runs can begin.
///
/// # Errors
/// [`Error::Model`] if the file is no trace, or is damaged.
pub fn trace(path: &Path) -> Result<OpenedTrace> {
    let trace = Arc::new(Trace::open(path)?);
    let opened = model_of(&trace)?;
    let (model, tokenizer) = match &opened {
        Some(opened) => (Some(Arc::clone(&opened.model)), opened.tokenizer.clone()),
        None => (None, None),
    };
    let kept: Arc<dyn Kept> = trace;
    let recorded = Recorded::new(Arc::clone(&kept), model, tokenizer, MEMORY);
    let first = recorded.open(Run::ITSELF, 0)?;
    let branches =
        (1..).map(Run).zip(kept.branches()).map(|(run, branch)| recorded.open(run, branch.sequence));
    let branches = branches.collect::<Result<Vec<_>>>()?;
    let starter = opened.as_ref().map(|opened| further(opened, &recorded, &*kept)).transpose()?;
    let opener = move |sequence| recorded.open(Run::ITSELF, sequence);
    let mut runs = Runs::of_sequences(first, Box::new(opener));
    if let Some(mut starter) = starter {
        runs = runs.with_starter(Box::new(move |run, new| begin(&mut starter, run, new)));
    }
    branches.into_iter().for_each(|branch| runs.add(branch));
    Ok(OpenedTrace { runs, drawing: kept.sampling(), of_built_in: opened.is_some() })
}

/// The built-in model, if it computed the trace: without edits, in the same precision and with the same weights.
fn model_of(trace: &Trace) -> Result<Option<Opened>> {
    let ModelCard { name, precision: computed, arithmetic, without, edits, .. } = trace.card();
    if name != BUILT_IN || !without.is_empty() || !edits.is_empty() {
        return Ok(None);
    }
    let opened = Opened::of(builtin::open()?, Some(computed.name()), *arithmetic)?;
    let same = trace.about().fingerprint.weights == opened.model.fingerprint()?.weights
        && opened.model.backend.precision() == *computed;
    Ok(same.then_some(opened))
}

/// The starter of other runs beside a trace.
fn further(opened: &Opened, recorded: &Recorded, kept: &dyn Kept) -> Result<Starter> {
    let mut starter = opened.starter(1, recorded.sampler(0)?);
    let starts: Vec<Start> = (0..kept.sequences())
        .map(|sequence| {
            let first = kept.passes(Run::ITSELF, sequence).first();
            starter.start(sequence as u64, first.map(|pass| pass.tokens.clone()).unwrap_or_default())
        })
        .collect();
    starter.sequences = Rc::new(Sequences::new(Arc::clone(&opened.model), starts));
    Ok(starter)
}
