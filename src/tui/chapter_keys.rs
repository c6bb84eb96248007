//! Keys of the chapters: `C` lists them, Enter goes to the stage of a chapter, `x` shows the answers of exercises.

use llama_trace_core::chapters::Chapter;
use llama_trace_core::lesson::Lesson;
use llama_trace_core::trace::Step;

use super::app::App;
use super::chapter_list::listed;
use super::effect::Effect;
use super::goto::{self, Target};
use super::lesson_keys;
use super::panel_state::Focus;
use super::place::present;
use super::view::{self, Panels};

/// Minimum number of lines of an answer that are scrolled into sight, including its heading.
const ANSWER: usize = 8;

/// Opens the lesson in a row of the list.
pub(super) fn open_row(app: &mut App, row: usize) -> Effect {
    let Some(chapter) = listed(app).nth(row) else { return Effect::None };
    open_named(app, app.notes.chapters.iter().position(|other| other.slug == chapter.slug))
}

/// Opens the chapter with this place in the list, or the first lesson.
pub(super) fn open_named(app: &mut App, chapter: Option<usize>) -> Effect {
    let Some(at) = chapter else { return lesson_keys::open_tour(app) };
    let chapter = app.notes.chapters.0.get(at);
    chapter.map_or(Effect::None, |chapter| open(app, chapter))
}

/// Opens `chapter` as a lesson on its own prompt. If no other run can be started here, or the chapter has no scenes, goes
/// to its first step in this run, and to its text in the notes.
fn open(app: &mut App, chapter: &'static Chapter) -> Effect {
    match Lesson::parse(chapter.slug, chapter.text) {
        Ok(lesson) if app.starts_runs => return lesson_keys::open(app, lesson),
        _ => read(app, chapter),
    }
    Effect::None
}

/// Goes to the first step of `chapter` in this run, and to its text in the notes.
fn read(app: &mut App, chapter: &'static Chapter) {
    let there = |step| goto::target(app, Step::name(step));
    let Some(Target::Here(spot)) = chapter.steps().find_map(|step| there(step).ok()) else {
        let why = match chapter.precision() {
            Some(name) => format!("its stages exist only with --precision {name}"),
            None => match elsewhere(app, chapter) {
                Some(path) => {
                    format!(
                        "none of its stages is in this pass; /{path} goes to one of them, and C there opens the chapter"
                    )
                }
                None => "none of its stages is in this pass".to_owned(),
            },
        };
        app.say(format!("{}: {why}", chapter.title()), true);
        return;
    };
    goto::go(app, &spot);
    app.panels.focus = Focus::Notes;
    app.panels.notes_folded = false;
    let width = Panels::new(app).notes.map_or(0, |area| area.width);
    app.notes.line = view::notes::line_of(app, width, chapter);
}

/// Shows the answers of exercises, or folds them. Scrolls the next answer in the notes into sight.
pub(super) fn toggle_answers(app: &mut App) {
    app.notes.answers_shown = !app.notes.answers_shown;
    if !app.notes.answers_shown {
        return app.say("answers are folded", false);
    }
    let Some(area) = Panels::new(app).notes else {
        return app.say("exercises are shown with their answers; i shows the notes", false);
    };
    app.say("exercises are shown with their answers", false);
    let height = usize::from(area.height);
    if let Some(line) = view::notes::answer_after(app, area.width, app.notes.line)
        && line + ANSWER > app.notes.line + height
    {
        app.notes.line = (line + ANSWER).saturating_sub(height);
    }
}

/// The first stage of `chapter` in the first pass that has one of the chapter's stages: "p1/xq".
fn elsewhere(app: &App, chapter: &Chapter) -> Option<String> {
    let sizes = app.outline.card.sizes();
    let all = app.outline.passes.iter().flat_map(|pass| chapter.steps().map(move |step| (pass.dims, step)));
    let (dims, step) =
        all.into_iter().find(|&(dims, step)| present(step.in_model(&sizes, None), &sizes, dims))?;
    Some(format!("p{}/{}", dims.pass, step.name()))
}
