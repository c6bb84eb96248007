//! Back to where the user was, and forth again.

use llama_trace_core::trace::{Address, Run};

use super::action::Action;
use super::app::App;
use super::history::{MOST, Spot};

/// Where the user is.
pub(super) fn here(app: &App) -> Spot {
    Spot { place: app.place, selected: app.selected, rank: app.rank }
}

/// Keeps where the user was before `action`, where that led elsewhere. Steps in one direction are kept as one.
pub(super) fn keep(app: &mut App, was: Spot, action: Action) {
    let now = here(app);
    if was.place.step != now.place.step {
        app.history.alike = None;
    } else if was.place != now.place || held(app, &was) != held(app, &now) {
        app.history.alike = Some(was);
    }
    if matches!(action, Action::Earlier | Action::Later) || was.place == app.place {
        return;
    }
    let walks =
        matches!(action, Action::NextStep | Action::PreviousStep | Action::NextLayer | Action::PreviousLayer);
    let walk = walks.then_some(action);
    let goes_on = walk.is_some() && walk == app.history.walk && !app.history.before.is_empty();
    app.history.walk = walk;
    app.history.after.clear();
    if !goes_on {
        app.history.before.push(was);
        let beyond = app.history.before.len().saturating_sub(MOST);
        app.history.before.drain(..beyond);
    }
}

/// The index that is held at a spot of the step that is shown.
fn held(app: &App, spot: &Spot) -> Option<usize> {
    let held = app.cut().held?;
    Some(spot.selected.get(app.place.step.axes()[held], usize::MAX))
}

/// The last place on the step that is shown that was another one.
pub(super) fn alike(app: &App) -> Option<Spot> {
    let here = app.place;
    let same = |spot: &&Spot| {
        let there = spot.place;
        (there.run, there.sequence, there.step) == (here.run, here.sequence, here.step) && there != here
    };
    app.history.alike.or_else(|| app.history.before.iter().rev().find(same).copied())
}

/// Back to the place before; where that is in another run or sequence, its address.
pub(super) fn earlier(app: &mut App) -> Option<(Run, Address)> {
    match app.history.before.pop() {
        Some(spot) => {
            let now = here(app);
            app.history.after.push(now);
            go(app, spot)
        }
        None => {
            app.say("there is nothing before this place", false);
            None
        }
    }
}

/// Forward again, where somebody went back; where that is in another run or sequence, its address.
pub(super) fn later(app: &mut App) -> Option<(Run, Address)> {
    match app.history.after.pop() {
        Some(spot) => {
            let now = here(app);
            app.history.before.push(now);
            go(app, spot)
        }
        None => {
            app.say("there is nothing after this place", false);
            None
        }
    }
}

fn go(app: &mut App, spot: Spot) -> Option<(Run, Address)> {
    app.history.walk = None;
    let Spot { place, selected, rank } = spot;
    if (place.run, place.sequence) != (app.outline.run, app.outline.sequence) {
        let index = selected.index(place.step.axes(), &vec![usize::MAX; place.step.axes().len()]);
        let address = Address { run: None, ..Address::of(place.site(), place.step, &index) };
        return Some((place.run, Address { sequence: Some(place.sequence), ..address }));
    }
    app.go(place);
    (app.selected, app.rank, app.opened) = (selected, rank, true);
    None
}
