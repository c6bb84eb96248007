//! Moves in the panel with the focus, and chooses what the panels show.

use super::app::App;
use super::derivation_keys;
use super::move_keys::{layer, move_cursor, step};
use super::panel_state::Focus;
use super::slice::Cut;
use super::strip_values::StripValues;
use super::view::Panels;

/// Moves in the panel with the focus.
pub(super) fn by_focus(app: &mut App, down: isize, right: isize) {
    match app.panels.focus {
        Focus::Tensor => move_cursor(app, down, right),
        Focus::Derivation => derivation_keys::choose(app, down, right),
        Focus::Notes => app.notes.line = app.notes.line.saturating_add_signed(down),
        Focus::Outline if down != 0 => step(app, down),
        Focus::Outline => layer(app, right),
    }
}

/// Pages in the panel with the focus.
pub(super) fn page(app: &mut App, down: isize, right: isize) {
    let panels = Panels::new(app);
    match app.panels.focus {
        Focus::Derivation => {
            let height = panels.derivation.map_or(1, |area| area.height.max(2) - 1);
            derivation_keys::scroll(app, (down + right) * height as isize);
        }
        Focus::Notes => {
            let height = panels.notes.map_or(1, |area| area.height.max(2) - 1);
            app.notes.line = app.notes.line.saturating_add_signed(down * height as isize);
        }
        Focus::Outline => {
            let height = panels.outline.map_or(1, |area| area.height.max(2) - 1);
            let walk = app.walk();
            let number = walk.number(app.place).saturating_add_signed((down + right) * height as isize);
            app.go(walk.at(number));
        }
        Focus::Tensor => {
            let Some(layout) = app.layout() else { return };
            let (rows, columns) = (layout.rows_seen().max(1), layout.columns_seen().max(1));
            move_cursor(app, down * rows as isize, right * columns as isize);
        }
    }
}

/// Goes to an edge of the panel with the focus. If `far` is the smallest number, this is the start; if `far` is the
/// largest number, the end.
pub(super) fn edge(app: &mut App, far: isize) {
    match app.panels.focus {
        Focus::Derivation => derivation_keys::scroll(app, far),
        Focus::Notes => app.notes.line = app.notes.line.saturating_add_signed(far),
        Focus::Outline => app.go(app.walk().at(usize::MIN.saturating_add_signed(far))),
        Focus::Tensor if app.layout().is_some_and(|layout| layout.columns == 1) => move_cursor(app, far, 0),
        Focus::Tensor => move_cursor(app, 0, far),
    }
}

/// Moves the focus by `by` panels.
pub(super) fn turn_focus(app: &mut App, by: isize) {
    let derivation = app.derivation.as_ref().map(|_| Focus::Derivation);
    let order = [Some(Focus::Tensor), derivation, Some(Focus::Notes), Some(Focus::Outline)];
    let order: Vec<Focus> = order.into_iter().flatten().collect();
    let now = order.iter().position(|&focus| focus == app.panels.focus).unwrap_or(0);
    app.panels.focus = order[(now + order.len()).saturating_add_signed(by) % order.len()];
}

/// Chooses the next kind of values on the token strip.
pub(super) fn cycle_strip(app: &mut App) {
    app.strip = app.strip.next();
    match app.strip {
        StripValues::Attention if app.place.layer.is_none() => {
            app.say("at stages in a layer, the token strip shows the attention of the current head", false);
        }
        StripValues::Nothing => app.say("the token strip shows only the tokens", false),
        carries => {
            let name = carries.name();
            app.say(format!("the token strip shows {name}; each mark belongs to the token before it"), false);
        }
    }
}

/// Chooses the next layout of the axes.
pub(super) fn cycle_axes(app: &mut App) {
    let count = app.place.step.axes().len();
    if app.layout().is_some_and(|layout| layout.columns == 1) || count < 2 {
        app.say("these axes have only one layout", false);
    } else {
        app.display.turn = (app.display.turn + 1) % Cut::choices(count);
    }
}
