//! The value of an address. The built-in model runs as the chapter declares, and addresses are read from the trace.

use std::collections::HashMap;
use std::sync::Arc;

use llama_trace::backend::cpu::Cpu;
use llama_trace::config::{DEFAULT_GROUP, Precision};
use llama_trace::generate::{Sampler, Sampling, Session};
use llama_trace::lesson::{self, Evaluation, Expression, Unfinished, Value};
use llama_trace::model::Model;
use llama_trace::tokenizer::{self, Tokenizer};
use llama_trace::trace::{Frame, ModelCard, PassDims, Recorder, Select, Site};
use serde_json::Value as Json;

use super::note::Run;

type Result<T> = std::result::Result<T, String>;

/// A finished run.
struct Finished {
    card: ModelCard,
    passes: Vec<PassDims>,
    frames: HashMap<Site, Frame>,
}

/// A finished run, in which expressions are evaluated.
struct InRun<'a> {
    world: &'a World,
    run: &'a Finished,
}

impl lesson::World for InRun<'_> {
    fn card(&self) -> &ModelCard {
        &self.run.card
    }

    fn dims(&self, sequence: usize, pass: usize) -> Option<PassDims> {
        self.run.passes.get(pass).copied().filter(|_| sequence == 0)
    }

    fn frame(&self, site: Site) -> Option<&Frame> {
        self.run.frames.get(&site)
    }

    fn token_text(&self, id: u32) -> String {
        visible(&self.world.tokenizer.label(id))
    }

    fn fact(&self, path: &str) -> Option<f64> {
        self.world.heads(path).ok()?.as_f64()
    }
}

/// The built-in model in every precision, and every requested run.
pub(crate) struct World {
    models: HashMap<&'static str, Model>,
    tokenizer: Box<dyn Tokenizer>,
    heads: Json,
    runs: HashMap<Run, Arc<Finished>>,
}

impl World {
    pub(crate) fn new(heads: Json) -> Self {
        let checkpoint = llama_trace::builtin::open().unwrap();
        let tokenizer = tokenizer::find(&checkpoint.vocabulary(), &checkpoint.config, None).unwrap().unwrap();
        let precisions = [Precision::F32, Precision::Bf16, Precision::Q8 { group: DEFAULT_GROUP }];
        let load = |precision: Precision| {
            let cpu = Cpu::default().with_precision(precision);
            (precision.name(), Model::load(&checkpoint, cpu).unwrap())
        };
        Self { models: precisions.map(load).into(), tokenizer, heads, runs: HashMap::new() }
    }

    fn model(&self, run: &Run) -> &Model {
        &self.models[&*run.precision]
    }

    fn finished(&mut self, run: &Run) -> Result<Arc<Finished>> {
        if let Some(finished) = self.runs.get(run) {
            return Ok(Arc::clone(finished));
        }
        let sampler = Sampler::new(sampling(&run.sampling)?).map_err(|error| error.to_string())?;
        let model = self.model(run);
        let mut session = Session::new(model, sampler).unwrap();
        let mut ids = self.tokenizer.encode(&run.prompt).map_err(|error| error.to_string())?;
        let (mut frames, mut passes, select) = (HashMap::new(), Vec::new(), Select::all());
        for _ in 0..run.passes {
            let dims = session.next_pass(ids.len());
            let mut recorder = Recorder::new(model.sizes(), dims, &select, |frame: Frame| {
                frames.insert(frame.site, frame);
            });
            ids = vec![session.run(&ids, &mut recorder).map_err(|error| error.to_string())?];
            passes.push(dims);
        }
        let finished = Arc::new(Finished { card: model.card(), passes, frames });
        self.runs.insert(run.clone(), Arc::clone(&finished));
        Ok(finished)
    }

    /// Returns whether `number` is one of the model's sizes. The few small sizes do not count.
    pub(crate) fn is_size(&self, number: &str) -> bool {
        let card = self.models["f32"].card();
        let sizes = card.sizes();
        let (q, kv) = (sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim);
        [sizes.dim, sizes.head_dim, sizes.hidden, sizes.vocab, card.config.context, q, kv]
            .iter()
            .any(|size| *size > 9 && size.to_string() == number)
    }

    /// Returns a number of heads.json, for example `induction/score`.
    pub(crate) fn heads(&self, path: &str) -> Result<&Json> {
        let found = path.split('/').try_fold(&self.heads, |json, key| json.get(key));
        found.ok_or_else(|| format!("heads.json has no {path}"))
    }

    /// Returns the layer and the head of heads.json with this name.
    pub(crate) fn head(&self, name: &str) -> Result<(usize, usize)> {
        let number = |key: &str| -> Result<usize> {
            let path = format!("{name}/{key}");
            self.heads(&path)?.as_u64().map(|n| n as usize).ok_or(format!("{path} is no number"))
        };
        Ok((number("layer")?, number("head")?))
    }

    /// Returns the value of `address` in `run`.
    pub(crate) fn value(&mut self, run: &Run, address: &str) -> Result<Value> {
        if address.parse::<f64>().is_ok() {
            return Err(format!("{address} is a number, and no address"));
        }
        let run = self.finished(run)?;
        let in_run = InRun { world: self, run: &run };
        let value = Expression::parse(address).and_then(|expression| {
            Evaluation::new(&in_run).value(&expression).map_err(|unfinished| match unfinished {
                Unfinished::Wrong(wrong) => wrong,
                Unfinished::Needs(sites) => format!("there is no {} in this run", sites[0]),
            })
        });
        value.map_err(|error| format!("{address}: {error}"))
    }
}

fn sampling(words: &[String]) -> Result<Sampling> {
    let mut sampling = Sampling::default();
    for pair in words.chunks(2) {
        let [name, value] = pair else { return Err("a sampler's option without its value".into()) };
        let wrong = |_| format!("{name} {value} is no option of the sampler");
        match name.as_str() {
            "--temperature" => sampling.temperature = value.parse().map_err(|_| wrong(()))?,
            "--top-p" => sampling.top_p = value.parse().map_err(|_| wrong(()))?,
            "--top-k" => sampling.top_k = value.parse().map_err(|_| wrong(()))?,
            "--min-p" => sampling.min_p = value.parse().map_err(|_| wrong(()))?,
            "--typical-p" => sampling.typical_p = value.parse().map_err(|_| wrong(()))?,
            "--repetition-penalty" => sampling.repetition_penalty = value.parse().map_err(|_| wrong(()))?,
            "--seed" => sampling.seed = value.parse().map_err(|_| wrong(()))?,
            _ => return Err(wrong(())),
        }
    }
    Ok(sampling)
}

/// A token's text as the viewer prints it.
fn visible(text: &str) -> String {
    llama_trace::tui::text::visible(text)
}

/// How a chapter writes a value.
pub(crate) trait Written {
    /// Formats the value with as many digits after the point as `printed` has.
    fn written_like(&self, printed: &str) -> String;

    /// Returns whether `printed` is this value, rounded to the printed digits. The last bits of a value may depend on
    /// the machine's exp and sin, so a difference of half a unit in the last digit is allowed.
    fn is(&self, printed: &str) -> bool;
}

impl Written for Value {
    fn written_like(&self, printed: &str) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Shape(shape) => {
                let sizes: Vec<_> = shape.iter().map(usize::to_string).collect();
                format!("({})", sizes.join(", "))
            }
            Self::Number(number) if *number == f64::NEG_INFINITY => "−inf".into(),
            Self::Number(number) => {
                let digits = printed.split_once('.').map_or(0, |(_, digits)| digits.len());
                let text = format!("{number:.digits$}");
                let zero = text.trim_start_matches('-').chars().all(|c| matches!(c, '0' | '.'));
                if zero { text.trim_start_matches('-').into() } else { text.replace('-', "−") }
            }
        }
    }

    fn is(&self, printed: &str) -> bool {
        if self.written_like(printed) == printed {
            return true;
        }
        let (Self::Number(number), Ok(read)) = (self, printed.replace('−', "-").parse::<f64>()) else {
            return false;
        };
        let Some((_, digits)) = printed.split_once('.') else { return false };
        let half = 0.5 * 0.1_f64.powi(digits.len() as i32);
        (read - number).abs() <= half * 1.001 + 1e-6 * number.abs()
    }
}
