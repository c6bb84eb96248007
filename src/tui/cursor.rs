//! The cursor: the selected index on every axis, the rank or cell in views that have one, and the scroll position.

use super::slice::Selected;

/// Cursor and scroll position of the viewer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    /// The selected index on every axis.
    pub(super) selected: Selected,
    /// The row in a view that is sorted by size.
    pub(super) rank: usize,
    /// The cell in a view whose cells are not values of the step.
    pub(super) cell: (usize, usize),
    /// The first row and column on the screen.
    pub(super) offset: (usize, usize),
    /// Whether the cursor stays on its rank until the unit of that rank is known.
    pub(super) keeps_rank: bool,
    /// Whether the cursor stays on its key, because attention was opened before or a key was chosen.
    pub(super) keeps_key: bool,
}

impl Cursor {
    /// A cursor at index 0 of every axis.
    pub(super) fn new(selected: Selected) -> Self {
        let (cell, offset) = ((0, 0), (0, 0));
        Self { selected, rank: 0, cell, offset, keeps_rank: false, keeps_key: false }
    }

    /// Takes over the position of `other`, the cursor of the viewer that this one is compared with.
    pub(super) fn mirror(&mut self, other: &Self) {
        *self = Self { keeps_rank: self.keeps_rank, keeps_key: true, ..*other };
    }
}
