//! Moving about: by steps, layers, passes and slices, and by cells of the view.

use llama_trace_core::trace::{Axis, End};

use super::app::App;
use super::place::{Place, Walk};

/// Goes `by` steps on; past the end of a pass into the next one, where there is one.
pub(super) fn step(app: &mut App, by: isize) {
    let walk = app.walk();
    let number = walk.number(app.place);
    if let Some(next) = number.checked_add_signed(by).filter(|&next| next < walk.len()) {
        app.go(walk.at(next));
    } else if by > 0 && app.place.pass + 1 < app.outline.passes.len() {
        app.go(Walk::new(&app.outline, app.place.pass + 1).at(0));
    } else if by < 0 && app.place.pass > 0 {
        app.go(Walk::new(&app.outline, app.place.pass - 1).at(usize::MAX));
    } else if by > 0 {
        app.say(format!("this was the last step; {}", goes_on(app)), false);
    } else {
        app.say("this is the first step", false);
    }
}

/// How to go on after the last pass.
fn goes_on(app: &App) -> &'static str {
    match app.outline.ended {
        _ if app.outline.recorded => "a trace has no more than was recorded",
        None => "t runs the next token",
        Some(End::Text) => "the text has ended, and b on a line of probs goes on with that token",
        Some(End::Full) => "the context is full, and no token has room after it",
    }
}

/// The same step `by` layers on. Outside the layers: to the nearest step of the first or the last layer.
pub(super) fn layer(app: &mut App, by: isize) {
    let walk = app.walk();
    let after = app.place.layer.is_none() && walk.end.contains(&app.place.step);
    let (first, last) = (walk.layer.first().copied(), walk.layer.last().copied());
    let next = match app.place.layer {
        Some(layer) => {
            layer.checked_add_signed(by).filter(|&layer| layer < walk.layers).map(|layer| (layer, None))
        }
        None if by > 0 && !after => Some((0, first)),
        None if by < 0 && after => walk.layers.checked_sub(1).map(|layer| (layer, last)),
        None => None,
    };
    match next {
        Some((layer, step)) => {
            let step = step.unwrap_or(app.place.step);
            app.go(Place { layer: Some(layer), step, ..app.place });
        }
        None => {
            let end = if by > 0 { "last" } else { "first" };
            app.say(format!("there is no layer beyond: layer {} is the {end}", end_layer(&walk, by)), false);
        }
    }
}

fn end_layer(walk: &Walk, by: isize) -> usize {
    if by > 0 { walk.layers.saturating_sub(1) } else { 0 }
}

pub(super) fn pass(app: &mut App, pass: Option<usize>) {
    match pass.filter(|&pass| pass < app.outline.passes.len()) {
        Some(pass) => app.go(Walk::new(&app.outline, pass).same(app.place)),
        None if pass.is_none() => app.say("this is the first pass", false),
        None => app.say(format!("this is the last pass so far; {}", goes_on(app)), false),
    }
}

/// The sequence `by` on, if there is one.
pub(super) fn sequence(app: &mut App, by: isize) -> Option<usize> {
    let (here, count) = (app.outline.sequence, app.outline.sequences);
    let there = here.checked_add_signed(by).filter(|&sequence| sequence < count);
    match there {
        Some(_) => {}
        None if count < 2 => {
            app.say("there is one sequence only; give --prompt again for another", false);
        }
        None if by > 0 => app.say("this is the last sequence", false),
        None => app.say("this is the first sequence", false),
    }
    there
}

/// Moves the index of the axis that is held.
pub(super) fn slice(app: &mut App, by: isize) {
    if app.view().choose(app, by) {
        return;
    }
    let axes = app.place.step.axes();
    match app.cut().held {
        Some(held) => move_on(app, held, by),
        None => match axes.iter().position(|axis| matches!(axis, Axis::HeadsMerged)) {
            // Side by side, the next head begins one head width further on.
            Some(merged) => move_on(app, merged, by * app.outline.card.sizes().head_dim as isize),
            None => app.say(format!("{} has no heads to choose from", app.place.step.name()), false),
        },
    }
}

/// Moves the selected index of one axis of the current tensor, within its length.
pub(super) fn move_on(app: &mut App, axis: usize, by: isize) {
    let length = app.shape()[axis];
    let axis = app.place.step.axes()[axis];
    let now = app.selected.get(axis, length);
    app.selected.set(axis, now.saturating_add_signed(by).min(length.saturating_sub(1)));
}

/// Moves the cursor of the tensor.
pub(super) fn move_cursor(app: &mut App, down: isize, right: isize) {
    if down == 0 && app.view().change(app, right) {
        return;
    }
    if let Some(layout) = app.layout() {
        app.opened |= app.place.step.axes().contains(&Axis::Key);
        app.view().select(app, layout.moved(down, right));
    }
}
