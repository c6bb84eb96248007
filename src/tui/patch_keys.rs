//! Opens the map of patching, and goes to its places and back.

use llama_trace_core::trace::Address;

use super::action::Action;
use super::app::App;
use super::goto;
use super::jump::Jump;
use super::move_keys;
use super::patch_maps::logits_of_prompt;
use super::patch_state::Clean;
use super::view::kind::View;
use super::view::patch::Patch;

/// Opens the map of the shown run with this clean run.
pub(super) fn open(app: &mut App, clean: Clean) {
    app.patch.set((app.outline.run, app.outline.sequence), clean);
    let was = move_keys::here(app);
    app.go(logits_of_prompt(app));
    app.choose_view(Patch.name());
    move_keys::record(app, was, Action::Submit);
    app.settle();
}

/// Goes to `address`, and remembers the way back to the view.
pub(super) fn jump(app: &mut App, address: &Address) -> Result<(), String> {
    let (from, view, cell) = (move_keys::here(app), app.view().name(), app.cursor.cell);
    let spot = goto::find(app, address)?;
    goto::go(app, &spot);
    app.jump = Some(Jump { from, view, cell, to: app.place });
    Ok(())
}

/// Goes back to the view from which [`jump`] led here; false if none did.
pub(super) fn jump_back(app: &mut App) -> bool {
    let Some(jump) = app.jump.take_if(|jump| jump.to == app.place) else { return false };
    app.go(jump.from.place);
    app.choose_view(jump.view);
    (app.cursor.selected, app.cursor.rank, app.cursor.cell) = (jump.from.selected, jump.from.rank, jump.cell);
    true
}

/// Forgets the way back once the user has gone on from its end.
pub(super) fn settle(app: &mut App) {
    if app.jump.is_some_and(|jump| jump.to != app.place) {
        app.jump = None;
    }
}
