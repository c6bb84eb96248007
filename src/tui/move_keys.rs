//! Keys that move: by steps, layers, passes, slices and cells, and back and forward in the history.

use llama_trace_core::trace::{Address, Axis, End, Run, Step};

use super::action::Action;
use super::app::App;
use super::history::Spot;
use super::place::{Place, Walk};

/// Goes `by` steps on. Past the end of a pass, goes to the next pass if there is one.
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
        app.say(format!("this was the last step; {}", how_to_continue(app)), false);
    } else {
        app.say("this is the first step", false);
    }
}

/// Goes to the next step (`by` 1) or the previous one (-1), past the reshapes if the user skips them. A pass does not
/// begin or end with a reshape.
pub(super) fn walk(app: &mut App, by: isize) {
    let walk = app.walk();
    let here = walk.number(app.place);
    let is_reshape = |distance: isize| {
        let number = here.checked_add_signed(distance).filter(|&number| number < walk.len());
        number.is_some_and(|number| matches!(walk.at(number).step, Step::View(_)))
    };
    let mut distance = by;
    while app.skips_reshapes && is_reshape(distance) {
        distance += by;
    }
    step(app, distance);
}

/// How to continue after the last pass, as a part of a message.
fn how_to_continue(app: &App) -> &'static str {
    match app.outline.ended {
        _ if app.outline.recorded => "a trace has only the recorded passes",
        None => "t runs the next token",
        Some(End::Text) => "the text has ended; b on a line of probs continues with that token",
        Some(End::Full) => "the context is full",
    }
}

/// Goes to the same step `by` layers on. From outside the layers, goes to the nearest step of the first or the last
/// layer.
pub(super) fn layer(app: &mut App, by: isize) {
    let walk = app.walk();
    let after = app.place.layer.is_none() && walk.end.contains(&app.place.step);
    let first = walk.layer(0).first().copied();
    let last = walk.layer(walk.layers.saturating_sub(1)).last().copied();
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
            app.go(walk.same(Place { layer: Some(layer), step, ..app.place }));
        }
        None => {
            let end = if by > 0 { "last" } else { "first" };
            app.say(format!("layer {} is the {end} layer", end_layer(&walk, by)), false);
        }
    }
}

fn end_layer(walk: &Walk, by: isize) -> usize {
    if by > 0 { walk.layers.saturating_sub(1) } else { 0 }
}

/// Goes to the same step of pass number `pass`; none means a pass before the first one.
pub(super) fn pass(app: &mut App, pass: Option<usize>) {
    match pass.filter(|&pass| pass < app.outline.passes.len()) {
        Some(pass) => app.go(Walk::new(&app.outline, pass).same(app.place)),
        None if pass.is_none() => app.say("this is the first pass", false),
        None => app.say(format!("this is the last pass so far; {}", how_to_continue(app)), false),
    }
}

/// Number of the sequence that is `by` sequences on. If there is none, shows a message and returns none.
pub(super) fn sequence(app: &mut App, by: isize) -> Option<usize> {
    let (here, count) = (app.outline.sequence, app.outline.sequences);
    let there = here.checked_add_signed(by).filter(|&sequence| sequence < count);
    match there {
        Some(_) => {}
        // Another run has one sequence, even if the first one has several.
        None if count < 2 && app.outline.run != Run::ITSELF => {
            let run = app.outline.run;
            app.say(format!("{run} has only one sequence; /r0: goes back to the first run"), false);
        }
        None if count < 2 => {
            app.say("there is only one sequence; to have two, give --prompt twice", false);
        }
        None if by > 0 => app.say("this is the last sequence", false),
        None => app.say("this is the first sequence", false),
    }
    there
}

/// Moves the index of the held axis, for example to the next head.
pub(super) fn slice(app: &mut App, by: isize) {
    if app.view().choose_setting(app, by) {
        return;
    }
    let axes = app.place.step.axes();
    match app.cut().held {
        Some(held) => move_index(app, held, by),
        None => match axes.iter().position(|axis| matches!(axis, Axis::HeadsMerged)) {
            // On an axis of merged heads, the next head begins `head_dim` indices further on.
            Some(merged) => move_index(app, merged, by * app.outline.card.sizes().head_dim as isize),
            None => app.say(format!("{} has no heads to choose from", app.place.step.name()), false),
        },
    }
}

/// Moves the selected index of one axis of the tensor, within its length.
fn move_index(app: &mut App, axis: usize, by: isize) {
    let length = app.shape()[axis];
    let axis = app.place.step.axes()[axis];
    let now = app.cursor.selected.get(axis, length);
    app.cursor.selected.set(axis, now.saturating_add_signed(by).min(length.saturating_sub(1)));
}

/// Moves the cursor in the view, or changes the view's setting.
pub(super) fn move_cursor(app: &mut App, down: isize, right: isize) {
    if down == 0 && app.view().change_setting(app, right) {
        return;
    }
    if let Some(layout) = app.layout() {
        app.cursor.keeps_key |= app.place.step.axes().contains(&Axis::Key);
        app.view().select(app, layout.moved(down, right));
    }
}

/// The current spot.
pub(super) fn here(app: &App) -> Spot {
    Spot { place: app.place, selected: app.cursor.selected, rank: app.cursor.rank }
}

/// Records in the history that `action` led from `was` to the current spot.
pub(super) fn record(app: &mut App, was: Spot, action: Action) {
    let now = here(app);
    let slice_changed = held_index(app, &was) != held_index(app, &now);
    app.history.record(was, now, slice_changed, action);
}

/// The index of the axis that the current step holds, at `spot`.
fn held_index(app: &App, spot: &Spot) -> Option<usize> {
    let held = app.cut().held?;
    Some(spot.selected.get(app.place.step.axes()[held], usize::MAX))
}

/// Goes back in the history. If the spot is in another run or sequence, returns its address.
pub(super) fn back(app: &mut App) -> Option<(Run, Address)> {
    let spot = app.history.back(here(app));
    go_to_spot(app, spot, "there is nothing before this place")
}

/// Goes forward in the history. If the spot is in another run or sequence, returns its address.
pub(super) fn forward(app: &mut App) -> Option<(Run, Address)> {
    let spot = app.history.forward(here(app));
    go_to_spot(app, spot, "there is nothing after this place")
}

fn go_to_spot(app: &mut App, spot: Option<Spot>, nothing: &str) -> Option<(Run, Address)> {
    let Some(Spot { place, selected, rank }) = spot else {
        app.say(nothing, false);
        return None;
    };
    if (place.run, place.sequence) != (app.outline.run, app.outline.sequence) {
        let index = selected.index(place.step.axes(), &vec![usize::MAX; place.step.axes().len()]);
        let address = Address { run: None, ..Address::of(place.site(), place.step, &index) };
        return Some((place.run, Address { sequence: Some(place.sequence), ..address }));
    }
    app.go(place);
    (app.cursor.selected, app.cursor.rank, app.cursor.keeps_key) = (selected, rank, true);
    None
}
