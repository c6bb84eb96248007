//! The values that edits take from other runs, from files and from prompts.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use ndarray::{ArrayD, IxDyn};

use super::prompt::{self, Prompt};
use super::wait::show;
use llama_trace_core::edit::{Edit, Edits, Given, Needed, Origin};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::{
    Frame, FrameData, NoProbe, PassDims, Probe, Recorder, Select, Site, Sizes, Source, Stage, Values,
};
use llama_trace_engine::generate::{Next, Sampler, Sampling, Session};
use llama_trace_engine::model::Model;
use llama_trace_formats::tokenizer::Tokenizer;

/// The files from which edits read. A web page has none.
pub trait Files {
    /// Opens a sequence of a trace.
    ///
    /// # Errors
    /// An error if there is no such trace or sequence.
    fn trace(&self, file: &Path, sequence: usize) -> Result<Box<dyn Source>>;

    /// An array in a `.npy` file.
    ///
    /// # Errors
    /// An error if the file is not an array of numbers.
    fn array(&self, file: &Path) -> Result<ArrayD<f32>>;

    /// The prompts of `mean(FILE)`, one a line.
    ///
    /// # Errors
    /// An error if the file is not a text.
    fn prompts(&self, file: &Path) -> Result<String>;
}

/// The context of a run whose edits are read.
pub struct Reading<'a> {
    /// The files.
    pub files: &'a dyn Files,
    /// The tokenizer of the model.
    pub tokenizer: Option<&'a Arc<dyn Tokenizer>>,
    /// The prompts; none if the command chooses its own.
    pub prompts: &'a [Prompt],
    /// The sampler of the first prompt; `None` takes the most likely token. Each later prompt has the next stream.
    pub sampler: Option<&'a Sampler>,
    /// Maximum number of tokens of a prompt in one pass, if the run has one.
    pub chunk: Option<usize>,
    /// The sequence and the sizes of each pass.
    pub passes: &'a [(usize, PassDims)],
    /// The number of passes of another run for a source that names no pass.
    pub most: usize,
}

/// The edits with these texts.
///
/// # Errors
/// [`Error::Usage`] if a text is not an edit.
pub fn parsed(edits: &[String]) -> Result<Vec<Edit>> {
    let parsed = edits
        .iter()
        .map(|edit| Edit::parse(edit).map_err(|wrong| Error::usage(wrong).at(format!("edit \"{edit}\""))));
    parsed.collect()
}

/// The model with the edits of `list`, after everything that they read was read. `model` has no edits.
///
/// # Errors
/// [`Error::Usage`] if an edit does not fit the model, and the errors of the runs and files that it reads.
pub fn with(model: &Model, list: Vec<Edit>, reading: &Reading<'_>) -> Result<Model> {
    if list.is_empty() {
        return Ok(model.clone());
    }
    let edits = Edits::new(list).in_model(&model.sizes());
    edits.check(&model.card(), reading.passes)?;
    let given = given(model, &edits, reading)?;
    let edits = edits.with(given);
    edits.check_sources(&model.sizes(), reading.passes)?;
    Ok(model.with_edits(edits))
}

/// Everything that `edits` read. `model` has no edits.
fn given(model: &Model, edits: &Edits, reading: &Reading<'_>) -> Result<Given> {
    // A command that chooses its own passes reads sources in the first pass.
    let whole = [(0, PassDims { pass: 0, start: 0, tokens: model.config.context, ..PassDims::default() })];
    let passes = if reading.passes.is_empty() { &whole } else { reading.passes };
    collect(
        edits.needs(&model.sizes(), passes, reading.most),
        reading.files,
        &mut |origin, sites| read(model, reading, origin, sites),
        &mut |file, layer, stage| mean(model, reading, file, layer, stage),
    )
}

/// Everything that `edits` read in a trace whose model is not open. `plain` is the sequence of the trace that they
/// change, which has number `sequence` there.
///
/// # Errors
/// [`Error::Usage`] if an edit reads what needs the model, and the errors of the files.
pub fn given_of_trace(
    edits: &Edits,
    (plain, sequence): (&mut dyn Source, usize),
    files: &dyn Files,
) -> Result<Given> {
    let sizes = plain.outline().card.sizes();
    let passes: Vec<_> = plain.outline().passes.iter().map(|pass| (0, pass.dims)).collect();
    let no_model = |what: &str| {
        Error::usage(format!("{what} needs the model: a trace has no weights"))
            .next("open the trace with --model and the model that it was recorded from")
    };
    collect(
        edits.needs(&sizes, &passes, passes.len()),
        files,
        &mut |origin, sites| match origin {
            Origin::Plain => of_trace(plain, Some(sequence), sites),
            Origin::Prompt(_) => Err(no_model("a value of another prompt")),
            Origin::Trace(file) => {
                let sequences: BTreeSet<usize> = sites.keys().map(|site| site.sequence).collect();
                let read = |sequence| {
                    of_trace(&mut *files.trace(file, sequence)?, None, &of_sequence(sites, sequence))
                };
                let frames: Result<Vec<_>> = sequences.into_iter().map(read).collect();
                frames.map(|frames| frames.into_iter().flatten().collect())
            }
        },
        &mut |_, _, _| Err(no_model("a mean over prompts")),
    )
}

/// Returns the stages of a run that edits read.
type Read<'a> = dyn FnMut(&Origin, &Wanted) -> Result<Vec<(Site, Frame)>> + 'a;

/// Returns the mean of a stage over the prompts in a file.
type Mean<'a> = dyn FnMut(&Path, Option<usize>, Stage) -> Result<Vec<f32>> + 'a;

/// Reads everything in `needed`.
fn collect(
    needed: Vec<Needed>,
    files: &dyn Files,
    read: &mut Read<'_>,
    mean: &mut Mean<'_>,
) -> Result<Given> {
    let mut given = Given::default();
    let mut frames: HashMap<Origin, Wanted> = HashMap::new();
    for needed in needed {
        match needed {
            Needed::Frame { origin, site, named } => {
                *frames.entry(origin).or_default().entry(site).or_default() |= named;
            }
            Needed::Array(file) => {
                let array = files.array(&file)?;
                given.arrays.insert(file, array);
            }
            Needed::Mean(file, layer, stage) => {
                let mean = mean(&file, layer, stage)?;
                given.means.insert((file, layer, stage), mean);
            }
        }
    }
    for (origin, sites) in frames {
        for (site, frame) in read(&origin, &sites)? {
            given.frames.insert((origin.clone(), site), Arc::new(frame));
        }
    }
    Ok(given)
}

/// The sites of one sequence.
fn of_sequence(sites: &Wanted, sequence: usize) -> Wanted {
    let own = sites.iter().filter(|(site, _)| site.sequence == sequence);
    own.map(|(&site, &named)| (site, named)).collect()
}

/// The sites that edits read in a run, and whether an edit names the pass.
type Wanted = BTreeMap<Site, bool>;

/// The mean of a stage over all tokens of the prompts in a file, one prompt a line.
fn mean(
    model: &Model,
    reading: &Reading<'_>,
    file: &Path,
    layer: Option<usize>,
    stage: Stage,
) -> Result<Vec<f32>> {
    let text = reading.files.prompts(file)?;
    let select = Select::stages(&[stage]).in_layers(layer.into_iter().collect());
    let (mut sums, mut tokens): (Vec<f64>, usize) = (Vec::new(), 0);
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let ids = encode(model, reading, line)?;
        let mut session = Session::with_capacity(model, greedy()?, ids.len())?;
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

/// A sampler that takes the most likely token.
fn greedy() -> Result<Sampler> {
    Sampler::new(Sampling { temperature: 0.0, ..Sampling::default() })
}

fn encode(model: &Model, reading: &Reading<'_>, text: &str) -> Result<Vec<u32>> {
    let tokenizer = reading.tokenizer.map(|tokenizer| &**tokenizer).ok_or_else(prompt::no_tokenizer);
    prompt::encode(text, tokenizer, model.config.context)
}

/// The values of `sites` in another run.
fn read(model: &Model, reading: &Reading<'_>, origin: &Origin, sites: &Wanted) -> Result<Vec<(Site, Frame)>> {
    let mut frames = Vec::new();
    let sequences: BTreeSet<usize> = sites.keys().map(|site| site.sequence).collect();
    for sequence in sequences {
        let sites = of_sequence(sites, sequence);
        frames.extend(match origin {
            Origin::Plain => {
                let Some(prompt) = reading.prompts.get(sequence) else {
                    return Err(Error::usage("this command has no plain run from which an edit can read")
                        .expected("a source with a prompt or a trace, as in \"A prompt\":L1/attn_heads")
                        .next("name the run in the source"));
                };
                let sampler = match reading.sampler {
                    Some(sampler) => sampler.after(sequence as u64),
                    None => greedy()?,
                };
                of_run(model, &prompt.ids, reading.chunk, sampler, &sites)?
            }
            Origin::Prompt(text) => of_run(model, &encode(model, reading, text)?, None, greedy()?, &sites)?,
            Origin::Trace(file) => of_trace(&mut *reading.files.trace(file, sequence)?, None, &sites)?,
        });
    }
    Ok(frames)
}

/// Runs a prompt, and returns the values of `sites`. The prompt is read in passes over at most `chunk` tokens.
fn of_run(
    model: &Model,
    ids: &[u32],
    chunk: Option<usize>,
    sampler: Sampler,
    sites: &Wanted,
) -> Result<Vec<(Site, Frame)>> {
    let passes = sites.keys().map(|site| site.pass + 1).max().unwrap_or(1);
    let chunk = chunk.unwrap_or(ids.len()).max(1);
    let draws = (passes + 1).saturating_sub(ids.len().div_ceil(chunk)).max(1);
    let stages: BTreeSet<Stage> = sites.keys().map(|site| site.stage).collect();
    let layers: BTreeSet<usize> = sites.keys().filter_map(|site| site.layer).collect();
    let stages: Vec<Stage> = stages.into_iter().collect();
    let select = Select::stages(&stages).in_layers(layers.into_iter().collect());
    let room = ids.len().saturating_add(draws).min(model.config.context);
    let mut session = Session::with_capacity(model, sampler, room)?;
    session.check(ids)?;
    session.sequence.begin_in_chunks(ids, chunk, &[], draws);
    let (mut taken, mut ran) = (HashMap::new(), Vec::new());
    while let Next::Pass(dims) = session.next()
        && dims.pass < passes
    {
        let mut take = |frame: Frame| drop(taken.insert(Site { sequence: 0, ..frame.site }, frame));
        match sites.keys().any(|site| site.pass == dims.pass) {
            true => session.pass(&mut Recorder::new(model.sizes(), dims, &select, &mut take))?,
            false => session.pass(&mut NoProbe)?,
        };
        ran.push(dims);
    }
    let mut frames = Vec::new();
    for (&site, &named) in sites {
        if dims_of(site, named, &model.sizes(), &ran)?.is_some()
            && let Some(frame) = taken.remove(&Site { sequence: 0, ..site })
        {
            frames.push((site, frame));
        }
    }
    Ok(frames)
}

/// Reads the values of `sites` from a sequence of a trace. In the trace it has number `sequence`, or that of the sites.
fn of_trace(source: &mut dyn Source, sequence: Option<usize>, sites: &Wanted) -> Result<Vec<(Site, Frame)>> {
    let sizes = source.outline().card.sizes();
    let ran: Vec<PassDims> = source.outline().passes.iter().map(|pass| pass.dims).collect();
    let mut frames = Vec::new();
    for (&site, &named) in sites {
        let Some(dims) = dims_of(site, named, &sizes, &ran)? else { continue };
        let shape = sizes.shape(site.stage.axes(), dims);
        let mut values = Collected(Vec::new());
        let there = Site { sequence: sequence.unwrap_or(site.sequence), ..site };
        show(source, there, &shape, &mut values)?;
        let array = ArrayD::from_shape_vec(IxDyn(&shape), values.0)
            .map_err(|_| Error::usage(format!("{site} is incomplete in the other run")))?;
        frames.push((site, Frame { site, axes: site.stage.axes(), data: FrameData::F32(array) }));
    }
    Ok(frames)
}

/// The pass of `site` in a run with the passes `ran`. `None` if there is no such pass and no edit names it.
fn dims_of(site: Site, named: bool, sizes: &Sizes, ran: &[PassDims]) -> Result<Option<PassDims>> {
    let pass = ran.get(site.pass).copied();
    let there =
        |dims: &PassDims| site.present(sizes, *dims) && site.layer.is_none_or(|layer| layer < sizes.layers);
    match pass {
        Some(dims) if there(&dims) => Ok(Some(dims)),
        None if !named => Ok(None),
        _ => Err(Error::usage(format!("the other run has no {site}"))
            .expected(format!(
                "passes 0 to {}, layers 0 to {}",
                ran.len().saturating_sub(1),
                sizes.layers.saturating_sub(1)
            ))
            .next("name cells that the other run has")),
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
