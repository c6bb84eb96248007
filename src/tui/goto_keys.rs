//! Keys of the go-to line.

use super::action::Action;
use super::app::App;
use super::chapter_keys;
use super::derivation_keys;
use super::edit_keys;
use super::effect::Effect;
use super::erase::Erase;
use super::goto::{self, COMMANDS, Target};
use super::input::{GotoLine, Mode};
use super::screen_option::ScreenOption;
use super::screen_settings;

/// Handles a key in the go-to line.
pub(super) fn type_goto(app: &mut App, mut line: GotoLine, action: Action) -> Effect {
    match action {
        Action::Close | Action::Click(..) => {
            app.input.mode = Mode::Walk;
            return Effect::None;
        }
        Action::Type(c) => line.push(c),
        Action::Paste(text) => {
            if let Err(wrong) = line.paste(&text) {
                app.say(wrong, true);
            }
        }
        Action::Erase(Erase::Character) if line.text.is_empty() => {
            app.input.mode = Mode::Walk;
            return Effect::None;
        }
        Action::Erase(erase) => line.erase(erase),
        Action::Up => line.choose(app, -1),
        Action::Down => line.choose(app, 1),
        Action::Complete if edit_keys::widen(app, &mut line) => {}
        Action::Complete => line.complete(app),
        // Enter on an empty line changes nothing.
        Action::Submit if line.text.trim().is_empty() && line.chosen.is_none() => {
            app.input.mode = Mode::Walk;
            return Effect::None;
        }
        Action::Submit if ScreenOption::in_line(&line.setting(app)).is_some() => {
            let text = line.setting(app);
            let Some((option, value)) = ScreenOption::in_line(&text) else { return Effect::None };
            match screen_settings::set(app, option, value) {
                Ok(()) => {
                    app.input.mode = Mode::Walk;
                    return Effect::None;
                }
                Err(wrong) => app.say(wrong, true),
            }
        }
        // A command needs a text after it.
        Action::Submit if line.chosen.is_none() && COMMANDS.contains(&&*format!("{} ", line.text)) => {
            line = GotoLine { text: format!("{} ", line.text), chosen: None };
            if let Err(wrong) = goto::target(app, &line.text) {
                app.say(wrong, true);
            }
        }
        Action::Submit if line.text != line.answer(app) && COMMANDS.contains(&&*line.answer(app)) => {
            line = GotoLine { text: line.answer(app), chosen: None };
        }
        Action::Submit => match goto::target(app, &line.answer(app)) {
            Ok(Target::Here(place)) => {
                app.input.mode = Mode::Walk;
                goto::go(app, &place);
                return Effect::None;
            }
            Ok(Target::Other(run, address)) => {
                app.input.mode = Mode::Walk;
                return Effect::Open(run, address);
            }
            Ok(Target::Begin(other)) => {
                app.input.mode = Mode::Walk;
                return Effect::Begin(other);
            }
            Ok(Target::Patch(clean)) => {
                app.input.mode = Mode::Walk;
                return Effect::Patch(clean);
            }
            Ok(Target::View(place, view)) => {
                app.input.mode = Mode::Walk;
                app.go(place);
                app.choose_view(view);
                return Effect::None;
            }
            Ok(Target::Edits) => {
                app.input.mode = Mode::Walk;
                return Effect::Edits;
            }
            Ok(Target::Learn(chapter)) => {
                app.input.mode = Mode::Walk;
                return chapter_keys::open_named(app, chapter);
            }
            Ok(Target::Weight(place, row)) => {
                app.input.mode = Mode::Walk;
                derivation_keys::open_weight_row(app, place, row);
                return Effect::None;
            }
            Err(text) => app.say(text, true),
        },
        _ => {}
    }
    app.input.mode = Mode::Goto(line);
    Effect::None
}
