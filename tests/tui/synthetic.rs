//! A source without a model. It computes values by a formula, and has everything that a viewer must handle.

use std::collections::HashSet;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use llama_trace::config::{Arithmetic, CacheDtype, ModelConfig, Pairing, Precision};
use llama_trace::error::{Error, Result};
use llama_trace::explain::{Line, Operands, Place, Rules, added, strongest};
use llama_trace::generate::{Sampler, Sampling};
use llama_trace::trace::frame::FrameData;
use llama_trace::trace::pattern::Measuring;
use llama_trace::trace::token_logprobs::{Joined, TokenLogprob, TokenPieces};
use llama_trace::trace::{
    Answer, Block, Cached, Fork, Frame, Order, Outline, PassOutline, Query, Region, Run, Site, Source,
    Spread, Stage, Status, TokenLabel,
};
use llama_trace::trace::{ModelCard, PassDims};
use ndarray::{ArrayD, Dimension, IxDyn};

/// A model so small that every value is known.
pub(crate) fn config() -> ModelConfig {
    ModelConfig {
        layers: 3,
        ffn_dim: 48,
        vocab: 64,
        context: 64,
        pairing: Pairing::Neighbours,
        tied: true,
        ..ModelConfig::of_heads(4, 2, 8)
    }
}

/// The sampling settings.
pub(crate) const SAMPLING: Sampling =
    Sampling { temperature: 0.8, top_k: 40, top_p: 0.9, seed: 7, ..Sampling::GREEDY };

const TEXTS: [&str; 12] =
    ["<s>", " Once", " upon", " a", " time", ",", " 小さな", " girl", "\n", " é\u{301}", "\u{200d}", " Lily"];

/// The prompt's tokens.
pub(crate) fn prompt() -> Vec<TokenLabel> {
    TEXTS.iter().zip(1..).map(|(text, id)| TokenLabel { id, text: (*text).to_owned() }).collect()
}

fn sampled(pass: usize) -> TokenLabel {
    let id = 20 + pass as u32;
    TokenLabel { id, text: text(id) }
}

fn text(id: u32) -> String {
    match id {
        1..=12 => TEXTS[id as usize - 1].to_owned(),
        id => format!(" word{id}"),
    }
}

/// The synthetic source.
#[derive(Clone)]
pub(crate) struct Synthetic {
    pub(crate) outline: Outline,
    /// Sites whose values arrive at the next poll.
    pub(crate) pending: HashSet<Site>,
    /// Sites that fail.
    pub(crate) failing: HashSet<Site>,
    /// Maximum number of passes.
    pub(crate) most_passes: usize,
    /// Whether the next pass never arrives.
    pub(crate) loses_passes: bool,
    due: bool,
    /// Maximum number of values in a frame. Larger stages arrive in blocks.
    pub(crate) largest: usize,
    /// Whether it computes without end until it is stopped.
    pub(crate) working: bool,
    /// Whether each request is stopped at once.
    pub(crate) interrupts: bool,
    /// Whether a stop was requested.
    pub(crate) stopped: bool,
    /// Factor of every value, except of values that sum to 1.
    pub(crate) factor: f32,
    /// One value of `ffn_hidden` that is far from all others.
    pub(crate) outlier: Option<f32>,
    /// Number of requests for a frame.
    pub(crate) asked: usize,
}

impl Synthetic {
    pub(crate) fn new() -> Self {
        Self::with(config(), Precision::F32, prompt())
    }

    /// A source of a model that ignores this field of its configuration.
    pub(crate) fn ignoring(field: &str) -> Self {
        let mut source = Self::new();
        source.outline.card.ignored = vec![field.to_owned()];
        source
    }

    /// A model with a window, with norms on queries and keys, and in int8, so that every step of the table exists.
    pub(crate) fn with_switches() -> Self {
        let config = ModelConfig { qk_norm: true, window: Some(5), ..config() };
        Self::with(config, Precision::Q8 { group: 5 }, prompt())
    }

    pub(crate) fn with(config: ModelConfig, precision: Precision, tokens: Vec<TokenLabel>) -> Self {
        let card = ModelCard {
            name: "synthetic-3x4".into(),
            ignored: vec![],
            without: vec![],
            edits: vec![],
            config,
            precision,
            arithmetic: Arithmetic::Fused,
            backend: "cpu".into(),
        };
        let dims = PassDims { pass: 0, start: 0, tokens: tokens.len(), ..PassDims::default() };
        let outline = Outline {
            run: Run::ITSELF,
            fork: None,
            setting: None,
            sequence: 0,
            sequences: 1,
            recorded: false,
            ended: None,
            card,
            passes: vec![PassOutline { dims, tokens, sampled: Some(sampled(0)) }],
            cache: Cached { dtype: CacheDtype::F32, capacity: Some(64) },
        };
        Self {
            outline,
            pending: HashSet::new(),
            failing: HashSet::new(),
            most_passes: 4,
            loses_passes: false,
            due: false,
            largest: usize::MAX,
            working: false,
            stopped: false,
            interrupts: false,
            factor: 1.0,
            outlier: None,
            asked: 0,
        }
    }

    /// A source whose first pass is complete at the next poll.
    pub(crate) fn opening() -> Self {
        let mut source = Self::new();
        source.outline.passes[0].sampled = None;
        source
    }

    fn is_opening(&self) -> bool {
        self.outline.passes[0].sampled.is_none()
    }

    fn values(&self, site: Site, dims: PassDims) -> Frame {
        let sizes = self.outline.card.sizes();
        let axes = site.stage.axes();
        let shape = sizes.shape(axes, dims);
        let index = IxDyn(&shape);
        let layer = site.layer.unwrap_or(0);
        let hidden = |t: usize, k: usize| {
            let position = dims.start + t;
            k > position || sizes.window.is_some_and(|window| k + window <= position)
        };
        let data = match site.stage {
            Stage::Tokens => {
                let pass = &self.outline.passes[site.pass];
                FrameData::I64(ArrayD::from_shape_fn(index, |at| i64::from(pass.tokens[at[0]].id)))
            }
            Stage::Sampled => {
                let id = self.outline.passes[site.pass].sampled.as_ref().unwrap().id;
                FrameData::I64(ArrayD::from_elem(index, i64::from(id)))
            }
            Stage::Mask => FrameData::F32(ArrayD::from_shape_fn(index, |at| {
                if hidden(at[0], at[1]) { f32::NEG_INFINITY } else { 0.0 }
            })),
            Stage::MaskedScores => FrameData::F32(ArrayD::from_shape_fn(index, |at| {
                if hidden(at[1], at[2]) {
                    f32::NEG_INFINITY
                } else {
                    self.factor * wave(layer, at[0] * 7 + at[1], at[2])
                }
            })),
            Stage::Softmax => FrameData::F32(ArrayD::from_shape_fn(index, |at| {
                let weight = |k: usize| {
                    if hidden(at[1], k) {
                        0.0
                    } else {
                        (2.0 * self.factor * wave(layer, at[0] * 7 + at[1], k)).exp()
                    }
                };
                weight(at[2]) / (0..dims.keys()).map(weight).sum::<f32>()
            })),
            Stage::Probs | Stage::Nucleus => {
                let inside = |wave: f32| site.stage == Stage::Probs || wave > 0.9;
                let weight = |v: usize| {
                    let wave = wave(2, site.pass, v);
                    if inside(wave) { (4.0 * wave).exp() } else { 0.0 }
                };
                let sum: f32 = (0..shape[0]).map(weight).sum();
                FrameData::F32(ArrayD::from_shape_fn(index, |at| weight(at[0]) / sum))
            }
            stage if stage.is_int8() => FrameData::I8(ArrayD::from_shape_fn(index, |at| {
                let flat = at.slice();
                let row = flat[..flat.len() - 1].iter().fold(0, |row, i| row * 5 + i);
                (127.0 * wave(layer, row, flat[flat.len() - 1])).round() as i8
            })),
            _ => FrameData::F32(ArrayD::from_shape_fn(index, |at| {
                let flat = at.slice();
                let last = flat.len() - 1;
                // The number of the stage among the stages that this model has.
                let has = |stage: &&Stage| {
                    use Stage as S;
                    let switch = matches!(
                        stage,
                        S::LayerRopeCos
                            | S::LayerRopeSin
                            | S::XqNorm
                            | S::XkNorm
                            | S::XqRopeNorm
                            | S::XkRopeNorm
                            | S::CappedScores
                            | S::PostAttnNorm
                            | S::FfnAct
                            | S::PostFfnNorm
                            | S::CappedLogits
                    );
                    stage.present(&sizes, dims) || !(switch || stage.is_int8() || stage.is_scale())
                };
                let number = Stage::ALL.iter().filter(has).position(|stage| *stage == site.stage).unwrap();
                let row = flat[..last].iter().fold(number, |row, i| row * 5 + i);
                // One NaN, at a place where a user may look at it.
                if site.stage == Stage::FfnUp && flat == [0, 3] {
                    f32::NAN
                } else if let (Stage::FfnHidden, [0, 5], Some(outlier)) = (site.stage, flat, self.outlier) {
                    outlier
                } else {
                    self.factor * 3.0 * wave(layer, row, flat[last])
                }
            })),
        };
        Frame { site, axes, data }
    }
}

impl Synthetic {
    /// The rules of the run that need no weights.
    fn rules(&self) -> Rules {
        let mut rules = Rules::new(self.outline.card.clone(), CacheDtype::F32, Sampling::default());
        self.outline.passes.iter().for_each(|pass| rules.push(pass.dims, None));
        rules
    }
}

impl Operands for Synthetic {
    fn numbers(&mut self, line: Line) -> Result<Vec<f32>> {
        let Place::Stage(site) = line.place else { return Err(Error::usage("it has no weights")) };
        let frame = self.values(site, self.outline.passes[site.pass].dims);
        let FrameData::F32(array) = &frame.data else { panic!("{site} is asked for as numbers") };
        let values: Vec<f32> = array.iter().copied().collect();
        Ok(line.cells().map(|cell| values[cell.at]).collect())
    }

    fn whole(&mut self, _: Line, _: &[i8], _: &[f32], _: usize) -> Result<(Vec<f32>, f32)> {
        Err(Error::usage("it has no weights"))
    }
}

/// The part of `frame` inside `region`.
fn cut(frame: &Frame, region: Region) -> Block {
    let FrameData::F32(whole) = &frame.data else { panic!("only float32 stages are that large") };
    let part = whole.slice_each_axis(|axis| region.0[axis.axis.index()].clone().into()).to_owned();
    let part = Frame { site: frame.site, axes: frame.axes, data: FrameData::F32(part) };
    Block { frame: Arc::new(part), region, shape: whole.shape().to_vec() }
}

fn wave(layer: usize, row: usize, column: usize) -> f32 {
    ((layer as f32 + 1.0) * 0.7 + row as f32 * 1.3 + column as f32 * 0.9).sin()
}

impl Source for Synthetic {
    fn outline(&self) -> &Outline {
        &self.outline
    }

    fn ask(&mut self, query: &Query) -> Poll<Result<Answer>> {
        let without_weights = matches!(
            query,
            Query::Block(..)
                | Query::Spread(_)
                | Query::Order(_)
                | Query::Draw(_)
                | Query::Stream(_)
                | Query::Units(_)
                | Query::TokenLogprobs(_)
                | Query::TokenPieces(_)
                | Query::Patterns(_)
        );
        let Some(site) = query.site().filter(|_| without_weights) else {
            return Poll::Ready(Err(Error::usage("it has no weights")));
        };
        self.asked += usize::from(matches!(query, Query::Block(..)));
        let Some(pass) = self.outline.passes.get(site.pass) else {
            return Poll::Ready(Err(Error::usage("there is no such pass")));
        };
        if self.failing.contains(&site) {
            let error = Error::model("the layer cannot be read").at("model.bin").next("fetch the file again");
            return Poll::Ready(Err(error));
        }
        if self.pending.contains(&site) {
            return Poll::Pending;
        }
        if self.interrupts {
            return Poll::Ready(Err(Error::interrupted("interrupted")));
        }
        if self.is_opening() && site.stage != Stage::Tokens || self.working {
            return Poll::Pending;
        }
        if let Query::Draw(at) = query {
            let logits = self.values(site.other(Stage::Logits), pass.dims);
            let FrameData::F32(logits) = &logits.data else { unreachable!("logits are float32") };
            let row: Vec<f32> =
                logits.index_axis(ndarray::Axis(0), pass.dims.tokens - 1).iter().copied().collect();
            let draw =
                Sampler::new(SAMPLING).unwrap().look((&row, &[]), at.site.pass as u64, at.setting, at.times);
            return Poll::Ready(draw.map(|draw| Answer::Draw(Arc::new(draw))));
        }
        if let Query::TokenLogprobs(at) = query {
            let logits = |pass: usize, row: usize| -> Vec<f32> {
                let dims = self.outline.passes[pass].dims;
                let frame = self.values(Site { pass, ..site }, dims);
                let FrameData::F32(logits) = &frame.data else { unreachable!("logits are float32") };
                logits.index_axis(ndarray::Axis(0), row).iter().copied().collect()
            };
            let told = at.tokens.clone().map(|token| {
                let before = match token.checked_sub(1) {
                    Some(row) => logits(site.pass, row),
                    None => {
                        logits(site.pass.checked_sub(1)?, self.outline.passes[site.pass - 1].dims.tokens - 1)
                    }
                };
                TokenLogprob::of(&before, pass.tokens[token].id)
            });
            return Poll::Ready(Ok(Answer::TokenLogprobs(told.collect())));
        }
        if let Query::TokenPieces(_) = query {
            let made = |token: &TokenLabel| {
                let parts: Vec<String> = token.text.chars().map(String::from).collect();
                let merges = parts.windows(2).enumerate().map(|(i, two)| Joined {
                    left: parts[..=i].concat(),
                    right: two[1].clone(),
                    by: format!("rank {}", 40 + i),
                });
                TokenPieces {
                    bytes: token.text.clone().into_bytes(),
                    merges: merges.collect(),
                    parts: parts.clone(),
                }
            };
            return Poll::Ready(Ok(Answer::TokenPieces(pass.tokens.iter().map(made).collect())));
        }
        let frame = Arc::new(self.values(site, pass.dims));
        let shape = frame.shape().to_vec();
        Poll::Ready(Ok(match query {
            Query::Block(_, region) => {
                let whole = shape.iter().product::<usize>() <= self.largest;
                let cut = || cut(&frame, region.grown(&shape, self.largest));
                Answer::Block(if whole { Block::whole(Arc::clone(&frame)) } else { cut() })
            }
            Query::Spread(part) => Answer::Spread(Spread::of_frame(&frame, part.held)),
            Query::Order(part) => Answer::Order(Order::of(&Block::whole(frame), part.held)),
            Query::Patterns(_) => {
                let passes = self.outline.passes.iter().take(site.pass + 1);
                let text: Vec<u32> = passes.flat_map(|pass| &pass.tokens).map(|token| token.id).collect();
                Answer::Patterns(Measuring::of_frame(&frame, &self.outline.card.sizes(), pass.dims, &text))
            }
            Query::Stream(at) => Answer::Stream(added(&self.rules(), at, self)?),
            Query::Units(at) => Answer::Units(Arc::new(strongest(&self.rules(), at, self)?)),
            _ => unreachable!("answered above"),
        }))
    }

    fn cancel(&mut self, _: &Query) {}

    fn stop(&mut self) {
        self.stopped = true;
        self.working = false;
        self.due = false;
    }

    fn branch(&mut self, run: Run, fork: Fork) -> Result<Box<dyn Source>> {
        let mut branch = self.clone();
        branch.outline.passes.truncate(fork.pass + 1);
        let Some(last) = branch.outline.passes.last_mut() else { return Err(Error::usage("no such pass")) };
        last.sampled = Some(TokenLabel { id: fork.token, text: text(fork.token) });
        (branch.outline.run, branch.outline.fork) = (run, Some(fork));
        branch.outline.setting = fork.setting.or(self.outline.setting);
        Ok(Box::new(branch))
    }

    fn advance(&mut self) -> Result<()> {
        if self.outline.passes.len() >= self.most_passes {
            return Err(Error::prompt("the context is full").expected("at most 64 tokens"));
        }
        self.due = !self.loses_passes;
        Ok(())
    }

    fn poll(&mut self) -> Result<bool> {
        if self.is_opening() {
            self.outline.passes[0].sampled = Some(sampled(0));
            return Ok(true);
        }
        let news = !self.pending.is_empty() || self.due;
        self.pending.clear();
        if std::mem::take(&mut self.due) {
            let pass = self.outline.passes.len();
            let before = &self.outline.passes[pass - 1];
            let dims = PassDims { pass, start: before.dims.keys(), tokens: 1, ..PassDims::default() };
            let tokens = vec![before.sampled.clone().unwrap()];
            self.outline.passes.push(PassOutline { dims, tokens, sampled: Some(sampled(pass)) });
        }
        Ok(news)
    }

    fn wait(&mut self, most: Duration) {
        std::thread::sleep(most);
    }

    fn status(&self) -> Status {
        if self.is_opening() {
            Status::Working("running the prompt: layer 1 of 0-2".into())
        } else if self.due || self.working || !self.pending.is_empty() {
            Status::Working("computing layer 1".into())
        } else {
            Status::Idle
        }
    }

    fn token_text(&self, id: u32) -> String {
        text(id)
    }
}

/// A prompt whose tokens are numbers. They must never be truncated.
fn years(count: usize) -> Vec<TokenLabel> {
    (0..count).map(|i| TokenLabel { id: i as u32 + 30, text: format!(" {}", 19_000 + 37 * i) }).collect()
}

/// Long axes, tiny and huge values, and tokens that are numbers.
pub(crate) fn wide(tokens: usize, vocab: usize, factor: f32) -> Synthetic {
    let config =
        ModelConfig { layers: 16, dim: 300, heads: 12, kv_heads: 4, ffn_dim: 1408, vocab, ..config() };
    let mut source = Synthetic::with(config, Precision::F32, years(tokens));
    source.factor = factor;
    source.outlier = Some(-4e7);
    source
}
