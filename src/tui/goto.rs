//! The go-to line: the places that can be typed there. Its completions are in `completions`.

use llama_trace_core::chapters::{Chapter, number_in};
use llama_trace_core::trace::select::past_the_last;
use llama_trace_core::trace::{
    Address, Axis, ModelCard, Outline, PassDims, Run, Stage, Step, Subject, Weight,
};

use super::app::App;
use super::edit_keys;
use super::erase::Erase;
use super::input::GotoLine;
use super::lesson_search;
use super::patch_maps::{clean_in, logits_of_prompt};
use super::patch_state::CleanPrompt;
use super::place::{Place, Walk};
use super::runs::NewRun;
use super::search_keys;
use super::view::views::VIEWS;

/// Steps of a layer that come first if several steps have a view.
const SHOW_VIEWS_BEST: [Step; 3] =
    [Step::Stage(Stage::Softmax), Step::Stage(Stage::FfnHidden), Step::Stage(Stage::XqRope)];

/// The target of the go-to line.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Target {
    /// A place of this run and sequence.
    Here(Spot),
    /// An address in another sequence or another run. The sequence or the run may not exist.
    Other(Run, Address),
    /// A new run: of another prompt, or of this prompt with other edits or tokens.
    Begin(NewRun),
    /// The list of edits.
    Edits,
    /// The first lesson, or the chapter with this place in the list.
    Learn(Option<usize>),
    /// A row of a weight, at the stage that reads it.
    Weight(Place, Address),
    /// The map of patching from a clean prompt.
    Patch(CleanPrompt),
    /// A view, at a step that it can show.
    View(Place, &'static str),
}

/// The commands of the line. A text follows each of them.
pub(super) const COMMANDS: [&str; 13] = [
    "compare ", "prompt ", "without ", "edit ", "edits", "view ", "hold ", "try ", "strip ", "scale ",
    "panels ", "learn", "patch",
];

/// A place and the indices to select there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) place: Place,
    pub(super) index: Vec<(Axis, usize)>,
}

/// Maximum number of characters of a line with an address, and of a line with another prompt.
const LONGEST: usize = 200;
const LONGEST_PROMPT: usize = 1 << 16;

impl GotoLine {
    /// Appends a character.
    pub(super) fn push(&mut self, c: char) {
        if !c.is_control() && self.text.chars().count() < longest(&self.text) {
            self.text.push(c);
        }
        self.chosen = None;
    }

    /// Appends a pasted text. Newlines and tabs are kept in a prompt, except at its end, and are spaces in other lines.
    ///
    /// # Errors
    /// A text for the message line if the line would be too long; nothing is appended then.
    pub(super) fn paste(&mut self, pasted: &str) -> Result<(), String> {
        let lines = pasted.replace("\r\n", "\n").replace('\r', "\n");
        let lines = lines.trim_end_matches('\n');
        let of_prompt = takes_text(&format!("{}{lines}", self.text));
        let kept = lines.chars().filter_map(|c| match c {
            '\n' | '\t' if !of_prompt => Some(' '),
            '\n' | '\t' => Some(c),
            c => (!c.is_control()).then_some(c),
        });
        let text: String = self.text.chars().chain(kept).collect();
        let (count, most) = (text.chars().count(), longest(&text));
        if count > most {
            let other = if of_prompt { "; for a longer prompt, start with --prompt-file" } else { "" };
            return Err(format!(
                "the pasted text is too long: {count} characters, at most {most} are allowed{other}"
            ));
        }
        (self.text, self.chosen) = (text, None);
        Ok(())
    }

    /// Deletes text at the end.
    pub(super) fn erase(&mut self, erase: Erase) {
        self.text.truncate(erase.start(&self.text));
        self.chosen = None;
    }

    /// Chooses the next completion (`by` 1) or the previous one (-1).
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

    /// Replaces the text by the chosen completion, or by the first one.
    pub(super) fn complete(&mut self, app: &App) {
        if let Some(completion) = self.completions(app).get(self.chosen.unwrap_or(0)) {
            self.text.clone_from(&completion.text);
            self.chosen = None;
        }
    }

    /// The place that Enter goes to: the chosen completion, the line itself if it names a place, or else the first
    /// completion.
    pub(super) fn answer(&self, app: &App) -> String {
        let completions = self.completions(app);
        match self.chosen.and_then(|chosen| completions.get(chosen)) {
            Some(chosen) => chosen.text.clone(),
            None if target(app, &self.text).is_ok() => self.text.clone(),
            None => completions.first().map_or(&self.text, |first| &first.text).clone(),
        }
    }
}

/// Maximum length of a line that begins with `text`, in characters. Prompts, edits and tokens may be long.
fn longest(text: &str) -> usize {
    match takes_text(text) || is_edit(text) {
        true => LONGEST_PROMPT,
        false => LONGEST,
    }
}

/// The text of another prompt, if the line is `prompt TEXT`.
pub(super) fn prompt_of(text: &str) -> Option<&str> {
    match text.trim_start().strip_prefix("prompt")? {
        "" => Some(""),
        rest => rest.strip_prefix(' '),
    }
}

/// Returns whether the line ends in the text of a prompt.
pub(super) fn takes_text(line: &str) -> bool {
    prompt_of(line).is_some() || line.trim_start().starts_with("patch ")
}

/// The parts to switch off, if the line is `without PARTS`, such as `without L0/h2`.
pub(super) fn without_in(line: &str) -> Option<&str> {
    let rest = line.trim().strip_prefix("without")?;
    (rest.is_empty() || rest.starts_with(' ')).then(|| rest.trim())
}

/// The edit, if the line is `edit EDIT`, such as `edit L1/softmax[h=0] = 0`.
pub(super) fn edit_in(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("edit")?;
    (rest.is_empty() || rest.starts_with(' ')).then(|| rest.trim_start())
}

/// The position and the text, if the line is `token POSITION = TEXT`.
pub(super) fn token_in(line: &str) -> Option<&str> {
    line.trim_start().strip_prefix("token ")
}

/// The name of a lesson, if the line is `learn NAME`; empty for the first one.
fn learn_in(line: &str) -> Option<&str> {
    let name = line.trim().trim_start_matches('/').strip_prefix("learn")?;
    (name.is_empty() || name.starts_with(' ')).then(|| name.trim())
}

/// The lesson with this name.
fn lesson_named(app: &App, name: &str) -> Result<Target, String> {
    if matches!(name, "" | "tour") {
        return Ok(Target::Learn(None));
    }
    let chapters: Vec<&Chapter> = app.notes.chapters.iter().collect();
    match &lesson_search::find(&chapters, name)[..] {
        [] => Err(format!(
            "there is no lesson `{name}`: name tour, the number or name of a chapter, or a word; C lists them"
        )),
        [only] => Ok(Target::Learn(app.notes.chapters.iter().position(|chapter| chapter.slug == only.slug))),
        several => {
            let named: Vec<String> = several
                .iter()
                .map(|chapter| match number_in(chapter.slug) {
                    Some(number) => format!("/learn {number} ({})", chapter.title()),
                    None => format!("/learn {}", chapter.slug),
                })
                .collect();
            Err(format!("several lessons are about `{name}`: {}", named.join(", ")))
        }
    }
}

/// Returns whether the line edits values or tokens.
pub(super) fn is_edit(line: &str) -> bool {
    edit_in(line).is_some() || token_in(line).is_some()
}

/// The number of a step, if the line is `step NUMBER`, such as `step 24`.
pub(super) fn step_in(text: &str) -> Option<&str> {
    let number = text.trim().trim_start_matches('/').strip_prefix("step ")?.trim();
    let number = number.split_once(" of ").map_or(number, |(number, _)| number);
    (!number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())).then_some(number)
}

/// The address of a place that is written as in the title and the outline: `layer 2`, `pass 1 (decode) · layer 3 of
/// 0-3`. A stage may follow at the end.
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
            // A stage can only be the last word.
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

/// The target of `text`: `softmax`, `L3`, `3/softmax`, `p1`, `p1/L3/xq`, or an address with some or all of its indices.
/// Omitted parts are taken from the current place.
///
/// # Errors
/// An error message for the message line.
pub(super) fn target(app: &App, text: &str) -> Result<Target, String> {
    if text.trim().is_empty() {
        return Err(
            "type a stage (softmax), a layer (L1), a pass (p0), or parts of a path: p0/L1/softmax".into()
        );
    }
    if let Some(prompt) = prompt_of(text) {
        return match prompt.trim() {
            // An empty prompt, written as an empty string in a shell.
            "\"\"" => Ok(Target::Begin(NewRun::Prompt(String::new()))),
            "" => Err("type a text after the word prompt: prompt Once upon a time".into()),
            _ => Ok(Target::Begin(NewRun::Prompt(prompt.to_owned()))),
        };
    }
    match clean_in(app, text) {
        Some(CleanPrompt::Text(text)) if text.trim().is_empty() => {
            return Ok(Target::View(logits_of_prompt(app), "patch"));
        }
        Some(clean) => return Ok(Target::Patch(clean)),
        None => {}
    }
    if let Some(parts) = without_in(text) {
        return match parts {
            "" => Err("name the part to switch off: without L0/h2, L0/attn or L0/ffn".into()),
            _ => edit_keys::without(app, parts).map(Target::Begin),
        };
    }
    if let Some(edit) = edit_in(text) {
        return edit_keys::edited(app, edit).map(Target::Begin);
    }
    if let Some(token) = token_in(text) {
        return edit_keys::with_token(app, token).map(Target::Begin);
    }
    if let Some(name) = learn_in(text) {
        return lesson_named(app, name);
    }
    if text.trim().trim_start_matches('/') == "edits" {
        return Ok(Target::Edits);
    }
    // The line begins with the slash that opened it.
    let text = text.trim_start().trim_start_matches('/');
    if let Some(head) = text.trim().strip_prefix('h').and_then(|head| head.parse().ok()) {
        return Err(no_head(app, head));
    }
    if let Some(number) = step_in(text) {
        return step_of(app, number);
    }
    if let Some((place, view)) = view_named(app, text) {
        return Ok(Target::View(place, view));
    }
    let spoken = spoken(text);
    let text = spoken.as_deref().unwrap_or(text);
    // If only a run is named, the other parts are those of the current place.
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
    let is_number = number.bytes().all(|b| b.is_ascii_digit());
    let told = |wrong| match is_number {
        true => format!("{wrong}; a plain number is a layer: type step {number} for the step"),
        false => wrong,
    };
    find(app, &address).map(Target::Here).map_err(told)
}

/// The view with this name, and a step that it can show: this step, or else one in this layer, before the layers or
/// after them. None if a step has this name, or if no step of this pass has the view.
pub(super) fn view_named(app: &App, name: &str) -> Option<(Place, &'static str)> {
    let name = name.trim().to_lowercase();
    let view = VIEWS.iter().find(|view| view.name() == name && Step::from_name(&name).is_none())?;
    if view.fits(app.place.step) {
        return Some((app.place, view.name()));
    }
    let walk = app.walk();
    let here = walk.layer(app.place.layer.unwrap_or(0));
    let steps = SHOW_VIEWS_BEST.iter().filter(|step| here.contains(step)).chain(here);
    let step = steps.chain(&walk.start).chain(&walk.end).find(|&&step| view.fits(step))?;
    let layer = step.stage().in_layer().then(|| app.place.layer.unwrap_or(0));
    Some((walk.place(layer, *step), view.name()))
}

/// The step of this pass with this number. As in the title, the first step is number 1.
fn step_of(app: &App, number: &str) -> Result<Target, String> {
    let walk = app.walk();
    let at = number.parse().ok().and_then(|number: usize| number.checked_sub(1));
    match at.filter(|&at| at < walk.len()) {
        Some(at) => Ok(Target::Here(Spot { place: walk.at(at), index: Vec::new() })),
        None => Err(format!("there is no step {number}: 1 to {}", walk.len())),
    }
}

/// The place that reads a weight, and the address of the weight's row that `address` names. If `address` has no layer,
/// it is the current one; a missing index is 0.
pub(super) fn row_of(app: &App, address: &Address, weight: Weight) -> Result<(Place, Address), String> {
    let (card, dims) = (&app.outline.card, app.dims());
    let weight = weight.in_model(card).ok_or_else(|| no_screen(card, weight))?;
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

/// The spot at `address` in this run. Omitted parts are taken from the current place.
pub(super) fn find(app: &App, address: &Address) -> Result<Spot, String> {
    let pass = address.pass.unwrap_or(app.place.pass);
    let count = app.outline.passes.len();
    let Some(outline) = app.outline.passes.get(pass) else {
        return Err(format!("there is no pass {pass}: 0 to {} so far", count.max(1) - 1));
    };
    resolve(&app.outline, address, outline.dims, app.place)
}

/// The spot at `address` in a pass of `dims`. Omitted parts are taken from `here`.
///
/// # Errors
/// Names the wrong part, and what exists instead.
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
        Some(Subject::Step(step)) => Some(step.in_model(&outline.card.sizes(), address.layer.or(here.layer))),
        None => None,
    };
    let place = match (step, address.layer) {
        (Some(step), Some(_)) if !step.stage().in_layer() => {
            return Err(format!("{} is outside the layers: its address is p{}/{0}", step.name(), dims.pass));
        }
        (Some(step), layer) => {
            let layer = step.stage().in_layer().then(|| layer.or(here.layer).unwrap_or(0));
            if let Some(absent) = step.absence(&outline.card, dims, layer) {
                return Err(format!("{}: {}", absent.what, absent.why));
            }
            walk.place(layer, step)
        }
        (None, Some(layer)) => {
            let first = walk.layer(layer).first().copied().unwrap_or(here.step);
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

/// The error for a line that names only a head, if the current step does not have this head.
fn no_head(app: &App, head: usize) -> String {
    let (step, sizes) = (app.place.step, app.outline.card.sizes());
    match step.axes().iter().find(|axis| matches!(axis, Axis::Head | Axis::KvHead)) {
        Some(axis) => {
            format!("there is no {} {head}: 0 to {}", axis.name(), sizes.axis(*axis, app.dims()).max(1) - 1)
        }
        None => format!("{} has no heads; name a stage with heads, as in softmax h{head}", step.name()),
    }
}

/// Checks that the address names the outline's run and sequence, or no run and no sequence.
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

/// The error for a sequence that the run of this outline does not have.
pub(super) fn no_sequence(outline: &Outline, sequence: usize) -> String {
    match outline.sequences {
        0 | 1 => format!("there is no sequence {sequence}: {} is the only one", outline.sequence),
        count => format!("there is no sequence {sequence}: 0 to {}", count - 1),
    }
}

/// The error for a weight, which has no screen of its own.
fn no_screen(card: &ModelCard, weight: Weight) -> String {
    if let Some(weight) = weight.in_model(card) {
        let by = weight.read_by();
        let letters = weight.letters().into_iter().map(|letter| format!("{letter}=0"));
        let (layer, index) =
            (if weight.in_layer() { "L0/" } else { "" }, letters.collect::<Vec<_>>().join(","));
        format!(
            "{weight} is a weight: name one of its numbers ({layer}{weight}[{index}]) to see its row; the stage {by} reads it"
        )
    } else {
        format!("this model has no weight {weight}")
    }
}

/// Goes to `address` in the run that is shown, or shows the error.
pub(super) fn go_to(app: &mut App, address: &Address) {
    match find(app, address) {
        Ok(spot) => go(app, &spot),
        Err(wrong) => app.say(wrong, true),
    }
    app.settle();
}

/// Goes to a spot.
pub(super) fn go(app: &mut App, target: &Spot) {
    app.go(target.place);
    for &(axis, index) in &target.index {
        app.cursor.selected.set(axis, index);
    }
    let names_key = target.index.iter().any(|(axis, _)| *axis == Axis::Key);
    app.cursor.keeps_key |= names_key;
    if !names_key {
        search_keys::leave_hidden_key(app);
    }
    if target.index.iter().any(|(axis, _)| *axis == Axis::Vocab) {
        // In the list that is sorted by size, the row of an id is not known.
        app.choose_view(if target.place.step.axes().len() == 1 { "list" } else { "numbers" });
    }
}
