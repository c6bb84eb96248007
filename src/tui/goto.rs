//! The go-to line: what may be typed there, what it completes to, and where it leads.

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

/// Where `text` leads: `softmax`, `L3`, `3/softmax`, `p1`, `p1/L3/xq`, or a whole address with an index.
///
/// # Errors
/// What is wrong with it, for the message line.
pub(super) fn target(app: &App, text: &str) -> Result<Target, String> {
    let text = text.trim();
    if text.is_empty() {
        return Err(
            "type a stage (softmax), a layer (L1), a pass (p0), or parts of a path: p0/L1/softmax".into()
        );
    }
    if text.contains('[') {
        return address(app, text);
    }
    let mut pass = app.place.pass;
    let mut layer = None;
    let mut step = None;
    for part in text.split('/').map(str::trim) {
        let number = |prefix: &[char]| part.strip_prefix(prefix).and_then(|rest| rest.parse::<usize>().ok());
        if let Some(number) = number(&['p', 'P']) {
            check_pass(app, number)?;
            pass = number;
        } else if let Some(number) = number(&['l', 'L']).or_else(|| part.parse().ok()) {
            check_layer(app, number)?;
            layer = Some(number);
        } else if let Some(found) = Step::from_name(&part.to_ascii_lowercase()) {
            step = Some(found);
        } else {
            return Err(format!("there is no stage `{part}`; Tab completes, Esc closes"));
        }
    }
    let place = match (step, layer) {
        (Some(step), layer) => place_of(app, pass, layer, step),
        (None, Some(layer)) => {
            let walk = Walk::new(&app.outline, pass);
            let first = walk.layer.first().copied().unwrap_or(app.place.step);
            let step = if app.place.layer.is_some() { app.place.step } else { first };
            walk.same(Place { pass, layer: Some(layer), step })
        }
        (None, None) => Walk::new(&app.outline, pass).same(app.place),
    };
    if step.is_some_and(|step| step != place.step) {
        return Err(absent(app, pass, step.map_or("", Step::name)));
    }
    Ok(Target { place, index: Vec::new() })
}

fn place_of(app: &App, pass: usize, layer: Option<usize>, step: Step) -> Place {
    let layer = step.stage().in_layer().then(|| layer.or(app.place.layer).unwrap_or(0));
    Walk::new(&app.outline, pass).same(Place { pass, layer, step })
}

fn address(app: &App, text: &str) -> Result<Target, String> {
    let address = Address::parse(text)
        .ok_or_else(|| format!("`{text}` is no address; one looks like p0/L1/softmax[h=2,q=5,k=1]"))?;
    let site = address.site;
    check_pass(app, site.pass)?;
    if let Some(layer) = site.layer {
        check_layer(app, layer)?;
    }
    let place = Place { pass: site.pass, layer: site.layer, step: Step::Stage(site.stage) };
    let dims = app.outline.passes[site.pass].dims;
    if !present(place.step, &app.outline.card.sizes, dims) {
        return Err(absent(app, site.pass, site.stage.name()));
    }
    let axes = site.stage.axes();
    let shape = app.outline.card.sizes.shape(axes, dims);
    for ((axis, index), length) in axes.iter().zip(&address.index).zip(shape) {
        if *index >= length {
            return Err(format!("{} {index} is past the last: there are {length}", axis.name()));
        }
    }
    Ok(Target { place, index: axes.iter().copied().zip(address.index).collect() })
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

fn absent(app: &App, pass: usize, name: &str) -> String {
    if matches!(name, "xq_norm" | "xk_norm") {
        return format!("there is no {name}: this model does not normalise queries and keys");
    }
    let tokens = app.outline.passes.get(pass).map_or(0, |pass| pass.dims.tokens);
    format!("pass {pass} has no {name}: it reads {tokens} token, and nothing is hidden from it")
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
