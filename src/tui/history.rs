//! History of the visited places, for the keys back and forward and for the comparison.

use super::action::Action;
use super::place::Place;
use super::slice::Selected;

/// Maximum number of kept places.
const MOST: usize = 500;

/// A place and the cell under the cursor there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) place: Place,
    pub(super) selected: Selected,
    pub(super) rank: usize,
}

/// The visited places before and after the current one.
#[derive(Debug, Default)]
pub(super) struct History {
    before: Vec<Spot>,
    after: Vec<Spot>,
    /// The last other spot of the current step: in another layer or pass, or at another head.
    same_step: Option<Spot>,
    /// The walk whose repetitions count as one entry.
    walk: Option<Action>,
}

impl History {
    /// Records that `action` moved from `was` to `now`. Repetitions of one walk are a single entry. `slice_changed`
    /// says whether another index of the held axis is shown now.
    pub(super) fn record(&mut self, was: Spot, now: Spot, slice_changed: bool, action: Action) {
        if was.place.step != now.place.step {
            self.same_step = None;
        } else if was.place != now.place || slice_changed {
            self.same_step = Some(was);
        }
        if matches!(action, Action::Earlier | Action::Later) || was.place == now.place {
            return;
        }
        let walks = matches!(
            action,
            Action::NextStep | Action::PreviousStep | Action::NextLayer | Action::PreviousLayer
        );
        let walk = walks.then_some(action);
        let continues = walk.is_some() && walk == self.walk && !self.before.is_empty();
        self.walk = walk;
        self.after.clear();
        if !continues {
            self.before.push(was);
            let excess = self.before.len().saturating_sub(MOST);
            self.before.drain(..excess);
        }
    }

    /// Goes back from `here`; none at the first entry.
    pub(super) fn back(&mut self, here: Spot) -> Option<Spot> {
        let spot = self.before.pop()?;
        self.after.push(here);
        self.walk = None;
        Some(spot)
    }

    /// Goes forward again from `here`; none at the last entry.
    pub(super) fn forward(&mut self, here: Spot) -> Option<Spot> {
        let spot = self.after.pop()?;
        self.before.push(here);
        self.walk = None;
        Some(spot)
    }

    /// The spot that was last visited on the step of `here`, at another place or slice, in the same run and sequence.
    pub(super) fn last_on_step(&self, here: Place) -> Option<Spot> {
        let same = |spot: &&Spot| {
            let there = spot.place;
            (there.run, there.sequence, there.step) == (here.run, here.sequence, here.step) && there != here
        };
        self.same_step.or_else(|| self.before.iter().rev().find(same).copied())
    }
}
