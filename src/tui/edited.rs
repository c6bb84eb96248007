//! The edits of the shown run: their names, and the numbers that they change.

use llama_trace_core::edit::{Edit, Selection};
use llama_trace_core::trace::{ModelCard, Outline, PassDims, Site};

use super::app::App;

/// The edits of a sequence as texts that [`Edit::parse`] reads. They do not name the sequence, because another run has
/// only one.
pub(super) fn texts(outline: &Outline) -> Vec<String> {
    let without = outline.card.without.iter().map(|part| format!("{part} off"));
    let own = |edit: String| {
        let sequences = edit.strip_prefix('s').and_then(|rest| {
            let (selected, rest) = rest.split_once('/')?;
            Some((Selection::parse(selected).ok()?, rest))
        });
        match sequences {
            Some((selected, rest)) => selected.contains(outline.sequence).then(|| rest.to_owned()),
            None => Some(edit),
        }
    };
    without.chain(outline.card.edits.iter().cloned()).filter_map(own).collect()
}

/// The edits of a run in words: `without L0/h2`, or `with L1/softmax[h=0] = 0`. Empty if there are none.
pub(super) fn name(card: &ModelCard) -> String {
    let named = |word: &str, edits: &[String]| match edits {
        [] => None,
        edits => Some(format!("{word} {}", edits.join(", "))),
    };
    let names = [named("without", &card.without), named("with", &card.edits)];
    names.into_iter().flatten().collect::<Vec<_>>().join(" · ")
}

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
        let passes: Vec<PassDims> = self.outline.passes.iter().map(|pass| pass.dims).collect();
        let (site, sizes, index) = (self.place.site(), self.outline.card.sizes(), self.index_in_stage());
        let reaches =
            |edit: &Edit| edit.parts.iter().any(|part| part.place.reaches(&sizes, &passes, site, &index));
        self.edits().into_iter().filter(reaches).collect()
    }

    /// Returns whether an edit changes numbers of the step on the screen.
    pub(super) fn has_edits_here(&self) -> bool {
        let site = self.place.site();
        self.edits().iter().flat_map(|edit| &edit.parts).any(|part| part.place.has(site))
    }
}

/// Returns whether `edit` changes the number at this index of a stage.
pub(super) fn changes(edit: &Edit, site: Site, dims: PassDims, index: &[usize]) -> bool {
    edit.parts.iter().any(|part| part.place.has(site) && part.place.contains(dims, index))
}
