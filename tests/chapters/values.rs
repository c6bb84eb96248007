//! The value of an address. The built-in model runs as the chapter declares, and addresses are read from the trace.

use std::collections::HashMap;
use std::sync::Arc;

use llama_trace::backend::cpu::Cpu;
use llama_trace::config::{DEFAULT_GROUP, Precision};
use llama_trace::generate::{Sampler, Sampling, Session};
use llama_trace::model::Model;
use llama_trace::tokenizer::{self, Tokenizer};
use llama_trace::trace::{Address, Axis, Frame, FrameData, Recorder, Select, Site, Step, Subject};
use ndarray::{ArrayD, Axis as Dim};
use serde_json::Value as Json;

use super::note::Run;

/// The value of an address.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Number(f64),
    Shape(Vec<usize>),
    Text(String),
}

type Result<T> = std::result::Result<T, String>;
type Frames = HashMap<Site, Frame>;

/// The built-in model in every precision, and every requested run.
pub(crate) struct World {
    models: HashMap<&'static str, Model>,
    tokenizer: Box<dyn Tokenizer>,
    heads: Json,
    runs: HashMap<Run, Arc<Frames>>,
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

    fn frames(&mut self, run: &Run) -> Result<Arc<Frames>> {
        if let Some(frames) = self.runs.get(run) {
            return Ok(Arc::clone(frames));
        }
        let sampler = Sampler::new(sampling(&run.sampling)?).map_err(|error| error.to_string())?;
        let model = self.model(run);
        let mut session = Session::new(model, sampler).unwrap();
        let mut ids = self.tokenizer.encode(&run.prompt).map_err(|error| error.to_string())?;
        let (mut frames, select) = (Frames::new(), Select::all());
        for _ in 0..run.passes {
            let dims = session.next_pass(ids.len());
            let mut recorder = Recorder::new(model.sizes(), dims, &select, |frame: Frame| {
                frames.insert(frame.site, frame);
            });
            ids = vec![session.run(&ids, &mut recorder).map_err(|error| error.to_string())?];
        }
        let frames = Arc::new(frames);
        self.runs.insert(run.clone(), Arc::clone(&frames));
        Ok(frames)
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
        let frames = self.frames(run)?;
        evaluate(self, self.model(run), &frames, address).map_err(|error| format!("{address}: {error}"))
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

fn evaluate(world: &World, model: &Model, frames: &Frames, address: &str) -> Result<Value> {
    let mut reader = Reader { world, model, frames, rest: address.trim() };
    let value = reader.sum()?;
    if reader.rest.is_empty() { Ok(value) } else { Err(format!("`{}` is left over", reader.rest)) }
}

/// Evaluates an expression from left to right.
struct Reader<'a> {
    world: &'a World,
    model: &'a Model,
    frames: &'a Frames,
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn takes(&mut self, mark: &str) -> bool {
        let rest = self.rest.strip_prefix(mark);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn sum(&mut self) -> Result<Value> {
        let mut left = self.product()?;
        loop {
            if self.takes(" + ") {
                left = Value::Number(number(&left)? + number(&self.product()?)?);
            } else if self.takes(" − ") {
                left = Value::Number(number(&left)? - number(&self.product()?)?);
            } else {
                return Ok(left);
            }
        }
    }

    fn product(&mut self) -> Result<Value> {
        let mut left = self.atom()?;
        loop {
            if self.takes(" · ") {
                left = Value::Number(number(&left)? * number(&self.atom()?)?);
            } else if self.takes(" ÷ ") {
                left = Value::Number(number(&left)? / number(&self.atom()?)?);
            } else {
                return Ok(left);
            }
        }
    }

    fn atom(&mut self) -> Result<Value> {
        for (name, function) in
            [("sqrt(", f64::sqrt as fn(f64) -> f64), ("exp(", f64::exp), ("ln(", f64::ln), ("(", |x| x)]
        {
            if self.takes(name) {
                let inside = number(&self.sum()?)?;
                return if self.takes(")") {
                    Ok(Value::Number(function(inside)))
                } else {
                    Err("a parenthesis is not closed".into())
                };
            }
        }
        let end = outside(self.rest, &[' ', ')']).unwrap_or(self.rest.len());
        let (atom, rest) = self.rest.split_at(end);
        self.rest = rest;
        self.read(atom)
    }

    fn read(&self, atom: &str) -> Result<Value> {
        if let Ok(number) = atom.parse() {
            return Ok(Value::Number(number));
        }
        if atom == "pi" {
            return Ok(Value::Number(std::f64::consts::PI));
        }
        if let Some(name) = atom.strip_prefix("config/") {
            return self.config(name);
        }
        if let Some(path) = atom.strip_prefix("heads.json/") {
            return Ok(Value::Number(self.world.heads(path)?.as_f64().ok_or("it is no number")?));
        }
        let (path, stats) = atom.split_at(outside(atom, &['.']).unwrap_or(atom.len()));
        let (path, index) = match path.split_once('[') {
            Some((path, index)) => (path, index.strip_suffix(']').ok_or("the index is not closed")?),
            None => (path, ""),
        };
        let (site, step) = self.site(path)?;
        let frame = self.frames.get(&site).ok_or_else(|| format!("there is no {site} in this run"))?;
        let frame = match step {
            Step::View(view) => &frame.view(view, &self.model.sizes()),
            Step::Stage(_) => frame,
        };
        let array = match &frame.data {
            FrameData::F32(array) => array.mapv(f64::from),
            FrameData::I64(array) => array.mapv(|id| id as f64),
            FrameData::I8(array) => array.mapv(f64::from),
        };
        let (array, axes) = self.slice(array, step.axes(), index)?;
        self.reduce(&array, &axes, site, stats)
    }

    fn config(&self, name: &str) -> Result<Value> {
        let card = self.model.card();
        let sizes = card.sizes();
        let number = match name {
            "D" => sizes.dim,
            "H" => sizes.heads,
            "G" => sizes.kv_heads,
            "C" => sizes.head_dim,
            "F" => sizes.hidden,
            "V" => sizes.vocab,
            "g" => sizes.group.ok_or("no groups in this precision")?,
            "layers" => sizes.layers,
            "context" => card.config.context,
            "eps" => return Ok(Value::Number(f64::from(card.config.norm_eps))),
            "theta" => return Ok(Value::Number(f64::from(card.config.rope_theta))),
            _ => return Err(format!("the configuration has no {name}")),
        };
        Ok(Value::Number(number as f64))
    }

    /// `p0/L{induction}/softmax`.
    fn site(&self, path: &str) -> Result<(Site, Step)> {
        let plain =
            match path.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?))) {
                Some((before, (name, after))) => {
                    let layer = self.position(&format!("{{{name}}}"), usize::MAX, |(layer, _)| layer)?;
                    format!("{before}{layer}{after}")
                }
                None => path.to_owned(),
            };
        let address = Address::parse(&plain)?;
        let Some(Subject::Step(step)) = address.subject else {
            return Err(format!("`{path}` names no stage"));
        };
        if step.stage().in_layer() != address.layer.is_some() {
            return Err(format!(
                "`{path}` is no path of a stage: it needs a layer exactly if the stage is in a layer"
            ));
        }
        let pass = address.pass.ok_or_else(|| format!("`{path}` names no pass"))?;
        Ok((Site { layer: address.layer, ..Site::once(pass, step.stage()) }, step))
    }

    /// An index is a number, `last`, or an address or a head of heads.json in braces.
    fn position(&self, text: &str, length: usize, of: impl Fn((usize, usize)) -> usize) -> Result<usize> {
        let position = if text == "last" {
            length - 1
        } else if let Some(name) = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
            match evaluate(self.world, self.model, self.frames, name) {
                Ok(value) => number(&value)? as usize,
                Err(_) => of(self.world.head(name)?),
            }
        } else {
            text.parse().map_err(|_| format!("`{text}` is no index"))?
        };
        if position < length { Ok(position) } else { Err(format!("{position} is past the last of {length}")) }
    }

    /// Returns the part of `array` that `index` selects, and its remaining axes.
    fn slice(&self, array: ArrayD<f64>, axes: &[Axis], index: &str) -> Result<(ArrayD<f64>, Vec<Axis>)> {
        let (mut array, mut axes) = (array, axes.to_vec());
        let mut rest = index;
        while !rest.is_empty() {
            let end = outside(rest, &[',']).unwrap_or(rest.len());
            let part = &rest[..end];
            rest = rest[end..].trim_start_matches(',');
            let (letter, position) = part.split_once('=').ok_or_else(|| format!("`{part}` is no index"))?;
            let fits =
                |axis: &Axis| letter == axis.index().to_string() || (letter == "q" && *axis == Axis::Token);
            let at = axes.iter().position(fits).ok_or_else(|| format!("no axis is called {letter}"))?;
            let position = self.position(position, array.shape()[at], |(_, head)| head)?;
            array.index_axis_inplace(Dim(at), position);
            axes.remove(at);
        }
        Ok((array, axes))
    }

    fn reduce(&self, array: &ArrayD<f64>, axes: &[Axis], site: Site, stats: &str) -> Result<Value> {
        let values: Vec<f64> = array.iter().copied().collect();
        let finite = || values.iter().copied().filter(|value| value.is_finite());
        let count = |holds: fn(f64) -> bool| values.iter().filter(|&&value| holds(value)).count() as f64;
        let squares = || finite().map(|value| value * value).sum::<f64>();
        let mean = || finite().sum::<f64>() / finite().count() as f64;
        let (stat, then) = match stats.strip_suffix(".text") {
            Some(stat) => (stat, true),
            None => (stats, false),
        };
        let ranked = |rank: &str, what: &str| -> Result<(usize, f64)> {
            let [_] = axes else { return Err(format!("{what} needs one free axis")) };
            let rank: usize = rank.parse().map_err(|_| format!("{what} needs a number"))?;
            let mut order: Vec<usize> = (0..values.len()).collect();
            order.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
            let at = rank.checked_sub(1).and_then(|rank| order.get(rank));
            at.map(|&at| (at, values[at])).ok_or_else(|| format!("there is no {what}"))
        };
        let number = match stat {
            "" => match values[..] {
                [value] if axes.is_empty() => value,
                _ => return Err(format!("the index leaves {} values", values.len())),
            },
            ".shape" if !then => return Ok(Value::Shape(array.shape().to_vec())),
            ".min" => finite().fold(f64::INFINITY, f64::min),
            ".max" => finite().fold(f64::NEG_INFINITY, f64::max),
            ".mean" => mean(),
            ".std" => (finite().map(|v| (v - mean()).powi(2)).sum::<f64>() / finite().count() as f64).sqrt(),
            ".rms" => (squares() / finite().count() as f64).sqrt(),
            ".norm" => squares().sqrt(),
            ".sum" => finite().sum(),
            ".count" => values.len() as f64,
            ".zeros" => count(|value| value == 0.0),
            ".neg_inf" => count(|value| value == f64::NEG_INFINITY),
            ".negative" => count(|value| value < 0.0),
            ".positive" => count(|value| value > 0.0),
            ".argmax" => ranked("1", stat)?.0 as f64,
            ".argmin" => ranked(&values.len().to_string(), stat)?.0 as f64,
            _ => {
                if let Some(rank) = stat.strip_prefix(".arg") {
                    ranked(rank, stat)?.0 as f64
                } else if let Some(rank) = stat.strip_prefix(".top") {
                    ranked(rank, stat)?.1
                } else if let Some(least) =
                    stat.strip_prefix(".at_least(").and_then(|rest| rest.strip_suffix(')'))
                {
                    let least: f64 = least.parse().map_err(|_| format!("{stat} needs a number"))?;
                    values.iter().filter(|&&value| value >= least).count() as f64
                } else {
                    return Err(format!("{stat} is no known statistic"));
                }
            }
        };
        if !then {
            return Ok(Value::Number(number));
        }
        let id = match axes {
            [Axis::Vocab] => number as usize,
            [Axis::Token | Axis::Key] if site.stage.is_ids() => number as usize,
            [Axis::Token | Axis::Key] => self.token_at(site.pass, axes[0], number as usize)?,
            [] if site.stage.is_ids() => number as usize,
            _ => return Err("it has no text".into()),
        };
        Ok(Value::Text(visible(&self.world.tokenizer.label(id as u32))))
    }

    /// Returns the id at a position: on a token axis a position of the pass, on a key axis a position of the whole
    /// text.
    fn token_at(&self, pass: usize, axis: Axis, position: usize) -> Result<usize> {
        let tokens = |pass| {
            let site = Site::once(pass, llama_trace::trace::Stage::Tokens);
            self.frames.get(&site).into_iter().flat_map(|frame| match &frame.data {
                FrameData::I64(ids) => ids.iter().copied().collect::<Vec<_>>(),
                FrameData::F32(_) | FrameData::I8(_) => Vec::new(),
            })
        };
        let from = if axis == Axis::Key { 0 } else { pass };
        let id = (from..=pass).flat_map(tokens).nth(position);
        id.map(|id| id as usize).ok_or_else(|| format!("there is no token {position}"))
    }
}

/// Returns the place of the first of `marks` in `text` that is outside brackets.
fn outside(text: &str, marks: &[char]) -> Option<usize> {
    let mut depth = 0_usize;
    text.find(|c| {
        if depth == 0 && marks.contains(&c) {
            return true;
        }
        match c {
            '[' | '(' | '{' => depth += 1,
            ']' | ')' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        false
    })
}

fn number(value: &Value) -> Result<f64> {
    match value {
        Value::Number(number) => Ok(*number),
        _ => Err("arithmetic needs numbers".into()),
    }
}

/// A token's text as the viewer prints it.
fn visible(text: &str) -> String {
    llama_trace::tui::text::visible(text)
}

impl Value {
    /// Formats the value with as many digits after the point as `printed` has.
    pub(crate) fn written_like(&self, printed: &str) -> String {
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

    /// Returns whether `printed` is this value, rounded to the printed digits. The last bits of a value may depend on
    /// the machine's exp and sin, so a difference of half a unit in the last digit is allowed.
    pub(crate) fn is(&self, printed: &str) -> bool {
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
