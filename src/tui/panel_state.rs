//! Size of the screen, and which of its panels are shown.

use ratatui::layout::Rect;

/// The panel that the arrow keys act on. A narrow terminal shows only this panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Focus {
    /// The values.
    Tensor,
    /// The derivation of the number under the cursor.
    Derivation,
    /// The notes.
    Notes,
    /// The outline.
    Outline,
}

/// State of the panels. [`Panels`](super::view::Panels) computes their places from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct PanelState {
    /// The whole screen, in columns and rows.
    pub(super) size: Rect,
    /// The part of the screen for the tensor, in the second of two compared viewers.
    pub(super) pane: Option<Rect>,
    pub(super) focus: Focus,
    /// Whether the panel with the focus fills the screen.
    pub(super) zoomed: bool,
    pub(super) outline_folded: bool,
    pub(super) notes_folded: bool,
}

impl PanelState {
    /// All panels on a screen of `columns` and `rows`, with the focus on the tensor.
    pub(super) fn new((columns, rows): (u16, u16)) -> Self {
        Self {
            size: Rect::new(0, 0, columns, rows),
            pane: None,
            focus: Focus::Tensor,
            zoomed: false,
            outline_folded: false,
            notes_folded: false,
        }
    }
}
