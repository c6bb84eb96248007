//! Marks a place, and returns to a mark.

use llama_trace_core::error::printable;

use super::action::Action;
use super::app::App;
use super::chapter_keys;
use super::derivation_keys;
use super::effect::Effect;
use super::goto::{self, Target};
use super::input::Mode;
use super::marks::{self, Mark};

/// Marks this place with the letter that was pressed.
pub(super) fn mark(app: &mut App, action: &Action) -> Effect {
    app.input.mode = Mode::Walk;
    match *action {
        Action::Type(letter) if marks::is_letter(letter) => {
            let address = app.place.address(&app.index());
            let was = app.marks.all.get(&letter).cloned();
            let told = match &was {
                Some(was) if !is_here(app, was) => {
                    let note =
                        if was.words.is_empty() { "" } else { "; the old note is now a comment in the file" };
                    format!("{letter} was moved from {} to {address}{note}", was.address)
                }
                _ => format!("{letter} marks {address}; ' and {letter} returns to it"),
            };
            let stays = was.filter(|was| is_here(app, was));
            app.marks.set(letter, stays.unwrap_or(Mark { address, words: String::new() }));
            app.say(told, false);
            Effect::SaveMarks
        }
        Action::Type(_) => {
            app.say("a mark is a letter or a digit", true);
            Effect::None
        }
        _ => Effect::None,
    }
}

/// Returns whether `mark` is at the cell under the cursor.
fn is_here(app: &App, mark: &Mark) -> bool {
    let Ok(Target::Here(spot)) = goto::target(app, &mark.address) else { return false };
    let mut cell = app.place.step.axes().iter().copied().zip(app.index());
    spot.place == app.place && cell.all(|axis| spot.index.contains(&axis))
}

/// Returns to the mark with the letter that was pressed.
pub(super) fn return_to(app: &mut App, action: &Action) -> Effect {
    app.input.mode = Mode::Walk;
    let letter = match *action {
        Action::Type(letter) => letter,
        _ => return Effect::None,
    };
    let Some(mark) = app.marks.all.get(&letter).cloned() else {
        app.say(format!("there is no mark {letter}"), true);
        return Effect::None;
    };
    // Parts that the mark leaves out are taken from the current place.
    match goto::target(app, &mark.address) {
        Ok(Target::Here(place)) => goto::go(app, &place),
        Ok(Target::Other(run, address)) => return Effect::Open(run, address),
        Ok(Target::Begin(other)) => return Effect::Begin(other),
        Ok(Target::Patch(clean)) => return Effect::Patch(clean),
        Ok(Target::Edits) => return Effect::Edits,
        Ok(Target::Learn(chapter)) => return chapter_keys::open_named(app, chapter),
        Ok(Target::Weight(place, row)) => derivation_keys::open_weight_row(app, place, row),
        Ok(Target::View(place, view)) => {
            app.go(place);
            app.choose_view(view);
        }
        Err(wrong) => {
            app.say(wrong, true);
            return Effect::None;
        }
    }
    if !mark.words.is_empty() {
        app.say(printable(&mark.words), false);
    }
    Effect::None
}
