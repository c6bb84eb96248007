//! The mouse: clicks, drags and the wheel. They act on the panel under the pointer.

use ratatui::layout::{Position, Rect};

use llama_trace_core::trace::Axis;

use super::app::App;
use super::panel_state::Focus;
use super::view::{self, outline, tokens};
use super::{derivation_keys, move_keys};

fn within(area: Option<Rect>, x: u16, y: u16) -> Option<Rect> {
    area.filter(|area| area.contains(Position { x, y }))
}

/// Scrolls by dragging: the content follows the pointer.
pub(super) fn drag(app: &mut App, x: u16, y: u16) {
    let Some((from_x, from_y)) = app.input.dragged else { return };
    let by = |from: u16, to: u16| isize::from(from.cast_signed()) - isize::from(to.cast_signed());
    let tensor = within(view::Panels::new(app).middle, from_x, from_y).is_some();
    // A tensor scrolls by cells, which are several columns wide.
    let cell = app.layout().filter(|_| tensor).map_or(1, |layout| layout.cell.max(1));
    let right = by(from_x, x) / isize::from(cell.cast_signed());
    app.input.dragged = Some((if right == 0 { from_x } else { x }, y));
    scroll(app, from_x, from_y, by(from_y, y), right);
}

/// Selects the item under the pointer.
pub(super) fn click(app: &mut App, x: u16, y: u16) {
    app.input.dragged = Some((x, y));
    let panels = view::Panels::new(app);
    if let Some(area) = within(panels.tokens, x, y) {
        if let Some(position) = tokens::position_at(app, area, x) {
            select_position(app, position);
        }
    } else if let Some(area) = within(panels.outline, x, y) {
        if let Some(place) = outline::place_at(app, area, y) {
            app.go(place);
        }
        app.panels.focus = Focus::Outline;
    } else if within(panels.derivation, x, y).is_some() {
        derivation_keys::click(app, x, y);
    } else if within(panels.notes, x, y).is_some() {
        app.panels.focus = Focus::Notes;
    } else if within(panels.middle, x, y).is_some() {
        app.panels.focus = Focus::Tensor;
        if let Some(cell) = app.layout().and_then(|layout| layout.cell_at(app, x, y)) {
            app.cursor.keeps_key |= app.place.step.axes().contains(&Axis::Key);
            app.view().select(app, cell);
        }
    }
}

/// Scrolls the panel under the pointer.
pub(super) fn scroll(app: &mut App, x: u16, y: u16, down: isize, right: isize) {
    let panels = view::Panels::new(app);
    if within(panels.outline, x, y).is_some() {
        move_keys::step(app, down.signum());
    } else if within(panels.derivation, x, y).is_some() {
        derivation_keys::scroll(app, down);
    } else if within(panels.notes, x, y).is_some() {
        app.notes.line = app.notes.line.saturating_add_signed(down);
    } else if within(panels.middle, x, y).is_some() {
        move_keys::move_cursor(app, down, right);
    }
}

/// Selects a token of the strip, as a row of this pass or as a key that the pass attends to.
fn select_position(app: &mut App, position: usize) {
    let dims = app.dims();
    app.cursor.keeps_key |= app.place.step.axes().contains(&Axis::Key);
    if position >= dims.start && position < dims.keys() && app.place.step.axes().contains(&Axis::Token) {
        app.cursor.selected.set(Axis::Token, position - dims.start);
    } else if position < dims.keys() {
        app.cursor.selected.set(Axis::Key, position);
    } else {
        app.say("a later pass reads this token; . goes to the next pass", false);
    }
}
