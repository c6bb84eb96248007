//! Where the user was, and back again.

use crate::trace::Address;

use super::action::Action;
use super::app::App;
use super::place::Place;
use super::slice::Selected;
use super::update::Effect;

/// How many places are kept.
const MOST: usize = 500;

/// A place and the cell under the cursor there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    place: Place,
    selected: Selected,
    rank: usize,
}

/// The places before this one, and those that were left by going back.
#[derive(Debug, Default)]
pub(super) struct History {
    before: Vec<Spot>,
    after: Vec<Spot>,
    /// The last walk, whose steps are one way.
    walk: Option<Action>,
}

impl Spot {
    pub(super) fn of(app: &App) -> Self {
        Self { place: app.place, selected: app.selected, rank: app.rank }
    }
}

/// Keeps where the user was before `action`, where that led elsewhere. Steps in one direction are kept as one.
pub(super) fn keep(app: &mut App, was: Spot, action: Action) {
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

/// Back to the place before.
pub(super) fn earlier(app: &mut App) -> Effect {
    match app.history.before.pop() {
        Some(spot) => {
            let now = Spot::of(app);
            app.history.after.push(now);
            go(app, spot)
        }
        None => {
            app.say("there is nothing before this place", false);
            Effect::None
        }
    }
}

/// Forward again, where somebody went back.
pub(super) fn later(app: &mut App) -> Effect {
    match app.history.after.pop() {
        Some(spot) => {
            let now = Spot::of(app);
            app.history.before.push(now);
            go(app, spot)
        }
        None => {
            app.say("there is nothing after this place", false);
            Effect::None
        }
    }
}

fn go(app: &mut App, spot: Spot) -> Effect {
    app.history.walk = None;
    let Spot { place, selected, rank } = spot;
    if (place.run, place.sequence) != (app.outline.run, app.outline.sequence) {
        let index = selected.index(place.step.axes(), &vec![usize::MAX; place.step.axes().len()]);
        let address = Address { run: None, ..Address::of(place.site(), place.step, &index) };
        return Effect::Open(place.run, Address { sequence: Some(place.sequence), ..address });
    }
    app.go(place);
    (app.selected, app.rank) = (selected, rank);
    Effect::None
}
