//! State of the notes panel.

use llama_trace_core::chapters::Chapters;

/// Content and scroll position of the notes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NotesState {
    /// The chapters, whose texts follow the notes on their steps.
    pub(super) chapters: Chapters,
    /// The first line on the screen.
    pub(super) line: usize,
    /// Whether the answers of the exercises are shown.
    pub(super) answers_shown: bool,
}
