//! What is under the pointer.

use ratatui::layout::{Position, Rect};

use llama_trace_core::trace::Axis;

use super::app::{App, Focus};
use super::view::{self, outline, tokens};
use super::{explaining, moving};

fn within(area: Option<Rect>, x: u16, y: u16) -> Option<Rect> {
    area.filter(|area| area.contains(Position { x, y }))
}

/// What is under the pointer goes with it, as on paper.
pub(super) fn drag(app: &mut App, x: u16, y: u16) {
    let Some((from_x, from_y)) = app.dragged else { return };
    let by = |from: u16, to: u16| isize::from(from.cast_signed()) - isize::from(to.cast_signed());
    let tensor = within(view::Panels::new(app).middle, from_x, from_y).is_some();
    // Of a tensor the pointer moves cells, which are some columns wide.
    let cell = app.layout().filter(|_| tensor).map_or(1, |layout| layout.cell.max(1));
    let right = by(from_x, x) / isize::from(cell.cast_signed());
    app.dragged = Some((if right == 0 { from_x } else { x }, y));
    scroll(app, from_x, from_y, by(from_y, y), right);
}

/// A click selects what it hits.
pub(super) fn click(app: &mut App, x: u16, y: u16) {
    app.dragged = Some((x, y));
    let panels = view::Panels::new(app);
    if let Some(area) = within(panels.tokens, x, y) {
        if let Some(position) = tokens::at(app, area, x) {
            select_position(app, position);
        }
    } else if let Some(area) = within(panels.outline, x, y) {
        if let Some(place) = outline::at(app, area, y) {
            app.go(place);
        }
        app.focus = Focus::Outline;
    } else if within(panels.derivation, x, y).is_some() {
        explaining::click(app, x, y);
    } else if within(panels.notes, x, y).is_some() {
        app.focus = Focus::Notes;
    } else if within(panels.middle, x, y).is_some() {
        app.focus = Focus::Tensor;
        if let Some(cell) = app.layout().and_then(|layout| layout.cell_at(app, x, y)) {
            app.opened |= app.place.step.axes().contains(&Axis::Key);
            app.view().select(app, cell);
        }
    }
}

/// The wheel moves through whatever it is over.
pub(super) fn scroll(app: &mut App, x: u16, y: u16, down: isize, right: isize) {
    let panels = view::Panels::new(app);
    if within(panels.outline, x, y).is_some() {
        moving::step(app, down.signum());
    } else if within(panels.derivation, x, y).is_some() {
        explaining::scroll(app, down);
    } else if within(panels.notes, x, y).is_some() {
        app.notes_line = app.notes_line.saturating_add_signed(down);
    } else if within(panels.middle, x, y).is_some() {
        moving::move_cursor(app, down, right);
    }
}

/// Selects a token of the strip: as the row of this pass, or as a key that this pass sees.
fn select_position(app: &mut App, position: usize) {
    let dims = app.dims();
    app.opened |= app.place.step.axes().contains(&Axis::Key);
    if position >= dims.start && position < dims.keys() && app.place.step.axes().contains(&Axis::Token) {
        app.selected.set(Axis::Token, position - dims.start);
    } else if position < dims.keys() {
        app.selected.set(Axis::Key, position);
    } else {
        app.say("this token belongs to a later pass; . goes there", false);
    }
}
