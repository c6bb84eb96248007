//! The go-to line: what may be typed there, and where it leads. What it completes to is in `completing`.

use llama_trace_core::trace::select::past_the_last;
use llama_trace_core::trace::{Address, Axis, ModelCard, Outline, PassDims, Run, Step, Subject, Weight};

use super::app::{App, GotoLine};
use super::place::{Place, Walk};
use super::runs::Other;
use super::seeking;

/// Where an address leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// To a place of this run.
    Here(Spot),
    /// Into another sequence, or another run, if the program has one of this number.
    Other(Run, Address),
    /// To a run of another prompt, or of this one with a part of the model switched off.
    Begin(Other),
    /// To a row of a weight, at the stage that reads it.
    Weight(Place, Address),
}

/// A place to go to, and an index to select there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) place: Place,
    pub(super) index: Vec<(Axis, usize)>,
}

/// Characters of the longest address, and more than one needs; and of the longest text of another prompt.
const LONGEST: usize = 200;
const LONGEST_PROMPT: usize = 1 << 16;

impl GotoLine {
    pub(super) fn push(&mut self, c: char) {
        if !c.is_control() && self.text.chars().count() < longest(&self.text) {
            self.text.push(c);
        }
        self.chosen = None;
    }

    /// Puts a text in: of a prompt with its lines and tabs, but for the end of the last line; elsewhere these are blanks.
    ///
    /// # Errors
    /// For the message line, where it is too long: nothing of it is put in.
    pub(super) fn paste(&mut self, pasted: &str) -> Result<(), String> {
        let lines = pasted.replace("\r\n", "\n").replace('\r', "\n");
        let lines = lines.trim_end_matches('\n');
        let of_prompt = prompt_of(&format!("{}{lines}", self.text)).is_some();
        let kept = lines.chars().filter_map(|c| match c {
            '\n' | '\t' if !of_prompt => Some(' '),
            '\n' | '\t' => Some(c),
            c => (!c.is_control()).then_some(c),
        });
        let text: String = self.text.chars().chain(kept).collect();
        let (count, most) = (text.chars().count(), longest(&text));
        if count > most {
            let other = if of_prompt { "; --prompt-file takes a longer one at the start" } else { "" };
            return Err(format!("what was pasted is too long: {count} characters of at most {most}{other}"));
        }
        (self.text, self.chosen) = (text, None);
        Ok(())
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
        if let Some(completion) = self.completions(app).get(self.chosen.unwrap_or(0)) {
            self.text.clone_from(&completion.text);
            self.chosen = None;
        }
    }

    /// What Enter goes to: the chosen line, the text where it is a place, or else the first completion.
    pub(super) fn answer(&self, app: &App) -> String {
        let completions = self.completions(app);
        match self.chosen.and_then(|chosen| completions.get(chosen)) {
            Some(chosen) => chosen.text.clone(),
            None if target(app, &self.text).is_ok() => self.text.clone(),
            None => completions.first().map_or(&self.text, |first| &first.text).clone(),
        }
    }
}

/// The most characters of a line that begins so.
fn longest(text: &str) -> usize {
    if prompt_of(text).is_some() { LONGEST_PROMPT } else { LONGEST }
}

/// The text of another prompt.
pub(super) fn prompt_of(text: &str) -> Option<&str> {
    match text.trim_start().strip_prefix("prompt")? {
        "" => Some(""),
        rest => rest.strip_prefix(' '),
    }
}

/// What is to be switched off, where a line asks for that: `without L0/h2`.
pub(super) fn without_in(line: &str) -> Option<&str> {
    let rest = line.trim().strip_prefix("without")?;
    (rest.is_empty() || rest.starts_with(' ')).then(|| rest.trim())
}

/// What is to be compared with, where a line of the go-to box asks for that: `compare L0`, `compare h=2`.
pub(super) fn comparison_in(line: &str) -> Option<&str> {
    let rest = line.trim().strip_prefix("compare")?;
    (rest.is_empty() || rest.starts_with([' ', '['])).then(|| rest.trim())
}

/// The number of a step, where a text names one: `step 24`.
pub(super) fn step_in(text: &str) -> Option<&str> {
    let number = text.trim().trim_start_matches('/').strip_prefix("step ")?.trim();
    let number = number.split_once(" of ").map_or(number, |(number, _)| number);
    (!number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())).then_some(number)
}

/// The address of a place that is named as the title and the outline name it: `layer 2`, `pass 1 (decode) · layer 3 of 0-3`,
/// a stage behind it.
fn spoken(text: &str) -> Option<String> {
    let mut words = text.split_whitespace().peekable();
    let mut parts = Vec::new();
    while let Some(word) = words.next() {
        let letter = match word {
            "sequence" => 's',
            "pass" => 'p',
            "layer" => 'L',
            "·" | "(prefill)" | "(decode)" => continue,
            "of" => {
                words.next()?;
                continue;
            }
            // A stage, and nothing behind it.
            stage if !parts.is_empty() && words.peek().is_none() => {
                parts.push(stage.to_owned());
                break;
            }
            _ => return None,
        };
        let number = words.next().filter(|number| number.bytes().all(|b| b.is_ascii_digit()))?;
        parts.push(format!("{letter}{number}"));
    }
    (!parts.is_empty()).then(|| parts.join("/"))
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
    if let Some(prompt) = prompt_of(text) {
        return match prompt.trim() {
            // As a shell has it: the text without a token of its own.
            "\"\"" => Ok(Target::Begin(Other::Prompt(String::new()))),
            "" => Err("type the text after it: prompt Once upon a time".into()),
            _ => Ok(Target::Begin(Other::Prompt(prompt.to_owned()))),
        };
    }
    if let Some(parts) = without_in(text) {
        let first = app.outline.passes.first().map_or(&[][..], |pass| &pass.tokens);
        return match parts {
            "" => Err("name what is switched off: without L0/h2, L0/attn or L0/ffn".into()),
            _ => Ok(Target::Begin(Other::Without {
                parts: parts.to_owned(),
                ids: first.iter().map(|token| token.id).collect(),
            })),
        };
    }
    // The line begins with the slash that opened it.
    let text = text.trim_start().trim_start_matches('/');
    if let Some(head) = text.trim().strip_prefix('h').and_then(|head| head.parse().ok()) {
        return Err(no_head(app, head));
    }
    if let Some(number) = step_in(text) {
        return step_of(app, number);
    }
    let spoken = spoken(text);
    let text = spoken.as_deref().unwrap_or(text);
    // A run alone is where one goes on in it.
    let run = text
        .trim()
        .strip_prefix('r')
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()));
    let text = if run { &format!("{}:", text.trim()) } else { text };
    let address = Address::parse(text).map_err(|wrong| {
        match wrong.starts_with("there is no stage") && wrong.ends_with('`') {
            true => format!("{wrong}; Tab completes, Esc closes"),
            false => wrong,
        }
    })?;
    if let Some(run) = address.run_number(app.outline.run).filter(|&run| run != app.outline.run) {
        return Ok(Target::Other(run, Address { run: None, ..address }));
    }
    let elsewhere = |&sequence: &usize| sequence != app.outline.sequence;
    if let Some(sequence) = address.sequence.filter(elsewhere) {
        return match sequence < app.outline.sequences {
            true => Ok(Target::Other(app.outline.run, Address { run: None, ..address })),
            false => Err(no_sequence(&app.outline, sequence)),
        };
    }
    if let Some(Subject::Weight(weight)) = address.subject.filter(|_| !address.index.is_empty()) {
        let (place, row) = row_of(app, &address, weight)?;
        return Ok(Target::Weight(place, row));
    }
    let number = text.trim();
    let alone = number.bytes().all(|b| b.is_ascii_digit());
    let told = |wrong| match alone {
        true => format!("{wrong}; a number alone is a layer, and step {number} a step"),
        false => wrong,
    };
    find(app, &address).map(Target::Here).map_err(told)
}

/// To a step of this pass by its number, counted from 1 as the title counts them.
fn step_of(app: &App, number: &str) -> Result<Target, String> {
    let walk = app.walk();
    let at = number.parse().ok().and_then(|number: usize| number.checked_sub(1));
    match at.filter(|&at| at < walk.len()) {
        Some(at) => Ok(Target::Here(Spot { place: walk.at(at), index: Vec::new() })),
        None => Err(format!("there is no step {number}: 1 to {}", walk.len())),
    }
}

/// The row of a weight that `address` names, and the place that reads it. A part that it leaves out is as it is here, or 0.
pub(super) fn row_of(app: &App, address: &Address, weight: Weight) -> Result<(Place, Address), String> {
    let (card, dims) = (&app.outline.card, app.dims());
    if !weight.present(card) {
        return Err(no_screen(card, weight));
    }
    let sizes = card.sizes();
    let layer = match (weight.in_layer(), address.layer) {
        (true, layer) => Some(layer.or(app.place.layer).unwrap_or(0)),
        (false, None) => None,
        (false, Some(_)) => return Err(format!("{weight} is outside the layers: leave the layer out")),
    };
    if let Some(layer) = layer.filter(|&layer| layer >= sizes.layers) {
        return Err(format!("there is no layer {layer}: 0 to {}", sizes.layers.max(1) - 1));
    }
    let subject = Subject::Weight(weight);
    let named = address.axes(subject)?;
    let mut index = Vec::new();
    for (at, (letter, axis)) in subject.letters().into_iter().enumerate() {
        let number = named.iter().find(|(other, _)| *other == at).map_or(0, |(_, number)| *number);
        let length = sizes.axis(axis, dims);
        if number >= length {
            return Err(past_the_last(axis, number, length, dims));
        }
        index.push((letter, number));
    }
    let place = app.walk().place(layer, Step::Stage(weight.read_by()));
    Ok((place, Address { layer, subject: Some(subject), index, ..Address::default() }))
}

/// Where `address` leads in this run; parts that it leaves out are as they are here.
pub(super) fn find(app: &App, address: &Address) -> Result<Spot, String> {
    let pass = address.pass.unwrap_or(app.place.pass);
    let count = app.outline.passes.len();
    let Some(outline) = app.outline.passes.get(pass) else {
        return Err(format!("there is no pass {pass}: 0 to {} so far", count.max(1) - 1));
    };
    resolve(&app.outline, address, outline.dims, app.place)
}

/// Where `address` leads in a pass of `dims`. Parts that it leaves out are those of `here`.
///
/// # Errors
/// Which part is wrong, and what there is instead.
pub(super) fn resolve(
    outline: &Outline,
    address: &Address,
    dims: PassDims,
    here: Place,
) -> Result<Spot, String> {
    check_run(outline, address)?;
    let walk = Walk::of(outline, dims);
    let layers = outline.card.sizes().layers;
    if let Some(layer) = address.layer.filter(|&layer| layer >= layers) {
        return Err(format!("there is no layer {layer}: 0 to {}", layers.max(1) - 1));
    }
    let step = match address.subject {
        Some(Subject::Weight(weight)) => return Err(no_screen(&outline.card, weight)),
        Some(Subject::Step(step)) => Some(step),
        None => None,
    };
    let place = match (step, address.layer) {
        (Some(step), Some(_)) if !step.stage().in_layer() => {
            return Err(format!("{} is outside the layers: its address is p{}/{0}", step.name(), dims.pass));
        }
        (Some(step), layer) => {
            if let Some(absent) = step.stage().absence(step.name(), &outline.card, dims) {
                return Err(format!("{}: {}", absent.what, absent.why));
            }
            let layer = step.stage().in_layer().then(|| layer.or(here.layer).unwrap_or(0));
            walk.place(layer, step)
        }
        (None, Some(layer)) => {
            let first = walk.layer.first().copied().unwrap_or(here.step);
            let step = if here.layer.is_some() { here.step } else { first };
            walk.same(walk.place(Some(layer), step))
        }
        (None, None) => walk.same(here),
    };
    let mut index = Vec::new();
    for (at, number) in address.axes(Subject::Step(place.step))? {
        let axis = place.step.axes()[at];
        let length = outline.card.sizes().axis(axis, dims);
        if number >= length {
            return Err(past_the_last(axis, number, length, dims));
        }
        index.push((axis, number));
    }
    Ok(Spot { place, index })
}

/// Why a head alone leads nowhere.
fn no_head(app: &App, head: usize) -> String {
    let (step, sizes) = (app.place.step, app.outline.card.sizes());
    match step.axes().iter().find(|axis| matches!(axis, Axis::Head | Axis::KvHead)) {
        Some(axis) => {
            format!("there is no {} {head}: 0 to {}", axis.name(), sizes.axis(*axis, app.dims()).max(1) - 1)
        }
        None => format!("{} has no heads; name a stage that has, as in softmax h{head}", step.name()),
    }
}

/// Whether the outline is of the run and the sequence that the address names.
fn check_run(outline: &Outline, address: &Address) -> Result<(), String> {
    if address.run_number(outline.run) != Some(outline.run) {
        let name = address.run.as_deref().unwrap_or_default();
        return Err(format!("there is no run {name}: {} is the only one", outline.run));
    }
    match address.sequence.filter(|&sequence| sequence != outline.sequence) {
        Some(sequence) => Err(no_sequence(outline, sequence)),
        None => Ok(()),
    }
}

/// That the run of this outline has no such sequence.
pub(super) fn no_sequence(outline: &Outline, sequence: usize) -> String {
    match outline.sequences {
        0 | 1 => format!("there is no sequence {sequence}: {} is the only one", outline.sequence),
        count => format!("there is no sequence {sequence}: 0 to {}", count - 1),
    }
}

/// What to look at instead of a weight.
fn no_screen(card: &ModelCard, weight: Weight) -> String {
    let by = weight.read_by();
    if weight.present(card) {
        let letters = weight.letters().into_iter().map(|letter| format!("{letter}=0"));
        let (layer, index) =
            (if weight.in_layer() { "L0/" } else { "" }, letters.collect::<Vec<_>>().join(","));
        format!(
            "{weight} is a weight: name one of its numbers ({layer}{weight}[{index}]) to see its row; {by} reads it"
        )
    } else {
        format!("this model has no weight {weight}")
    }
}

/// Goes where `address` leads in the run that is shown, or says why not.
pub(super) fn go_to(app: &mut App, address: &Address) {
    match find(app, address) {
        Ok(spot) => go(app, &spot),
        Err(wrong) => app.say(wrong, true),
    }
    app.settle();
}

/// Goes to a place.
pub(super) fn go(app: &mut App, target: &Spot) {
    app.go(target.place);
    for &(axis, index) in &target.index {
        app.selected.set(axis, index);
    }
    let names_key = target.index.iter().any(|(axis, _)| *axis == Axis::Key);
    app.opened |= names_key;
    if !names_key {
        seeking::unhide(app);
    }
    if target.index.iter().any(|(axis, _)| *axis == Axis::Vocab) {
        // The list is in the order of size; an address names an id.
        app.choose_view(if target.place.step.axes().len() == 1 { "list" } else { "numbers" });
    }
}
