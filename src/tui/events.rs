//! The parts of an event loop that need no terminal: taking in news from the source, and the action of an event.

use llama_trace_core::error::Result;

use super::action::{self, Action};
use super::app::App;
use super::effects;
use super::input::Mode;
use super::lesson_keys;
use super::runs::Runs;
use super::user_event::{Event, MouseButton, MouseEventKind};

/// Takes in news from the source, and asks for what the screen needs. Returns whether the screen may have changed.
///
/// # Errors
/// The source's error if there is nothing to show.
pub fn take_in(app: &mut App, runs: &mut Runs) -> Result<bool> {
    let mut news = match runs.poll() {
        Err(error) if effects::back(app, runs) => {
            effects::fail(app, error.to_string());
            true
        }
        news => news?,
    };
    news |= app.sync(runs.source());
    if app.take_plain() {
        effects::compare_plain(app, runs);
        news = true;
    }
    if app.sync_lesson(runs) {
        news = true;
        app.sync(runs.source());
    }
    let beside = runs.beside(app);
    news |= app.sync_compared(beside);
    Ok(news)
}

/// The action of an event; none if it has none.
pub fn action_of(app: &App, event: Event) -> Option<Action> {
    let typing = matches!(app.mode(), Mode::Goto(_) | Mode::Answer(_) | Mode::Mark | Mode::Return);
    // In the help screen letters filter, and other keys scroll.
    let finds = matches!(app.mode(), Mode::Help(..));
    match event {
        Event::Key(key) if typing => action::of_typed_key(key),
        Event::Key(key) if finds => action::of_found_key(key),
        Event::Key(key) if *app.mode() == Mode::Walk => {
            lesson_keys::of_key(app, key).or_else(|| action::of_key(key))
        }
        Event::Key(key) => action::of_key(key),
        Event::Paste(text) => (typing || finds).then_some(Action::Paste(text)),
        Event::Resize(columns, rows) => Some(Action::Resize(columns, rows)),
        Event::Mouse(mouse) => {
            let (x, y) = (mouse.column, mouse.row);
            let scroll = |down, right| Some(Action::Scroll { x, y, down, right });
            match mouse.kind {
                MouseEventKind::Down(MouseButton::Left) => Some(Action::Click(x, y)),
                MouseEventKind::Drag(MouseButton::Left) => Some(Action::Drag(x, y)),
                MouseEventKind::ScrollDown if mouse.modifiers.is_empty() => scroll(3, 0),
                MouseEventKind::ScrollUp if mouse.modifiers.is_empty() => scroll(-3, 0),
                MouseEventKind::ScrollDown | MouseEventKind::ScrollRight => scroll(0, 3),
                MouseEventKind::ScrollUp | MouseEventKind::ScrollLeft => scroll(0, -3),
                _ => None,
            }
        }
    }
}
