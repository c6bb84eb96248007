//! Chapters beside the model: which is about what is shown, and where what a chapter is about can be looked at.

use llama_trace_core::chapters::Chapter;
use llama_trace_core::trace::Step;

use super::app::{App, Focus};
use super::goto::{self, Target};
use super::place::present;
use super::view::{self, Panels};

/// Lines of an answer that are on the screen at the least, its heading among them.
const ANSWER: usize = 8;

/// The chapter that is about the step that is shown, by its number in the list.
pub(super) fn about_here(app: &App) -> usize {
    let about = app.chapters.about(app.place.step).next();
    about.and_then(|about| app.chapters.iter().position(|chapter| chapter.slug == about.slug)).unwrap_or(0)
}

/// Goes to the first step of `chapter` that this run has, and to its text in the notes.
pub(super) fn open(app: &mut App, chapter: &'static Chapter) {
    let there = |step| goto::target(app, Step::name(step));
    let Some(Target::Here(spot)) = chapter.steps().find_map(|step| there(step).ok()) else {
        let why = match chapter.precision() {
            Some(name) => format!("its stages are of a run in {name}: --precision {name}"),
            None => match elsewhere(app, chapter) {
                Some(path) => {
                    format!("none of its stages is in this pass; /{path} goes to one, C opens it there")
                }
                None => "none of its stages is in this pass".to_owned(),
            },
        };
        app.say(format!("{}: {why}", chapter.title()), true);
        return;
    };
    goto::go(app, &spot);
    app.focus = Focus::Notes;
    app.folded.1 = false;
    let width = Panels::new(app).notes.map_or(0, |area| area.width);
    app.notes_line = view::notes::line_of(app, width, chapter);
}

/// Shows the answers of exercises, and the next one of these notes where it is not on the screen; or folds them.
pub(super) fn answers(app: &mut App) {
    app.answered = !app.answered;
    if !app.answered {
        return app.say("answers are folded", false);
    }
    let Some(area) = Panels::new(app).notes else {
        return app.say("exercises are shown with their answers: i shows the notes", false);
    };
    app.say("exercises are shown with their answers", false);
    let height = usize::from(area.height);
    if let Some(line) = view::notes::answer_after(app, area.width, app.notes_line)
        && line + ANSWER > app.notes_line + height
    {
        app.notes_line = (line + ANSWER).saturating_sub(height);
    }
}

/// The first stage of `chapter` in the first pass that has one.
fn elsewhere(app: &App, chapter: &Chapter) -> Option<String> {
    let sizes = app.outline.card.sizes();
    let all = app.outline.passes.iter().flat_map(|pass| chapter.steps().map(move |step| (pass.dims, step)));
    let (dims, step) = all.into_iter().find(|&(dims, step)| present(step, &sizes, dims))?;
    Some(format!("p{}/{}", dims.pass, step.name()))
}
