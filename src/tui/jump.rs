//! The way back from a place to the view whose cell led there.

use super::history::Spot;
use super::place::Place;

/// A jump from a view to the place under its cursor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Jump {
    /// The place, the view and the cell before the jump.
    pub(super) from: Spot,
    pub(super) view: &'static str,
    pub(super) cell: (usize, usize),
    /// The place after the jump.
    pub(super) to: Place,
}
