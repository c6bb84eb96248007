//! `--trace PATH` and `open`: a recorded run instead of a live one, together with its model if that is available.

use std::path::Path;
use std::sync::Arc;

use ndarray::ArrayD;
use serde_json::{Map, Value};

use super::device::Room;
use super::edits;
use super::prompt::{self, Prompt};
use super::{
    CacheDtypeName, CpuArgs, DeviceName, ModelArgs, PrecisionName, SelectArgs, input, tell, threads,
};
use llama_trace_core::config::{ARITHMETIC, CacheDtype, Precision};
use llama_trace_core::edit::Edit;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::select::{Extent, numbers};
use llama_trace_core::trace::{ModelCard, Outline, PassOutline, Run, Select, Site, Sizes, Source};
use llama_trace_engine::generate::Sampler;
use llama_trace_engine::model::Model;
use llama_trace_formats::tokenizer::Tokenizer;
use llama_trace_judge::capture::{self, RecordedFolder};
use llama_trace_runs::begin::edits::{Files, Reading, with};
use llama_trace_runs::record::read::Pass;
use llama_trace_runs::record::{Kept, Trace};
use llama_trace_runs::replay::{DEFAULT_MEMORY, Follows, Recorded};

/// The name of the built-in model's card.
const BUILT_IN: &str = "built-in";

/// An open trace or folder.
pub(super) struct Traced {
    pub(super) kept: Arc<dyn Kept>,
    pub(super) recorded: Recorded,
    /// What other runs need, if there is a model.
    pub(super) opened: Option<Opened>,
    /// The options with which it was opened.
    pub(super) args: (ModelArgs, CpuArgs),
    pub(super) memory: usize,
}

impl Traced {
    /// Opens the trace or the folder at `path`, and its model. This is the model that `args` names, or the built-in
    /// model if the run is of that model. Prints a note if derived values may differ in their last bits.
    pub(super) fn open(path: &Path, args: &ModelArgs, cpu: &CpuArgs, memory: usize) -> Result<Self> {
        Self::open_as(path, args, args, cpu, memory)
    }

    /// Opens the judged run under the run number `run`. It is shown beside the reference. Nothing is computed with the
    /// model that `of` names. That model only gives the configuration of a folder that has none, and the texts of
    /// tokens.
    pub(super) fn open_judged(
        path: &Path,
        run: Run,
        of: &ModelArgs,
        cpu: &CpuArgs,
        memory: usize,
    ) -> Result<Self> {
        let opened = Self::open_as(path, &ModelArgs { model: None, ..of.clone() }, of, cpu, memory)?;
        Ok(Self { recorded: opened.recorded.judged_as(run), ..opened })
    }

    fn open_as(path: &Path, args: &ModelArgs, of: &ModelArgs, cpu: &CpuArgs, memory: usize) -> Result<Self> {
        // The trace is read on these threads.
        threads::start(cpu.threads)?;
        let (kept, opened): (Arc<dyn Kept>, _) = if path.is_dir() {
            let config = || of.model.as_ref().map(|_| input::config(of)).transpose();
            let folder = RecordedFolder::open(path, config)?;
            let says = Says { settings: folder.settings(), weights: None };
            let opened = beside(&folder, &says, args, cpu)?;
            say_derived(&folder, opened.is_some());
            (Arc::new(folder), opened)
        } else {
            let trace = Trace::open(path)?;
            let about = trace.about();
            let settings = match serde_json::to_value(&about.card.config) {
                Ok(Value::Object(settings)) => settings,
                _ => Map::new(),
            };
            let says = Says { settings, weights: Some(about.fingerprint.weights.clone()) };
            let opened = beside(&trace, &says, args, cpu)?;
            say_bounds(&trace);
            (Arc::new(trace), opened)
        };
        let of_model = || of.model.as_ref().and_then(|_| input::tokenizer_quietly(of));
        let (model, tokenizer) = match &opened {
            Some(Opened { model, tokenizer, .. }) => (Some(Arc::clone(model)), tokenizer.clone()),
            None => (None, of_model()),
        };
        let recorded = Recorded::new(Arc::clone(&kept), model, tokenizer, memory);
        Ok(Self { kept, recorded, opened, args: (args.clone(), cpu.clone()), memory })
    }

    /// A sequence of one of the trace's runs.
    pub(super) fn source(&self, run: Run, sequence: usize) -> Result<Box<dyn Source>> {
        self.recorded.open(run, sequence)
    }

    /// The stages that are recorded or can be derived.
    pub(super) fn follows(&self) -> Follows<'_> {
        self.recorded.follows()
    }

    /// First every sequence of the run itself, then every branch.
    pub(super) fn all(&self) -> impl Iterator<Item = (Run, usize)> {
        let itself = (0..self.sequences()).map(|sequence| (Run::ITSELF, sequence));
        itself.chain((1..).map(Run).zip(self.kept.branches().iter().map(|branch| branch.sequence)))
    }

    /// Prints that the branches of a trace were not read.
    pub(super) fn say_branches(&self) {
        if let count @ 1.. = self.kept.branches().len() {
            tell(format_args!(
                "This is the run r0. The trace also has {count} {}, {}: `open`, `snapshot --at` and `explain` show them by address.",
                if count == 1 { "branch" } else { "branches" },
                if count == 1 { "r1".to_owned() } else { format!("r1 to r{count}") },
            ));
        }
    }

    /// Prints that only the first of several sequences was read.
    pub(super) fn say_sequences(&self) {
        if let count @ 2.. = self.sequences() {
            tell(format_args!(
                "This is sequence s0. The trace has {count} sequences, s0 to s{}: `open`, `snapshot --at` and `explain` show the others by address, as s1:p0/….",
                count - 1,
            ));
        }
    }

    /// The number of sequences.
    pub(super) fn sequences(&self) -> usize {
        self.kept.sequences()
    }
}

/// The model of a trace, with what a run of it needs.
pub(super) struct Opened {
    pub(super) model: Arc<Model>,
    pub(super) tokenizer: Option<Arc<dyn Tokenizer>>,
    /// The tokens that end a text.
    pub(super) eos: Vec<u32>,
}

/// What a recorded run states about its model.
struct Says {
    /// Settings, under the names that a configuration has for them.
    settings: Map<String, Value>,
    /// The fingerprint of the weights.
    weights: Option<String>,
}

/// The model that `args` names, or the built-in model if the run is of that model.
fn beside(kept: &dyn Kept, says: &Says, args: &ModelArgs, cpu: &CpuArgs) -> Result<Option<Opened>> {
    match args.model {
        Some(_) => model(kept, says, args, cpu).map(Some),
        // An error is reported only if one of the options needs the model.
        None if kept.card().name == BUILT_IN => {
            // The model is small, so only a named GPU is used for it.
            let device = if cpu.device == DeviceName::Auto { DeviceName::Cpu } else { cpu.device };
            match model(kept, says, args, &CpuArgs { device, ..cpu.clone() }) {
                Err(error) if is_otherwise(args, cpu) => Err(error),
                opened => Ok(opened.ok()),
            }
        }
        None => Ok(None),
    }
}

/// Returns whether options change the model that the trace is opened with.
fn is_otherwise(args: &ModelArgs, cpu: &CpuArgs) -> bool {
    args.precision.is_some()
        || args.rope_factor.is_some()
        || !args.without.is_empty()
        || !args.edit.is_empty()
        || args.edits.is_some()
        || cpu.cache_dtype.is_some()
        || cpu.cpu_kernel.is_some()
}

/// Opens the model so that it computes as the run did.
fn model(kept: &dyn Kept, says: &Says, args: &ModelArgs, cpu: &CpuArgs) -> Result<Opened> {
    let precision = match kept.card().precision {
        Precision::F32 => PrecisionName::F32,
        Precision::Bf16 => PrecisionName::Bf16,
        Precision::Q8 { .. } => PrecisionName::Q8,
    };
    let cache = kept.cache().map(|dtype| match dtype {
        CacheDtype::F32 => CacheDtypeName::F32,
        CacheDtype::F16 => CacheDtypeName::F16,
        CacheDtype::Bf16 => CacheDtypeName::Bf16,
    });
    // The run's own edits, unless the options give others.
    let list = match edits::list(args)? {
        given if given.is_empty() => Edit::of_card(kept.card()).map_err(|error| error.at(kept.place()))?,
        given => given,
    };
    let args = ModelArgs { precision: args.precision.or(Some(precision)), ..args.clone() };
    let cpu = CpuArgs { cache_dtype: cpu.cache_dtype.or(cache), ..cpu.clone() };
    let opened = input::open_for(&args, &cpu, Room::default())?;
    let (model, _) = opened.model?;
    let ids = |pass: &Pass| pass.tokens.clone();
    let prompts: Vec<Prompt> = (0..kept.sequences())
        .filter_map(|sequence| kept.passes(Run::ITSELF, sequence).first().map(ids))
        .map(|ids| Prompt { text: None, ids, place: None })
        .collect();
    let passes = |sequence| kept.passes(Run::ITSELF, sequence).iter().map(move |pass| (sequence, pass.dims));
    let passes: Vec<_> = (0..kept.sequences()).flat_map(passes).collect();
    // Opening the trace reports settings that are not valid.
    let sampler = kept.sampling().and_then(|drawing| {
        let sampler = Sampler::new(drawing.sampling).ok()?;
        Some(sampler.with_stream(drawing.stream))
    });
    let reading = Reading {
        files: &DiskFiles::new(&args, &cpu),
        tokenizer: opened.tokenizer.as_ref(),
        prompts: &prompts,
        sampler: sampler.as_ref(),
        chunk: None,
        passes: &passes,
        most: passes.len().max(1),
    };
    let model = with(&model, list, &reading)?;
    let differs = different(kept, says, &model)?;
    if !differs.is_empty() {
        return Err(Error::model("this is not the model that the trace was recorded from")
            .at(kept.place())
            .expected(&kept.card().name)
            .found(format!("{}, which differs in {}", model.card().name, differs.join("; ")))
            .next("give the --model that it was recorded from, or leave --model out"));
    }
    Ok(Opened { model: Arc::new(model), tokenizer: opened.tokenizer, eos: opened.checkpoint.eos })
}

/// The settings of `model` that differ from what the run states.
fn different(kept: &dyn Kept, says: &Says, model: &Model) -> Result<Vec<String>> {
    let (theirs, card) = (kept.card(), model.card());
    let ours = serde_json::to_value(&card.config).unwrap_or_default();
    let fields = says.settings.iter().filter(|(key, value)| !alike(ours.get(*key), value));
    let mut differs: Vec<String> = fields
        .map(|(key, value)| format!("{key} ({} instead of {value})", ours.get(key).unwrap_or(&Value::Null)))
        .collect();
    if theirs.without != card.without {
        let named = |card: &ModelCard| match &card.without[..] {
            [] => "nothing".to_owned(),
            parts => parts.join(", "),
        };
        differs.push(format!("the switched-off parts ({} instead of {})", named(&card), named(theirs)));
    }
    if theirs.edits != card.edits {
        differs.push(format!("the edits ({:?} instead of {:?})", card.edits, theirs.edits));
    }
    if theirs.precision != card.precision {
        let name = |precision: Precision| match precision.group() {
            Some(group) => format!("{} in groups of {group}", precision.name()),
            None => precision.name().to_owned(),
        };
        differs.push(format!("precision ({} instead of {})", name(card.precision), name(theirs.precision)));
    }
    if let Some(cache) = kept.cache().filter(|cache| *cache != model.backend.cache_dtype()) {
        differs.push(format!("cache ({} instead of {})", model.backend.cache_dtype().name(), cache.name()));
    }
    if let Some(weights) = says.weights.as_ref().filter(|_| differs.is_empty())
        && *weights != model.fingerprint()?.weights
    {
        differs.push("the values of its weights".to_owned());
    }
    Ok(differs)
}

/// Returns whether two settings are equal as float32.
fn alike(ours: Option<&Value>, theirs: &Value) -> bool {
    let float = |value: &Value| value.as_f64().map(|x| x as f32);
    match ours {
        Some(ours) => ours == theirs || (float(ours).is_some() && float(ours) == float(theirs)),
        None => false,
    }
}

/// Prints that derived values may differ in their last bits, and that values computed with a model are not those of the
/// captured program.
fn say_derived(folder: &RecordedFolder, with_model: bool) {
    if folder.is_captured() || !folder.is_complete() {
        tell(
            "Values that this folder does not have are derived from the values that it has, if possible. Derived values may differ from the run's values in their last bits.",
        );
    }
    if folder.is_captured() && with_model {
        tell(
            "Values that are computed with the model come from the model's own run over the same tokens. If the port has a mistake, they are the correct values, and not the port's.",
        );
    }
}

/// Prints a note if derived values are not bit-exact.
fn say_bounds(trace: &Trace) {
    if trace.arithmetic() != ARITHMETIC {
        tell(format_args!(
            "The trace was computed with version {} of the arithmetic, and this program has version {ARITHMETIC}: derived values may differ in their last bits.",
            trace.arithmetic()
        ));
    } else if !trace.is_exact() {
        tell(
            "The run's backend summed in a different order than this program: derived values may differ in their last bits, within the bound of that backend.",
        );
    }
}

impl SelectArgs {
    /// The selection from a trace whose longest sequence has the outline `outline`.
    pub(super) fn select_of(&self, outline: &Outline, views: bool) -> Result<Select> {
        let passes = outline.passes.len();
        if let Some(text) = &self.pass {
            numbers("pass", text, passes, |_| "the trace has no other passes: record more tokens".into())?;
        }
        let extent = Extent { passes, room: passes, layers: outline.card.sizes().layers, views };
        let select =
            Select::parse(self.pass.as_deref(), self.layer.as_deref(), self.stage.as_deref(), &extent)?;
        let dims: Vec<_> = outline.passes.iter().map(|pass| pass.dims).collect();
        select.check(&outline.card, &dims)?;
        Ok(select)
    }
}

/// The sites that `select` chooses in a pass of a sequence.
pub(super) fn chosen(sequence: usize, pass: &PassOutline, sizes: &Sizes, select: &Select) -> Vec<Site> {
    let sites = Site::all(sizes, pass.dims).into_iter().map(|site| Site { sequence, ..site });
    sites.filter(|&site| select.contains(site)).collect()
}

/// The files of this system. Traces are opened with the model of the options, without its edits.
pub(super) struct DiskFiles {
    pub(super) model: ModelArgs,
    pub(super) cpu: CpuArgs,
}

impl DiskFiles {
    pub(super) fn new(model: &ModelArgs, cpu: &CpuArgs) -> Self {
        let model = ModelArgs { without: Vec::new(), edit: Vec::new(), edits: None, ..model.clone() };
        Self { model, cpu: cpu.clone() }
    }
}

impl Files for DiskFiles {
    fn trace(&self, file: &Path, sequence: usize) -> Result<Box<dyn Source>> {
        Traced::open(file, &self.model, &self.cpu, DEFAULT_MEMORY)?.source(Run::ITSELF, sequence)
    }

    fn array(&self, file: &Path) -> Result<ArrayD<f32>> {
        let wrong = |found: String| {
            Error::usage("the file is not an array of numbers")
                .in_file(file)
                .expected("a .npy file of numbers")
                .found(found)
                .next("write it with numpy.save")
        };
        let array = capture::array(file).map_err(wrong)?;
        match array.iter().position(|value| value.is_nan()) {
            Some(at) => Err(Error::usage("the array has a NaN, which is not a value that an edit can write")
                .in_file(file)
                .expected("numbers, inf or -inf")
                .found(format!("NaN at value {at} of {}", array.len()))
                .next("replace it, for example with numpy.nan_to_num")),
            None => Ok(array),
        }
    }

    fn prompts(&self, file: &Path) -> Result<String> {
        prompt::read_text_of(file, "the file of mean(FILE)")
    }
}
