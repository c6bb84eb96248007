//! The screens that no scene of a lesson can show, because a scene does not hold everything that they need.

use llama_trace_core::edit::Edit;
use llama_trace_core::error::{printable, shortened};
use llama_trace_core::lesson::MOST_PASSES;

use super::app::App;
use super::comparison::ComparedWith;
use super::edited;
use super::runs::Runs;
use super::view::kind::View;
use super::view::patch::Patch;

/// Checks that a scene can show the screen of `app`.
///
/// # Errors
/// A message that names what a scene cannot hold.
pub(super) fn check(app: &App, runs: &Runs) -> Result<(), String> {
    let refused = |what: String| Err(format!("nothing was appended: {what}"));
    let outline = &app.outline;
    if let Some(fork) = outline.fork {
        let (run, of) = (outline.run, fork.of);
        return refused(format!("{run} is a branch, which a scene cannot hold; /{of}: goes back to {of}"));
    }
    if outline.sequence > 0 {
        let sequence = outline.sequence;
        return refused(format!(
            "this is sequence {sequence}, and a scene shows sequence 0; start with this prompt alone"
        ));
    }
    let random = app.origin.drawing.filter(|drawing| drawing.sampling.temperature > 0.0);
    if let (Some(drawing), Some(distance)) = (random, runs.stream_of(outline))
        && drawing.stream + distance > 0
    {
        return refused(format!(
            "a scene draws from stream 0 of the random numbers, and this run from stream {}; start without --stream and with one prompt",
            drawing.stream + distance
        ));
    }
    if outline.cache.dtype != outline.card.precision.cache_dtype() {
        let dtype = outline.cache.dtype.name();
        return refused(format!(
            "the KV cache of this run is {dtype}, which a scene cannot set; start without --cache-dtype"
        ));
    }
    let reads_file = |edit: &&String| Edit::parse(edit).is_ok_and(|edit| edit.reads_file());
    if let Some(edit) = edited::texts(outline).iter().find(reads_file) {
        let edit = printable(edit);
        return refused(format!("the edit `{}` reads a file, and a lesson reads none", shortened(&edit)));
    }
    let passes = passes(app);
    if passes > MOST_PASSES {
        return refused(format!("the screen needs {passes} passes, and a scene has at most {MOST_PASSES}"));
    }
    if app.view().name() == Patch.name() && app.patch.maps.contains_key(&(outline.run, outline.sequence)) {
        return refused("a scene cannot set the clean prompt of this map; v shows another view".to_owned());
    }
    if app.comparison.with == Some(ComparedWith::Previous) && !app.compares_plain() {
        return refused(
            "a scene compares only with places of its run, or with this run without edits; c ends the comparison"
                .to_owned(),
        );
    }
    Ok(())
}

/// The number of passes that the screen needs: up to the shown pass, and up to the one that it is compared with.
pub(super) fn passes(app: &App) -> usize {
    let compared = match &app.comparison.with {
        Some(ComparedWith::Pinned(pinned)) => pinned.pass.unwrap_or(0),
        _ => 0,
    };
    app.place.pass.max(compared) + 1
}
