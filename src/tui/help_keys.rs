//! Keys of the help screen.

use super::action::Action;
use super::app::App;
use super::effect::Effect;
use super::input::Mode;

/// Maximum length of a text that the help screen is searched for, in characters. No line of the help screen is as long,
/// and the rest of a longer pasted text is ignored.
const MOST_WANTED: usize = 80;

/// Handles a key in the help screen, whose first line is `line` and which is filtered by `wanted`.
pub(super) fn help(app: &mut App, line: usize, mut wanted: String, action: &Action) -> Effect {
    let page = usize::from(app.panels.size.height / 2).max(1);
    let line = match action {
        // No word of the help contains `?`, but any other character can be a part of a word.
        Action::Type('?') => {
            app.input.mode = Mode::Walk;
            return Effect::None;
        }
        Action::Type(c) => {
            wanted.push(*c);
            0
        }
        Action::Paste(text) => {
            wanted.extend(text.chars().filter(|c| !c.is_control()).take(MOST_WANTED));
            0
        }
        Action::Erase(erase) => {
            wanted.truncate(erase.start(&wanted));
            0
        }
        Action::Down | Action::NextStep => line + 1,
        Action::Up | Action::PreviousStep => line.saturating_sub(1),
        Action::PageDown => line + page,
        Action::PageUp => line.saturating_sub(page),
        Action::Home | Action::FirstStep => 0,
        Action::End | Action::LastStep => usize::MAX,
        Action::Scroll { down, .. } => line.saturating_add_signed(isize::from(*down)),
        Action::Close | Action::Help | Action::Explain | Action::Click(..) => {
            app.input.mode = Mode::Walk;
            return Effect::None;
        }
        Action::Redraw => return Effect::Redraw,
        Action::Suspend => return Effect::Suspend,
        _ => line,
    };
    app.input.mode = Mode::Help(line, wanted);
    Effect::None
}
