//! The edits of the shown run at the cursor.

use llama_trace_core::edit::{Edit, Reach};
use llama_trace_core::trace::PassDims;

use super::app::App;
use super::edited::changes;

impl App {
    /// The edits of the shown run.
    pub(super) fn edits(&self) -> Vec<Edit> {
        Edit::of_card(&self.outline().card).unwrap_or_default()
    }

    /// The index of the cursor in the axes of the stage.
    pub(super) fn index_in_stage(&self) -> Vec<usize> {
        let step = self.place.step;
        let shape = self.outline.card.sizes().shape(step.stage().axes(), self.dims());
        step.index_in_stage(&self.index(), &shape)
    }

    /// The edits that change the number under the cursor.
    pub(super) fn edits_here(&self) -> Vec<Edit> {
        let (site, dims, index) = (self.place.site(), self.dims(), self.index_in_stage());
        self.edits().into_iter().filter(|edit| changes(edit, site, dims, &index)).collect()
    }

    /// The edits that can reach the number under the cursor, because it is computed from numbers that they change.
    pub(super) fn edits_before(&self) -> Vec<Edit> {
        let site = self.place.site();
        let passes: Vec<PassDims> =
            self.outline.passes.iter().take(site.pass + 1).map(|pass| pass.dims).collect();
        let (card, sequence, index) = (&self.outline.card, self.outline.sequence, self.index_in_stage());
        let edits = self.edits();
        let reaches =
            |number: &usize| Reach::new((&edits, *number), card, sequence, &passes).contains(site, &index);
        (0..edits.len()).filter(reaches).map(|number| edits[number].clone()).collect()
    }

    /// Returns whether an edit changes numbers of the step on the screen.
    pub(super) fn has_edits_here(&self) -> bool {
        let site = self.place.site();
        self.edits().iter().flat_map(|edit| &edit.parts).any(|part| part.place.has(site))
    }
}
