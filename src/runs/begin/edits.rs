//! The values that edits take from other runs, from files and from prompts.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use ndarray::{ArrayD, IxDyn};

use super::prompt::{self, Prompt};
use super::wait::show;
use crate::replay::{DEFAULT_MEMORY, Live, Start};
use llama_trace_core::edit::{Edit, Edits, Given, Needed, Origin};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::stop;
use llama_trace_core::trace::{
    Frame, FrameData, PassDims, Probe, Recorder, Select, Site, Source, Stage, Status, Values,
};
use llama_trace_engine::generate::{Sampler, Sampling, Session};
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
    /// The sequence and the sizes of each pass.
    pub passes: &'a [(usize, PassDims)],
    /// The number of passes of another run for a source that names no pass.
    pub most: usize,
}

/// The model with the edits of `list`, after everything that they read was read. `model` has no edits.
///
/// # Errors
/// [`Error::Usage`] if an edit does not fit the model, and the errors of the runs and files that it reads.
pub fn with(model: &Model, list: Vec<Edit>, reading: &Reading<'_>) -> Result<Model> {
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
                let array = reading.files.array(&file)?;
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
            Origin::Trace(file) => (reading.files.trace(file, sequence)?, sequence),
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
