//! Keys of the derivation: Enter explains the number under the cursor and goes to its operands, Backspace goes back.

use llama_trace_core::trace::explanation::From;
use llama_trace_core::trace::{Address, Subject};

use super::app::App;
use super::derivation::{Derivation, TrailEntry};
use super::display::ViewNames;
use super::goto;
use super::hidden::HIDDEN;
use super::panel_state::Focus;
use super::patch_keys;
use super::place::Place;
use super::view::{self, derivation};

/// Number of lines below the default operand that are scrolled into sight together with it.
const BELOW: usize = 3;

/// Opens the derivation of the number under the cursor. If it is open, goes to the chosen operand.
pub(super) fn enter(app: &mut App) {
    match app.panels.focus {
        Focus::Derivation => follow(app),
        Focus::Tensor if app.view().enter_address(app).is_some() => {
            let (before, Some(address)) = (app.view().name(), app.view().enter_address(app)) else { return };
            if let Err(wrong) = patch_keys::jump(app, &address) {
                app.say(wrong, true);
            }
            // A view whose cells lead to an address does not show the number at that address. If this view is still
            // chosen at the target, a view of values replaces it.
            if app.view().name() == before {
                app.choose_view(ViewNames::default().plain);
            }
        }
        Focus::Tensor if app.view().enter_place(app).is_some() => {
            let Some((place, view)) = app.view().enter_place(app) else { return };
            app.go(place);
            app.choose_view(view);
        }
        Focus::Tensor if !app.view().shows_numbers() => {
            app.say("this view shows no numbers of the stage; v shows another view", false);
        }
        Focus::Tensor if app.hidden.is_some() => app.say(HIDDEN, false),
        Focus::Tensor => {
            if app.derivation.is_none() {
                app.derivation = Some(Derivation::default());
            }
            app.panels.focus = Focus::Derivation;
        }
        Focus::Notes | Focus::Outline => app.panels.focus = Focus::Tensor,
    }
}

/// Opens the row of a weight, at the place that reads this weight.
pub(super) fn open_weight_row(app: &mut App, place: Place, row: Address) {
    app.go(place);
    // A list by size would move the cursor once the order is known, and that would close the derivation.
    match app.place.step.over_vocabulary() {
        true => app.choose_view("numbers"),
        false if !app.view().shows_numbers() => app.choose_view(ViewNames::default().plain),
        false => {}
    }
    let of = Some(app.number_at_cursor());
    app.derivation = Some(Derivation { weight: Some(row), follows: true, of, ..Derivation::default() });
    app.panels.focus = Focus::Derivation;
}

/// Goes to the chosen operand: a number in its own stage, or a row of a weight.
fn follow(app: &mut App) {
    let is_weight = app.derivation().is_some_and(|derivation| derivation.weight.is_some());
    if is_weight {
        return app.say("a weight is learned, and not computed in this run; Backspace goes back", false);
    }
    let Some(Ok(explanation)) = app.explanation() else { return };
    let (from, chosen) = (explanation.address.clone(), app.chosen_operand());
    // An operand out of sight is scrolled into sight first.
    if chosen.is_some_and(|chosen| !is_seen(app, chosen)) {
        if let Some(derivation) = &mut app.derivation {
            derivation.follows = true;
        }
        return app.say("this operand is chosen: Enter again goes to it", false);
    }
    let operand = chosen.and_then(|(term, operand)| explanation.terms.get(term)?.operands.get(operand));
    let Some(operand) = operand else {
        return app.say("the explanation ends here: this number is an input", false);
    };
    let left = TrailEntry { address: from, chosen };
    match operand.from.clone() {
        From::Constant(name) => app.say(format!("{name} is a constant: no stage computes it"), false),
        From::Weight(address) => {
            if let Some(derivation) = &mut app.derivation {
                derivation.trail.push(left);
                derivation.weight = Some(address);
                derivation.follows = true;
                derivation.line = 0;
            }
        }
        From::Stage(address) => match goto::find(app, &address) {
            Err(wrong) => app.say(wrong, true),
            Ok(spot) => {
                goto::go(app, &spot);
                let of = app.number_at_cursor();
                if let Some(derivation) = &mut app.derivation {
                    derivation.trail.push(left);
                    derivation.restart(Some(of));
                }
            }
        },
    }
}

/// Goes back along the trail. At the start of the trail, closes the derivation. False if no derivation is open.
pub(super) fn back(app: &mut App) -> bool {
    let Some(derivation) = &mut app.derivation else { return false };
    let was_weight = derivation.weight.take().is_some();
    let Some(left) = derivation.trail.pop() else {
        close(app);
        return true;
    };
    derivation.chosen = left.chosen;
    derivation.follows = true;
    if !was_weight {
        match goto::find(app, &left.address) {
            Err(wrong) => app.say(wrong, true),
            Ok(spot) => {
                goto::go(app, &spot);
                // Chooses again the operand that was chosen in this derivation.
                let of = app.number_at_cursor();
                if let Some(derivation) = &mut app.derivation {
                    derivation.restart(Some(of));
                    derivation.chosen = left.chosen;
                    derivation.follows = true;
                }
            }
        }
    }
    true
}

/// Closes the derivation; true if it was open.
pub(super) fn close(app: &mut App) -> bool {
    if app.panels.focus == Focus::Derivation {
        app.panels.focus = Focus::Tensor;
    }
    app.derivation.take().is_some()
}

/// Moves the choice by terms (`down`) or operands (`right`). Past the last term the lines scroll.
pub(super) fn choose(app: &mut App, down: isize, right: isize) {
    let Some(derivation) = app.derivation() else { return };
    if derivation.weight.is_some() {
        return scroll(app, down);
    }
    let chosen = app.chosen_operand();
    let Some(Ok(explanation)) = app.explanation() else { return };
    let Some((term, operand)) = chosen else { return scroll(app, down) };
    let counts: Vec<usize> = explanation.terms.iter().map(|term| term.operands.len()).collect();
    let seen = is_seen(app, (term, operand));
    let next = term.saturating_add_signed(down);
    if down != 0 && (!seen || next >= counts.len() || (next == term && down < 0)) {
        return scroll(app, down);
    }
    let operand = operand.saturating_add_signed(right).min(counts[next].max(1) - 1);
    if let Some(derivation) = &mut app.derivation {
        derivation.chosen = Some((next, operand));
        derivation.follows = true;
    }
}

/// Returns whether the line of an operand is on the screen.
fn is_seen(app: &App, operand: (usize, usize)) -> bool {
    let area = derivation::below(view::Panels::new(app).derivation.unwrap_or_default());
    let first = app.derivation().map_or(0, |derivation| derivation.line);
    let line = derivation::line_of(&derivation::rows(app, area.width), operand);
    line.is_some_and(|line| (first..first + usize::from(area.height)).contains(&line))
}

/// Scrolls the lines.
pub(super) fn scroll(app: &mut App, down: isize) {
    if let Some(derivation) = &mut app.derivation {
        derivation.line = derivation.line.saturating_add_signed(down);
    }
}

/// Chooses the operand at a position of the panel; a click on the chosen operand goes to it.
pub(super) fn click(app: &mut App, x: u16, y: u16) {
    let Some(area) = view::Panels::new(app).derivation else { return };
    let focused = std::mem::replace(&mut app.panels.focus, Focus::Derivation) == Focus::Derivation;
    let Some(operand) = derivation::operand_at(app, area, x, y) else { return };
    if focused && app.chosen_operand() == Some(operand) {
        follow(app);
    } else if let Some(derivation) = &mut app.derivation {
        derivation.chosen = Some(operand);
        derivation.follows = true;
    }
}

/// Keeps the derivation on the number under the cursor, and its lines in range.
pub(super) fn settle(app: &mut App) {
    patch_keys::settle(app);
    if !app.view().shows_numbers() {
        close(app);
    }
    let of = app.number_at_cursor();
    let Some(derivation) = &mut app.derivation else { return };
    // The trail ends if any key other than Enter moved the cursor.
    if derivation.of != Some(of) {
        let had_trail = !derivation.trail.is_empty();
        *derivation = Derivation { of: Some(of), follows: true, ..Derivation::default() };
        if had_trail && app.input.message.is_none() {
            app.say(
                "Backspace cannot go further: you did not come to this number with Enter; Alt-← goes back",
                false,
            );
        }
    }
    let Some(area) = view::Panels::new(app).derivation.map(derivation::below) else { return };
    let (rows, height) = (derivation::rows(app, area.width), usize::from(area.height));
    let Some(derivation) = app.derivation() else { return };
    let (mut line, mut follows) = (derivation.line, derivation.follows);
    let wanted = match &derivation.weight {
        Some(weight) => component(weight).and_then(|at| derivation::line_of_component(&rows, at)),
        None => app.chosen_operand().and_then(|chosen| derivation::line_of(&rows, chosen)),
    };
    if let Some(wanted) = wanted.filter(|_| follows) {
        let seen = (line..line + height).contains(&wanted);
        // The default operand is shown with a few of the lines below it.
        let below = if seen || derivation.chosen.is_some() { 0 } else { BELOW.min(height / 3) };
        let last = (wanted + below).min(rows.len().saturating_sub(1));
        line = line.min(wanted).max((last + 1).saturating_sub(height));
        follows = false;
    }
    line = line.min(rows.len().saturating_sub(height));
    if let Some(derivation) = &mut app.derivation {
        (derivation.line, derivation.follows) = (line, follows);
    }
}

/// The component of the weight's row that an address of a weight names.
fn component(weight: &Address) -> Option<usize> {
    matches!(weight.subject, Some(Subject::Weight(_))).then(|| weight.index.last().map(|(_, at)| *at))?
}
