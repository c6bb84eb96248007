//! The places where the user was.

use super::action::Action;
use super::place::Place;
use super::slice::Selected;

/// How many places are kept.
pub(super) const MOST: usize = 500;

/// A place and the cell under the cursor there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) place: Place,
    pub(super) selected: Selected,
    pub(super) rank: usize,
}

/// The places before this one, and those that were left by going back.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) before: Vec<Spot>,
    pub(super) after: Vec<Spot>,
    /// Where the user was last on the step that is shown: in another layer or pass, or at another head.
    pub(super) alike: Option<Spot>,
    /// The last walk, whose steps are one way.
    pub(super) walk: Option<Action>,
}
