//! Keys of the edits: `E` edits the number under the cursor, `w` replaces a token, and other keys choose in the list of
//! edits. Each starts another run beside the shown one.

use llama_trace_core::edit::Edit;
use llama_trace_core::error::printable;
use llama_trace_core::trace::{Address, Axis, Site, Step};

use super::action::Action;
use super::app::App;
use super::edit_list::EditList;
use super::edited;
use super::input::{GotoLine, Mode};
use super::place::Place;
use super::runs::{Edited, NewRun};
use super::text;

/// Opens the go-to line with an edit of the number under the cursor, or with the token at a stage of ids.
pub(super) fn open(app: &mut App) {
    if app.place.step.stage().is_ids() {
        return open_token(app);
    }
    if let Some(place) = places(app, &[]).into_iter().next() {
        let can_start = app.starts_runs || app.edits_recorded;
        open_line(app, format!("edit {place} = "), can_start.then_some(()).ok_or("an edited run"));
    }
}

/// Opens the go-to line with the current token.
pub(super) fn open_token(app: &mut App) {
    let position = app.current_position();
    let label = app.position(position).map_or_else(String::new, |token| text::visible(&token.text));
    let can_start = app.starts_runs.then_some(()).ok_or("another prompt");
    open_line(app, format!("token {position} = {label}"), can_start);
}

/// Opens the go-to line, if such a run can be started. The error names the run.
fn open_line(app: &mut App, text: String, can_start: Result<(), &str>) {
    if let Err(what) = can_start {
        let wrong = match (app.outline.recorded, &app.origin.file) {
            (true, Some(file)) => format!(
                "{what} needs the model, and a trace has no weights; quit, and type: llama-trace open {} --model DIR",
                printable(file)
            ),
            (true, None) => format!(
                "{what} needs the model, and a trace has no weights; quit, and type: llama-trace open TRACE --model DIR"
            ),
            (false, _) => "no edited run can be started here; start the tracer with --prompt".to_owned(),
        };
        return app.say(wrong, true);
    }
    app.input.mode = Mode::Goto(GotoLine { text, chosen: None });
}

/// The places that an edit can name here, from one number to the whole stage: the cell, its row, its head, its token and
/// the stage. The indexes are those of `named`, by the letter of the axis, or else those of the cursor.
fn places(app: &App, named: &[(&str, &str)]) -> Vec<String> {
    let Place { pass, layer, step, .. } = app.place;
    let site = Site { layer, ..Site::once(pass, step.stage()) };
    let cell = Step::Stage(step.stage());
    let (axes, index) = (cell.axes(), app.index_in_stage());
    let path = Address::of(site, cell, &[]).to_string();
    let mut places: Vec<String> = Vec::new();
    let mut add = |kept: &dyn Fn(usize, Axis) -> bool| {
        let kept = axes.iter().enumerate().filter(|&(at, &axis)| kept(at, axis));
        let kept: Vec<String> = kept
            .map(|(at, axis)| {
                let letter = axis.index().to_string();
                let named = named.iter().find(|(other, _)| *other == letter);
                named.map_or_else(
                    || format!("{letter}={}", index[at]),
                    |(_, number)| format!("{letter}={number}"),
                )
            })
            .collect();
        let index = if kept.is_empty() { String::new() } else { format!("[{}]", kept.join(",")) };
        let place = format!("{path}{index}");
        if !places.contains(&place) {
            places.push(place);
        }
    };
    add(&|_, _| true);
    add(&|at, _| at + 1 < axes.len());
    add(&|_, axis| matches!(axis, Axis::Head | Axis::KvHead));
    add(&|_, axis| axis == Axis::Token);
    add(&|_, _| false);
    places
}

/// Widens the place of an edit that the line begins with, or changes how a token is edited. False if the line has
/// neither.
pub(super) fn widen(app: &App, line: &mut GotoLine) -> bool {
    let position = app.current_position();
    let token = ["token", "token before", "token after"].map(|how| format!("{how} {position} ="));
    // The cursor may have moved since the line was opened, because the values arrived.
    let place = line.text.split(' ').nth(1).unwrap_or_default();
    let named: Vec<(&str, &str)> = place
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
        .map(|(index, _)| index.split(',').filter_map(|part| part.split_once('=')).collect())
        .unwrap_or_default();
    let places = places(app, &named).into_iter().map(|place| format!("edit {place} "));
    for forms in [token.to_vec(), places.collect()] {
        if let Some(at) = forms.iter().position(|form| line.text.starts_with(form)) {
            let rest = line.text[forms[at].len()..].to_owned();
            line.text = forms[(at + 1) % forms.len()].clone() + &rest;
            return true;
        }
    }
    false
}

/// A run like the shown one, with these edits.
fn run_with(app: &App, edits: Vec<String>) -> NewRun {
    NewRun::Edited(Edited { edits, ..plain(app) })
}

/// The shown run without its edits.
pub(super) fn plain(app: &App) -> Edited {
    let first = app.outline.passes.first().map_or(&[][..], |pass| &pass.tokens);
    Edited {
        edits: Vec::new(),
        ids: first.iter().map(|token| token.id).collect(),
        insert: None,
        sequence: app.outline.sequence,
        passes: app.outline.passes.len(),
        precision: Some(app.outline.card.precision.name().to_owned()),
    }
}

/// A run with one more edit.
pub(super) fn edited(app: &App, edit: &str) -> Result<NewRun, String> {
    if edit.is_empty() {
        return Err("write a place, an operation and a value: edit L1/softmax[h=0] = 0".into());
    }
    let edit = Edit::parse(edit)?;
    let mut edits = edited::texts(&app.outline);
    edits.push(edit.text);
    Ok(run_with(app, edits))
}

/// A run with more parts of the model switched off.
pub(super) fn without(app: &App, parts: &str) -> Result<NewRun, String> {
    let mut edits = edited::texts(&app.outline);
    for part in parts.split(',') {
        edits.push(Edit::without(part)?.text);
    }
    Ok(run_with(app, edits))
}

/// A run with another token, or with a token more or less: `3 = dog`, `before 3 = dog`, `after 3 = dog`, `3 =`.
pub(super) fn with_token(app: &App, line: &str) -> Result<NewRun, String> {
    let wrong = || {
        "write a position and a text: token 3 = ␣dog; token before 3 = ␣dog inserts a token; token 3 = deletes it"
            .to_owned()
    };
    let (place, text) = line.split_once('=').ok_or_else(wrong)?;
    let (how, number) = place.trim().split_once(' ').unwrap_or(("", place.trim()));
    let position: usize = number.trim().parse().map_err(|_| wrong())?;
    // One space after `=` belongs to the command. The screen shows a space of a token as `␣`.
    let text = text.strip_prefix(' ').unwrap_or(text).replace('␣', " ");
    let passes = &app.outline.passes;
    let tokens = passes.iter().take_while(|pass| pass.dims.pass == 0 || pass.dims.start <= position);
    let mut ids: Vec<u32> = tokens.flat_map(|pass| &pass.tokens).map(|token| token.id).collect();
    if position >= ids.len() {
        return Err(format!("there is no token {position}: 0 to {}", ids.len().max(1) - 1));
    }
    let at = match how {
        "" => {
            ids.remove(position);
            position
        }
        "before" => position,
        "after" => position + 1,
        _ => return Err(wrong()),
    };
    match (text.is_empty(), how) {
        (true, "") if ids.is_empty() => {
            return Err("the only token cannot be deleted: a run reads at least one".into());
        }
        (true, "") | (false, _) => {}
        (true, _) => return Err("type the text of the token to insert".into()),
    }
    let insert = Some((at, text)).filter(|(_, text)| !text.is_empty());
    let edits = edited::texts(&app.outline);
    Ok(NewRun::Edited(Edited { edits, ids, insert, passes: 1, ..plain(app) }))
}

/// Handles a key in the list of edits. Returns the run that Enter starts.
pub(super) fn choose(app: &mut App, mut list: EditList, action: &Action) -> Option<NewRun> {
    let last = list.rows.len().saturating_sub(1);
    match action {
        Action::Down | Action::NextStep => list.chosen = (list.chosen + 1).min(last),
        Action::Up | Action::PreviousStep => list.chosen = list.chosen.saturating_sub(1),
        Action::Home => list.chosen = 0,
        Action::End => list.chosen = last,
        Action::Explain => {
            app.input.mode = Mode::Walk;
            return Some(run_with(app, list.toggled()));
        }
        Action::Close | Action::Quit | Action::Edits | Action::Help | Action::Click(..) => {
            app.input.mode = Mode::Walk;
            return None;
        }
        _ => {}
    }
    app.input.mode = Mode::Edits(list);
    None
}
