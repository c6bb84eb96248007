//! The go-to line: what may be typed there, what it completes to, and where it leads.

use crate::trace::select::near;
use crate::trace::stage::Section;
use crate::trace::{Address, Axis, Step};

use super::app::App;
use super::place::{Place, Walk, present};

/// What has been typed, and which completion is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GotoLine {
    /// The text.
    pub text: String,
    /// The chosen line of the list; none where the text stands for itself.
    pub chosen: Option<usize>,
}

/// A place to go to, and an index to select there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    place: Place,
    index: Vec<(Axis, usize)>,
}

/// More than any address needs; a paste by mistake is cut here.
const LONGEST: usize = 200;

impl GotoLine {
    pub(super) fn push(&mut self, c: char) {
        if !c.is_control() && self.text.chars().count() < LONGEST {
            self.text.push(c);
        }
        self.chosen = None;
    }

    pub(super) fn pop(&mut self) {
        self.text.pop();
        self.chosen = None;
    }

    pub(super) fn choose(&mut self, app: &App, by: isize) {
        let count = self.completions(app).len();
        if count > 0 {
            let next = match self.chosen {
                Some(chosen) => (chosen as isize + by).rem_euclid(count as isize) as usize,
                None if by > 0 => 0,
                None => count - 1,
            };
            self.chosen = Some(next);
        }
    }

    pub(super) fn complete(&mut self, app: &App) {
        if let Some(text) = self.completions(app).get(self.chosen.unwrap_or(0)) {
            self.text.clone_from(text);
            self.chosen = None;
        }
    }

    /// What Enter goes to: the chosen line, the text where it is a place, or else the first completion.
    pub(super) fn answer(&self, app: &App) -> String {
        let completions = self.completions(app);
        match self.chosen.and_then(|chosen| completions.get(chosen)) {
            Some(chosen) => chosen.clone(),
            None if target(app, &self.text).is_ok() => self.text.clone(),
            None => completions.first().unwrap_or(&self.text).clone(),
        }
    }

    /// What the text may be meant to be, the likeliest first. Only its last part is completed.
    pub fn completions(&self, app: &App) -> Vec<String> {
        let (before, part) = self
            .text
            .rsplit_once('/')
            .map_or(("", &*self.text), |(_, part)| (&self.text[..self.text.len() - part.len()], part));
        let part = part.trim().to_ascii_lowercase();
        if part.contains('[') {
            return Vec::new();
        }
        let mut names: Vec<String> = Vec::new();
        let dims = app.dims();
        for section in [Section::Start, Section::Layer, Section::End, Section::Sampler] {
            let sizes = &app.outline.card.sizes;
            let here = Step::in_section(section).filter(|&step| present(step, sizes, dims));
            names.extend(here.map(|step| step.name().to_owned()));
        }
        names.extend((0..app.outline.card.sizes.layers).map(|layer| format!("L{layer}")));
        if before.is_empty() {
            names.extend((0..app.outline.passes.len()).map(|pass| format!("p{pass}")));
        }
        let mut fitting: Vec<(u8, String)> = names
            .into_iter()
            .filter_map(|name| {
                let lower = name.to_ascii_lowercase();
                let rank = if lower == part {
                    0
                } else if lower.starts_with(&part) {
                    1
                } else if lower.contains(&part) {
                    2
                } else if in_order(&part, &lower) {
                    3
                } else {
                    return None;
                };
                Some((rank, name))
            })
            .collect();
        fitting.sort_by_key(|(rank, _)| *rank);
        fitting.into_iter().map(|(_, name)| format!("{before}{name}")).collect()
    }
}

/// Whether the letters of `part` are in `name` in this order: `amx` finds `attn_max`.
fn in_order(part: &str, name: &str) -> bool {
    let mut letters = name.chars();
    part.chars().all(|c| letters.any(|other| other == c))
}

/// Where `text` leads: `softmax`, `L3`, `3/softmax`, `p1`, `p1/L3/xq`, an address with an index or with a
/// part of one. What is left out is as it is here.
///
/// # Errors
/// What is wrong with it, for the message line.
pub(super) fn target(app: &App, text: &str) -> Result<Target, String> {
    if text.trim().is_empty() {
        return Err(
            "type a stage (softmax), a layer (L1), a pass (p0), or parts of a path: p0/L1/softmax".into()
        );
    }
    let address = Address::parse(text).map_err(|wrong| with_help(&wrong))?;
    let pass = address.pass.unwrap_or(app.place.pass);
    check_pass(app, pass)?;
    if let Some(layer) = address.layer {
        check_layer(app, layer)?;
    }
    let walk = Walk::new(&app.outline, pass);
    let place = match (address.step, address.layer) {
        (Some(step), Some(_)) if !step.stage().in_layer() => {
            return Err(format!("{} is outside the layers: its address is p{pass}/{0}", step.name()));
        }
        (Some(step), layer) => {
            let dims = app.outline.passes[pass].dims;
            if let Some(absent) = step.stage().absence(step.name(), &app.outline.card, dims) {
                return Err(format!("{}: {}", absent.what, absent.why));
            }
            let layer = step.stage().in_layer().then(|| layer.or(app.place.layer).unwrap_or(0));
            Place { pass, layer, step }
        }
        (None, Some(layer)) => {
            let first = walk.layer.first().copied().unwrap_or(app.place.step);
            let step = if app.place.layer.is_some() { app.place.step } else { first };
            walk.same(Place { pass, layer: Some(layer), step })
        }
        (None, None) => walk.same(app.place),
    };
    let index = address.axes(place.step)?;
    let dims = app.outline.passes[pass].dims;
    for &(axis, at) in &index {
        let length = app.outline.card.sizes.axis(axis, dims);
        if at >= length {
            return Err(format!("{} {at} is past the last: there are {length}", axis.name()));
        }
    }
    Ok(Target { place, index })
}

/// What is wrong, and for a name what is near to it or how to find it.
fn with_help(wrong: &str) -> String {
    let Some(name) = wrong.strip_prefix("there is no stage `").and_then(|rest| rest.strip_suffix('`')) else {
        return wrong.to_owned();
    };
    let sections = [Section::Start, Section::Layer, Section::End, Section::Sampler];
    let names: Vec<_> = sections.into_iter().flat_map(Step::in_section).map(Step::name).collect();
    match &near(name, &names)[..] {
        [] => format!("{wrong}; Tab completes, Esc closes"),
        near => format!("{wrong}; did you mean {}?", near.join(" or ")),
    }
}

fn check_pass(app: &App, pass: usize) -> Result<(), String> {
    let count = app.outline.passes.len();
    if pass < count {
        Ok(())
    } else {
        Err(format!("there is no pass {pass}: 0 to {} so far", count.max(1) - 1))
    }
}

fn check_layer(app: &App, layer: usize) -> Result<(), String> {
    let count = app.outline.card.sizes.layers;
    if layer < count { Ok(()) } else { Err(format!("there is no layer {layer}: 0 to {}", count.max(1) - 1)) }
}

/// Goes to a target.
pub(super) fn go(app: &mut App, target: &Target) {
    app.go(target.place);
    for &(axis, index) in &target.index {
        app.selected.set(axis, index);
    }
    if target.index.iter().any(|(axis, _)| *axis == Axis::Vocab) {
        // The list is in the order of size; an address names an id.
        app.show_vocabulary = super::app::Show::Numbers;
    }
}
