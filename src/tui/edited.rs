//! The edits of the shown run: their names, and the numbers that they change.

use llama_trace_core::edit::{Edit, Selection};
use llama_trace_core::trace::{ModelCard, Outline, PassDims, Site};

/// The mark of a value that an edit changes.
pub(super) const EDITED: &str = "◆";

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

/// Returns whether two runs read the same prompt.
pub(super) fn same_prompt(one: &Outline, other: &Outline) -> bool {
    let ids = |outline: &Outline| -> Option<Vec<u32>> {
        Some(outline.passes.first()?.tokens.iter().map(|token| token.id).collect())
    };
    ids(one) == ids(other)
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

/// Returns whether `edit` changes the number at this index of a stage.
pub(super) fn changes(edit: &Edit, site: Site, dims: PassDims, index: &[usize]) -> bool {
    edit.parts.iter().any(|part| part.place.has(site) && part.place.contains(dims, index))
}
