//! The list of edits.

use llama_trace_core::trace::Outline;

use super::edited;

/// The edits of all runs, and the chosen one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EditList {
    /// The edits, and whether the shown run has each of them.
    pub rows: Vec<(String, bool)>,
    /// Number of the chosen row.
    pub chosen: usize,
}

impl EditList {
    /// The edits of the runs `outlines`. Those of the run `shown` come first.
    pub fn new(outlines: &[Outline], shown: &Outline) -> Self {
        let mut rows: Vec<(String, bool)> =
            edited::texts(shown).into_iter().map(|edit| (edit, true)).collect();
        for edit in outlines.iter().flat_map(edited::texts) {
            if rows.iter().all(|(other, _)| *other != edit) {
                rows.push((edit, false));
            }
        }
        Self { rows, chosen: 0 }
    }

    /// The edits of a run that has the shown run's edits, but for the chosen one.
    pub(super) fn toggled(&self) -> Vec<String> {
        let rows = self.rows.iter().enumerate();
        rows.filter(|(at, (_, on))| *on != (*at == self.chosen)).map(|(_, (edit, _))| edit.clone()).collect()
    }
}
