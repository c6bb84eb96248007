//! `--edit`, `--edits` and `--without`: reads the edits and everything that they read, and reports what they changed.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use ndarray::{ArrayD, IxDyn};

use super::prompt::{self, Prompt};
use super::wait::show;
use super::{ModelArgs, tell};
use llama_trace_core::config::{Arithmetic, Precision};
use llama_trace_core::edit::{Changed, Edit, Edits, Given, Needed, Origin};
use llama_trace_core::error::{Error, Result, shortened};
use llama_trace_core::stop;
use llama_trace_core::trace::{
    Frame, FrameData, ModelCard, NoProbe, PassDims, Probe, Recorder, Select, Site, Source, Stage, Status,
    Values,
};
use llama_trace_engine::generate::{Sampler, Sampling, Session};
use llama_trace_engine::model::{Model, pass};
use llama_trace_formats::checkpoint::Checkpoint;
use llama_trace_formats::files::printable;
use llama_trace_formats::tokenizer::Tokenizer;
use llama_trace_judge::capture;
use llama_trace_runs::replay::{DEFAULT_MEMORY, Live, Start};

/// The maximum number of edits. Each stage of a pass looks at all of them.
const MOST: usize = 1 << 16;

/// The edits that the options give: `--without`, then the file, then `--edit`.
pub(super) fn list(args: &ModelArgs) -> Result<Vec<Edit>> {
    let mut list = args.without.clone();
    if let Some(file) = &args.edits {
        let before = list.len();
        for (number, line) in read_edits(file)?.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let edit = Edit::parse(line).map_err(|expected| {
                Error::usage("a line is not an edit")
                    .at(format!("{}, line {}", printable(&file.display().to_string()), number + 1))
                    .expected(shortened(&expected))
                    .found(shortened(&printable(line)))
                    .next("see `llama-trace help edits`")
            })?;
            list.push(edit);
        }
        if list.len() == before {
            return Err(Error::usage("the file of --edits has no edit")
                .in_file(file)
                .expected("one edit a line, as in L0/attn_heads[h=2] = 0")
                .next("see `llama-trace help edits`"));
        }
    }
    list.extend(args.edit.iter().cloned());
    if list.len() > MOST {
        return Err(Error::usage("there are too many edits")
            .expected(format!("at most {MOST}"))
            .found(list.len().to_string())
            .next("change several cells in one edit: a place can have ranges and lists, as in L0-2/ffn_hidden[f=3,7]"));
    }
    Ok(list)
}

/// The text of the file of `--edits`.
fn read_edits(file: &Path) -> Result<String> {
    prompt::read_text_of(file, "the file of --edits").map_err(|error| match error {
        Error::Prompt(report) => Error::Usage(report),
        other => other,
    })
}

/// Checks that the model has the layers and the cells that the edits name, and lists the parts that are switched off.
pub(super) fn check(args: &ModelArgs, checkpoint: &Checkpoint, precision: Precision) -> Result<()> {
    let list = list(args)?;
    let off: Vec<_> =
        args.without.iter().filter_map(Edit::switched_off).map(|part| format!("`{part}`")).collect();
    if !off.is_empty() {
        tell(format_args!("warning: switched off by --without: {}", off.join(", ")));
    }
    let card = ModelCard {
        name: checkpoint.name.clone(),
        ignored: Vec::new(),
        without: Vec::new(),
        edits: Vec::new(),
        config: checkpoint.config.clone(),
        precision,
        arithmetic: Arithmetic::Fused,
        backend: "cpu".into(),
    };
    Edits::new(list).check(&card, &[])
}

/// Opens a sequence of a trace.
pub(super) type OpenTrace<'a> = dyn Fn(&Path, usize) -> Result<Box<dyn Source>> + 'a;

/// The context of a run whose edits are read.
pub(super) struct Reading<'a> {
    pub(super) trace: &'a OpenTrace<'a>,
    pub(super) tokenizer: Option<&'a Arc<dyn Tokenizer>>,
    /// The prompts; none if the command chooses its own.
    pub(super) prompts: &'a [Prompt],
    /// The sequence and the sizes of each pass.
    pub(super) passes: &'a [(usize, PassDims)],
    /// The number of passes of another run for a source that names no pass.
    pub(super) most: usize,
}

/// The model with the edits of `list`, after everything that they read was read. `model` has no edits.
pub(super) fn with(model: &Model, list: Vec<Edit>, reading: &Reading<'_>) -> Result<Model> {
    if list.is_empty() {
        return Ok(model.clone());
    }
    let edits = Edits::new(list);
    edits.check(&model.card(), reading.passes)?;
    // A command that chooses its own passes reads sources in the first pass.
    let whole = [(0, PassDims { pass: 0, start: 0, tokens: model.config.context, ..PassDims::default() })];
    let passes = if reading.passes.is_empty() { &whole } else { reading.passes };
    let mut given = Given::default();
    let mut frames: HashMap<Origin, BTreeSet<Site>> = HashMap::new();
    for needed in edits.needs(&model.sizes(), passes, reading.most) {
        match needed {
            Needed::Frame(origin, site) => {
                frames.entry(origin).or_default().insert(site);
            }
            Needed::Array(file) => {
                let array = array(&file)?;
                given.arrays.insert(file, array);
            }
            Needed::Mean(file, layer, stage) => {
                let mean = mean(model, reading, &file, layer, stage)?;
                given.means.insert((file, layer, stage), mean);
            }
        }
    }
    for (origin, sites) in frames {
        for (site, frame) in read(model, reading, &origin, &sites)? {
            given.frames.insert((origin.clone(), site), frame);
        }
    }
    Ok(model.with_edits(edits.with(given)))
}

/// An array in a `.npy` file.
fn array(file: &Path) -> Result<ArrayD<f32>> {
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

/// The mean of a stage over all tokens of the prompts in a file, one prompt a line.
fn mean(
    model: &Model,
    reading: &Reading<'_>,
    file: &Path,
    layer: Option<usize>,
    stage: Stage,
) -> Result<Vec<f32>> {
    let text = prompt::read_text_of(file, "the file of mean(FILE)")?;
    let select = Select::stages(&[stage]).in_layers(layer.into_iter().collect());
    let (mut sums, mut tokens): (Vec<f64>, usize) = (Vec::new(), 0);
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let ids = encode(model, reading, line)?;
        let mut session = Session::with_capacity(model, sampler()?, ids.len())?;
        let dims = session.next_pass(ids.len());
        let mut add = |frame: Frame| {
            let FrameData::F32(array) = frame.data else { return };
            let width = array.len() / dims.tokens;
            sums.resize(width, 0.0);
            for (i, value) in array.iter().enumerate() {
                sums[i % width] += f64::from(*value);
            }
        };
        session.read(&ids, &mut Recorder::new(model.sizes(), dims, &select, &mut add))?;
        tokens += ids.len();
    }
    if tokens == 0 {
        return Err(Error::prompt("the file has no prompt").in_file(file).expected("one prompt a line"));
    }
    Ok(sums.iter().map(|sum| (sum / tokens as f64) as f32).collect())
}

fn sampler() -> Result<Sampler> {
    Sampler::new(Sampling { temperature: 0.0, ..Sampling::default() })
}

fn encode(model: &Model, reading: &Reading<'_>, text: &str) -> Result<Vec<u32>> {
    let tokenizer = reading.tokenizer.map(|tokenizer| &**tokenizer).ok_or_else(prompt::no_tokenizer);
    prompt::encode(text, tokenizer, model.config.context)
}

/// The values of `sites` in another run.
fn read(
    model: &Model,
    reading: &Reading<'_>,
    origin: &Origin,
    sites: &BTreeSet<Site>,
) -> Result<Vec<(Site, Arc<Frame>)>> {
    let mut frames = Vec::new();
    let sequences: BTreeSet<usize> = sites.iter().map(|site| site.sequence).collect();
    for sequence in sequences {
        let sites: Vec<Site> = sites.iter().copied().filter(|site| site.sequence == sequence).collect();
        let passes = sites.iter().map(|site| site.pass + 1).max().unwrap_or(1);
        let sampler = sampler()?;
        let start = |ids: Vec<u32>| Start {
            context: Some((ids.len() + passes).min(model.config.context)),
            ids,
            draws: passes,
            sampler: sampler.clone(),
            tokenizer: None,
            eos: Vec::new(),
            memory: DEFAULT_MEMORY,
        };
        // The frames of a single run are those of sequence 0.
        let (mut source, own): (Box<dyn Source>, usize) = match origin {
            Origin::Plain => {
                let Some(prompt) = reading.prompts.get(sequence) else {
                    return Err(Error::usage("this command has no plain run from which an edit can read")
                        .expected("a source with a prompt or a trace, as in \"A prompt\":L1/attn_heads")
                        .next("name the run in the source"));
                };
                (Box::new(finished(model, start(prompt.ids.clone()))?), 0)
            }
            Origin::Prompt(text) => (Box::new(finished(model, start(encode(model, reading, text)?))?), 0),
            Origin::Trace(file) => ((reading.trace)(file, sequence)?, sequence),
        };
        for site in sites {
            let there = Site { sequence: own, ..site };
            let (sizes, outline) = (source.outline().card.sizes(), source.outline());
            let pass = outline.passes.get(site.pass).map(|pass| pass.dims);
            let Some(dims) = pass.filter(|&dims| {
                site.stage.present(&sizes, dims) && site.layer.is_none_or(|layer| layer < sizes.layers)
            }) else {
                let passes = outline.passes.len();
                return Err(Error::usage(format!("the other run has no {there}"))
                    .expected(format!("passes 0 to {}, layers 0 to {}", passes - 1, sizes.layers - 1))
                    .next("name cells that the other run has"));
            };
            let shape = sizes.shape(site.stage.axes(), dims);
            let mut values = Collected(Vec::new());
            show(&mut *source, there, &shape, &mut values)?;
            let array = ArrayD::from_shape_vec(IxDyn(&shape), values.0)
                .map_err(|_| Error::usage(format!("{there} is incomplete in the other run")))?;
            frames
                .push((site, Arc::new(Frame { site, axes: site.stage.axes(), data: FrameData::F32(array) })));
        }
    }
    Ok(frames)
}

/// Runs all passes of a source.
fn finished(model: &Model, start: Start) -> Result<Live> {
    let mut live = Live::start(Arc::new(model.clone()), start)?;
    loop {
        live.poll()?;
        if live.status() == Status::Idle {
            return Ok(live);
        }
        stop::check()?;
        live.wait(stop::LOOK);
    }
}

/// Collects the values of a stage.
struct Collected(Vec<f32>);

impl Probe for Collected {
    fn enabled(&self) -> bool {
        true
    }

    fn wants(&self, _: Site) -> bool {
        true
    }

    fn record(&mut self, _: Site, _: Range<usize>, values: Values<'_>) {
        self.0.extend(values.numbers().map(|value| value as f32));
    }
}

/// Prints a line for each edit of `model`: how many cells it changed, and one of them before and after. A last line says
/// how far the edits moved the logits after `prompt`.
pub(super) fn report(
    model: &Model,
    tokenizer: Option<&dyn Tokenizer>,
    prompt: Option<&Prompt>,
) -> Result<()> {
    if model.edits.is_empty() {
        return Ok(());
    }
    for (edit, changed) in model.edits.list().iter().zip(model.edits.changes()) {
        let edit = shortened(&edit.text);
        match changed {
            None => tell(format_args!(
                "warning: the edit `{edit}` found no cell in this run, so it changed nothing"
            )),
            Some(Changed { cells, changed: 0, .. }) => tell(format_args!(
                "warning: the edit `{edit}` changed nothing: its {cells} cells had these values already"
            )),
            Some(Changed { cells, changed, first: (address, before, after) }) => {
                let one = if changed == 1 { "cell" } else { "cells" };
                let of = if changed == cells { String::new() } else { format!(" of {cells}") };
                tell(format_args!(
                    "edit `{edit}`: {changed}{of} {one} changed, {address} from {before} to {after}"
                ));
            }
        }
    }
    let Some(prompt) = prompt else { return Ok(()) };
    let [plain, edited] =
        [model.with_edits(Edits::default()), model.clone()].map(|model| last_logits(&model, &prompt.ids));
    let (plain, edited) = (plain?, edited?);
    let square =
        |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let moved = square(&mut plain.iter().zip(&edited).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    let whole = square(&mut plain.iter().map(|&value| f64::from(value)));
    let first = |logits: &[f32]| {
        let best = (0..logits.len()).reduce(|best, id| if logits[id] > logits[best] { id } else { best });
        let id = best.unwrap_or(0) as u32;
        tokenizer.map_or_else(|| format!("#{id}"), |tokenizer| tokenizer.label(id))
    };
    let (was, is) = (first(&plain), first(&edited));
    let same = if was == is {
        format!("the most likely token stays {was}")
    } else {
        format!("the most likely token changes from {was} to {is}")
    };
    tell(format_args!(
        "the edits moved the logits after the prompt by {:.3} % (relative L2); {same}",
        100.0 * moved / whole
    ));
    Ok(())
}

/// The logits after a prompt.
fn last_logits(model: &Model, ids: &[u32]) -> Result<Vec<f32>> {
    let mut session = Session::with_capacity(model, sampler()?, ids.len())?;
    session.read(ids, &mut NoProbe)?;
    let mut logits = Vec::new();
    pass::last_logits(model, &session.work, 0, |row| {
        logits.extend_from_slice(row);
        Ok(())
    })?;
    Ok(logits)
}
