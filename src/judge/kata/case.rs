//! A case: the inputs of one stage, its numbers, and its right output.

use std::fmt::Write;
use std::sync::Arc;

use super::run::Run;
use super::table::{Given, Kata, Number, Of};
use crate::diff::{Frames, OneStage};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::explain::Place;
use llama_trace_core::trace::block::index_of;
use llama_trace_core::trace::{Address, Frame, Site, Stage, Step, Values as Borrowed, Weight};

/// The values of an input file.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// float32.
    F32(Vec<f32>),
    /// int64.
    I64(Vec<i64>),
}

/// An input file.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    /// Its name, without `.npy`.
    pub name: &'static str,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its values, row-major.
    pub values: Values,
}

/// A case.
pub struct Case {
    /// Its title, for messages.
    pub title: String,
    /// Its input files.
    pub inputs: Vec<Input>,
    /// Its numbers.
    pub numbers: Vec<(Number, f64)>,
    /// The shape of its output.
    pub shape: Vec<usize>,
    pub(super) right: Vec<f64>,
    pub(super) site: Site,
    pub(super) run: Arc<Run>,
    pub(super) frames: Frames,
}

/// The inputs of a kata at a site of a run.
pub(super) struct Inputs {
    pub(super) site: Site,
    /// The stages that are inputs, in the order of the kata.
    pub(super) sources: Vec<Site>,
    pub(super) frames: Frames,
}

impl Inputs {
    /// Takes the inputs from the run, which computes them.
    pub(super) fn of(kata: &Kata, run: &mut Run, site: Site) -> Result<Self> {
        let sources: Vec<Site> = match kata.given {
            [] => run.rules().sources(site),
            given => given
                .iter()
                .map(|given| match given {
                    Given::Stage(stage) => site.other(*stage),
                    Given::LayerInput if site.layer.is_some() => site.layer_input(),
                    Given::LayerInput => {
                        let last = run.rules().sizes().layers.saturating_sub(1);
                        Site::layer(site.pass, last, Stage::FfnResidual)
                    }
                })
                .collect(),
        };
        let mut frames = Frames::new();
        for source in &sources {
            frames.insert(*source, run.frame(*source)?);
        }
        Ok(Self { site, sources, frames })
    }

    /// Replaces an input.
    pub(super) fn change(&mut self, i: usize, change: impl FnOnce(&mut [f32], &[usize])) {
        let Some(frame) = self.sources.get(i).and_then(|source| self.frames.get_mut(source)) else { return };
        let frame = Arc::make_mut(frame);
        let shape = frame.shape().to_vec();
        if let llama_trace_core::trace::FrameData::F32(values) = &mut frame.data
            && let Some(values) = values.as_slice_mut()
        {
            change(values, &shape);
        }
    }
}

fn input(name: &'static str, frame: &Frame) -> Input {
    let values = match frame.values() {
        Borrowed::F32(values) => Values::F32(values.to_vec()),
        Borrowed::I64(values) => Values::I64(values.to_vec()),
        Borrowed::I8(values) => Values::I64(values.iter().map(|value| i64::from(*value)).collect()),
    };
    Input { name, shape: frame.shape().to_vec(), values }
}

/// The rows of several frames, one after the other.
fn rows(name: &'static str, frames: &[&Frame], row: &[usize]) -> Input {
    let values: Vec<f32> =
        frames.iter().flat_map(|frame| frame.values().numbers()).map(|x| x as f32).collect();
    let count = frames.iter().map(|frame| frame.shape()[0]).sum();
    Input { name, shape: [&[count], row].concat(), values: Values::F32(values) }
}

impl Case {
    /// The case of a kata at the site of `inputs`.
    ///
    /// # Errors
    /// [`Error::Usage`] if the run lacks an input, and the errors of the weights.
    pub(super) fn new(kata: &Kata, title: String, run: &Arc<Run>, inputs: Inputs) -> Result<Self> {
        let Inputs { site, sources, frames } = inputs;
        let rules = run.rules();
        let sizes = *rules.sizes();
        let lacks = || Error::usage(format!("{site} lacks an input"));
        let dims = rules.pass(site.pass).ok_or_else(lacks)?;
        let weight = |weight: Weight| run.weight(site.layer, weight);
        let mut files = Vec::new();
        for port in kata.inputs {
            let name = port.name;
            files.push(match port.of {
                Of::Input(i) => {
                    input(name, sources.get(i).and_then(|source| frames.get(source)).ok_or_else(lacks)?)
                }
                Of::OwnWeight => {
                    let own = Weight::read_in(site.stage, rules.card()).next().ok_or_else(lacks)?;
                    let (shape, values) = weight(own)?;
                    Input { name, shape, values: Values::F32(values) }
                }
                Of::Weight(own) => {
                    let tied = own == "output" && rules.card().config.tied;
                    let own = if tied { "tok_embeddings" } else { own };
                    let own = Weight::all().find(|weight| weight.name() == own).ok_or_else(lacks)?;
                    let (shape, values) = weight(own)?;
                    Input { name, shape, values: Values::F32(values) }
                }
                Of::Before | Of::New => {
                    let all: Vec<&Frame> = sources
                        .iter()
                        .filter_map(|source| frames.get(source))
                        .map(|frame| &**frame)
                        .collect();
                    let (new, before) = all.split_last().ok_or_else(lacks)?;
                    let row = &new.shape()[1..];
                    rows(name, if port.of == Of::New { std::slice::from_ref(new) } else { before }, row)
                }
                Of::Text => {
                    let ids =
                        rules.text().iter().take(dims.keys()).map(|id| i64::from(*id)).collect::<Vec<_>>();
                    Input { name, shape: vec![ids.len()], values: Values::I64(ids) }
                }
            });
        }
        let (config, sampling) = (&rules.card().config, rules.sampling());
        let shape = sizes.shape(site.stage.axes(), dims);
        let number = |number: &Number| match number {
            Number::Eps => config.norm_eps.into(),
            Number::Theta => config.rope_theta.into(),
            Number::Start => dims.start as f64,
            Number::Tokens => dims.tokens as f64,
            Number::Heads => sizes.heads as f64,
            Number::KvHeads => sizes.kv_heads as f64,
            Number::HeadDim => sizes.head_dim as f64,
            Number::Temperature => sampling.temperature.into(),
            Number::TopK => sampling.top_k as f64,
            Number::TopP => sampling.top_p.into(),
            Number::MinP => sampling.min_p.into(),
            Number::TypicalP => sampling.typical_p.into(),
            Number::Penalty => sampling.repetition_penalty.into(),
            Number::Random => rules.random(site.pass).unwrap_or(0.0),
            Number::Group => sizes.group.unwrap_or(1) as f64,
            Number::OwnHeads => shape.get(1).copied().unwrap_or(1) as f64,
        };
        let numbers = kata.numbers.iter().map(|kind| (*kind, number(kind))).collect();
        let right = OneStage { weights: run.weights(), rules, site, inputs: &frames }.right()?;
        Ok(Self { title, inputs: files, numbers, shape, right, site, run: Arc::clone(run), frames })
    }

    /// The content of `numbers.json`.
    pub fn numbers_json(&self) -> String {
        let mut text = String::from("{");
        for (i, (number, value)) in self.numbers.iter().enumerate() {
            // A float32 number is written with the digits that give it back. Writing to a string cannot fail.
            let comma = if i == 0 { "" } else { ", " };
            let _ = match number {
                Number::Random => write!(text, "{comma}\"{}\": {value}", number.name()),
                number if number.is_whole() => {
                    write!(text, "{comma}\"{}\": {}", number.name(), *value as u64)
                }
                number => write!(text, "{comma}\"{}\": {:?}", number.name(), *value as f32),
            };
        }
        text + "}\n"
    }

    /// The address of a cell of the output: its stage with the indices.
    pub fn address(&self, at: usize) -> String {
        Address::of(self.site, Step::Stage(self.site.stage), &index_of(&self.shape, at)).to_string()
    }

    /// The stage of the pass that it computes.
    pub fn site(&self) -> Site {
        self.site
    }

    /// The stage with its inputs.
    pub(super) fn stage(&self) -> OneStage<'_> {
        OneStage {
            weights: self.run.weights(),
            rules: self.run.rules(),
            site: self.site,
            inputs: &self.frames,
        }
    }

    /// The numbers of a weight or a stage, for the explanation of a cell.
    pub(super) fn place(&self, place: Place, operands: &Frames) -> Result<Vec<f32>> {
        match place {
            Place::Stage(site) if site == self.site => Ok(self.right.iter().map(|x| *x as f32).collect()),
            Place::Stage(site) => {
                let frame = operands.get(&site).or_else(|| self.frames.get(&site));
                let frame = frame.ok_or_else(|| Error::usage(format!("{site} is not an input")))?;
                Ok(frame.values().numbers().map(|x| x as f32).collect())
            }
            Place::Weight(layer, weight) => self.run.weight(layer, weight).map(|(_, values)| values),
        }
    }
}
