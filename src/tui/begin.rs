//! The app with which a front end begins.

use llama_trace_core::error::Result;

use super::app::{App, Origin};
use super::place::OpenAt;
use super::runs::Runs;
use super::theme::Theme;
use super::{Setting, effects, open};

/// The app of `runs` on a screen of `size` columns and rows: on the lesson of the setting, or on the place `at`.
///
/// # Errors
/// [`Error::Usage`](llama_trace_core::error::Error::Usage) if `at` names something that does not exist.
pub fn begin(runs: &mut Runs, at: &OpenAt, setting: Setting, theme: Theme, size: (u16, u16)) -> Result<App> {
    let mut app = App::new(runs.source().outline().clone(), theme, size)
        .with_chapters(setting.chapters)
        .with_origin(Origin { file: setting.file, drawing: setting.drawing })
        .with_marks(setting.marks);
    if runs.can_begin() {
        app = app.with_other_runs(setting.tour, setting.facts);
    } else if runs.can_edit() {
        app = app.with_edits_of_recorded_values();
    }
    open::open(&mut app, at)?;
    if let Some(verdict) = setting.verdict {
        app.judge(verdict);
    }
    match setting.lesson {
        Some(lesson) => effects::open_lesson(&mut app, runs, lesson),
        None => app.greet(),
    }
    Ok(app)
}
