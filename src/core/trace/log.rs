//! The forward pass as a list of steps, one line each: inputs, output, shapes and time.

use std::collections::HashMap;
use std::time::Duration;

use super::axis::Axis;
use super::card::ModelCard;
use super::site::Site;
use super::sizes::PassDims;
use super::stage::{Input, Runs, Section, Stage, WeightUse};
use super::step::Step;

/// A named tensor and its shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Stage or weight.
    pub name: &'static str,
    /// Axes, outermost first.
    pub axes: Vec<Axis>,
    /// Their lengths.
    pub shape: Vec<usize>,
    /// Values per scale, if it is an int8 weight.
    pub group: Option<usize>,
}

/// The time of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Took {
    /// It is an input of the pass.
    Given,
    /// It ran as its own operation, or is the last result of an operation with several results.
    Time(Duration),
    /// It ran as its own operation, in an earlier run.
    Recorded,
    /// It shares its source's values.
    View,
    /// It has no separate operation: it is computed on demand, or together with a later stage.
    Derived,
}

/// One step of one pass.
#[derive(Clone, Debug)]
pub struct Line {
    /// The pass.
    pub pass: usize,
    /// The layer, from 0.
    pub layer: Option<usize>,
    /// The step.
    pub step: Step,
    /// Stages and weights that it reads.
    pub inputs: Vec<Operand>,
    /// Its output.
    pub output: Operand,
    /// Its time.
    pub took: Took,
}

impl Line {
    /// The site that holds the step's values.
    pub fn site(&self) -> Site {
        Site { layer: self.layer, ..Site::once(self.pass, self.step.stage()) }
    }
}

/// The steps of pass `dims` in order. `times` are those of a [`super::Clock`], or `None` for a recorded run.
pub fn lines(card: &ModelCard, dims: PassDims, times: Option<&HashMap<Site, Duration>>) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut section = |section, layer| {
        for step in Step::in_section(section).filter(|step| step.present_in(&card.sizes(), dims, layer)) {
            lines.push(line(card, dims, layer, step, times));
        }
    };
    section(Section::Start, None);
    for layer in 0..card.sizes().layers {
        section(Section::Layer, Some(layer));
    }
    section(Section::End, None);
    section(Section::Sampler, None);
    lines
}

fn line(
    card: &ModelCard,
    dims: PassDims,
    layer: Option<usize>,
    step: Step,
    times: Option<&HashMap<Site, Duration>>,
) -> Line {
    let site = Site { layer, ..Site::once(dims.pass, step.stage()) };
    let took = match step {
        Step::View(_) => Took::View,
        Step::Stage(stage) => match stage.info().runs {
            Runs::Given => Took::Given,
            Runs::Derived => Took::Derived,
            Runs::Alone => times
                .map_or(Took::Recorded, |times| Took::Time(times.get(&site).copied().unwrap_or_default())),
        },
    };
    let inputs = inputs(card, dims, layer, step);
    Line { pass: dims.pass, layer, step, inputs, output: operand(card, dims, step.name(), step.axes()), took }
}

fn operand(card: &ModelCard, dims: PassDims, name: &'static str, axes: &[Axis]) -> Operand {
    Operand { name, axes: axes.to_vec(), shape: card.sizes().shape(axes, dims), group: None }
}

/// An operand for a weight. Matrices are int8 if products run in int8.
fn weight(card: &ModelCard, dims: PassDims, weight: &WeightUse) -> Operand {
    let group = card.sizes().group.filter(|_| weight.axes.len() == 2);
    Operand { group, ..operand(card, dims, weight.name, weight.axes) }
}

/// The stages and weights that `step` reads in pass `dims`, with their shapes.
pub fn inputs(card: &ModelCard, dims: PassDims, layer: Option<usize>, step: Step) -> Vec<Operand> {
    let stage = match step {
        Step::View(view) => return vec![operand(card, dims, view.source().name(), view.axes_in())],
        Step::Stage(stage) => stage,
    };
    let x = if stage.in_layer() && layer == Some(0) { Stage::Embedding } else { Stage::FfnResidual };
    let site = Site { layer, ..Site::once(dims.pass, stage) };
    let stages = site.inputs(&card.sizes(), dims).into_iter().filter_map(|input| match input {
        Input::Stage(stage) => Some(stage),
        Input::LayerInput => Some(x),
        Input::Positions => None,
    });
    let stages = stages.map(|input| operand(card, dims, input.name(), input.axes()));
    stages.chain(stage.weights(card).map(|used| weight(card, dims, used))).collect()
}
