//! The list of lessons and chapters that `C` opens.

use llama_trace_core::chapters::Chapter;

use super::app::App;

/// The rows of the list: the first lesson, if it can be run here, and the chapters.
pub(super) fn listed(app: &App) -> impl Iterator<Item = Chapter> {
    let tour = app.tour.filter(|_| app.starts_runs);
    tour.into_iter().chain(app.notes.chapters.iter().copied())
}

/// The row of the first chapter on the current step; 0 if there is none.
pub(super) fn row_here(app: &App) -> usize {
    let about = app.notes.chapters.about(app.place.step).next();
    about.and_then(|about| listed(app).position(|chapter| chapter.slug == about.slug)).unwrap_or(0)
}
