//! The scenes of a lesson without a terminal: for checks, and for printed pages.

use std::fmt;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::widgets::Widget;

use llama_trace_core::error::Result;
use llama_trace_core::lesson::{Lesson, Unfinished, World};
use llama_trace_core::trace::{Outline, Source};

use super::app::App;
use super::effect::Effect;
use super::lesson_keys;
use super::lesson_state::{Answered, Arrival, OpenLesson};
use super::lesson_values::{Facts, RunWorld};
use super::runs::Runs;
use super::snapshot::complete;
use super::theme::Theme;
use super::{effects, panel_state};

/// The screens of a lesson.
pub struct LessonScreens {
    app: App,
    size: (u16, u16),
    facts: Option<Facts>,
}

impl fmt::Debug for LessonScreens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LessonScreens").field("size", &self.size).finish_non_exhaustive()
    }
}

impl LessonScreens {
    /// The screens of `lesson`, in columns and rows. `facts` describes the heads of the model.
    pub fn new(
        runs: &mut Runs,
        lesson: Lesson,
        theme: Theme,
        size: (u16, u16),
        facts: Option<Facts>,
    ) -> Self {
        let mut app = App::new(runs.source().outline().clone(), theme, size).with_other_runs(None, facts);
        let answers = vec![Answered::Open; lesson.scenes.len()];
        // The run of the first scene is started when its screen is drawn.
        lesson_keys::open_first(&mut app, OpenLesson { lesson, answers, ..OpenLesson::default() });
        Self { app, size, facts }
    }

    /// Brings scene number `at` to the screen. `check` is called while values are computed; its error ends the wait.
    /// Returns the reason if the scene cannot be shown.
    ///
    /// # Errors
    /// The error of `check`, or the source's failure.
    pub fn show(
        &mut self,
        runs: &mut Runs,
        at: usize,
        check: &mut impl FnMut() -> Result<()>,
    ) -> Result<std::result::Result<(), String>> {
        if let Effect::Scene(setting) = lesson_keys::go(&mut self.app, at) {
            effects::show_scene(&mut self.app, runs, &setting);
        }
        loop {
            complete(&mut self.app, runs, check)?;
            match self.app.lesson.as_ref().map(|lesson| &lesson.arrival) {
                Some(Arrival::Failed(reason)) => return Ok(Err(reason.clone())),
                // A sequence that is not shown still computes its passes.
                Some(Arrival::Waits) => {
                    check()?;
                    runs.source().wait(super::snapshot::LOOK);
                }
                Some(Arrival::There) | None => return Ok(Ok(())),
            }
        }
    }

    /// Draws the shown scene. Without its words, the tensor has the whole screen but for the row with the keys. The values
    /// that an open question asks for are hidden.
    ///
    /// # Errors
    /// As [`LessonScreens::show`].
    pub fn draw(
        &mut self,
        runs: &mut Runs,
        words: bool,
        check: &mut impl FnMut() -> Result<()>,
    ) -> Result<Buffer> {
        if !words {
            self.app.panels.notes_folded = true;
            self.app.panels.outline_folded = true;
            self.app.panels.focus = panel_state::Focus::Tensor;
            self.app.settle();
            complete(&mut self.app, runs, check)?;
        }
        let area = Rect::new(0, 0, self.size.0, self.size.1);
        let mut screen = Buffer::empty(area);
        self.app.render(area, &mut screen);
        if !words {
            // The last row has the keys.
            screen.resize(Rect { height: self.size.1.saturating_sub(1), ..area });
        }
        Ok(screen)
    }

    /// The result of `evaluate` over the run of the shown scene, once the values that it reads are there. Returns the
    /// reason if it has none.
    ///
    /// # Errors
    /// As [`LessonScreens::show`].
    pub fn evaluate<T>(
        &mut self,
        runs: &mut Runs,
        check: &mut impl FnMut() -> Result<()>,
        mut evaluate: impl FnMut(&dyn World) -> std::result::Result<T, Unfinished>,
    ) -> Result<std::result::Result<T, String>> {
        loop {
            let facts = self.facts;
            let Some(lesson) = &mut self.app.lesson else { return Ok(Err("the lesson is closed".into())) };
            let run = lesson.run;
            if !lesson.values.waits() {
                let outlines: Vec<Outline> = runs
                    .outlines()
                    .into_iter()
                    .filter(|outline| outline.run == run && outline.fork.is_none())
                    .collect();
                if outlines.is_empty() {
                    return Ok(Err("its run is not there".into()));
                }
                let source: &dyn Source = runs.of(run, 0);
                let texts = |id| source.token_text(id);
                let world = RunWorld { outlines: &outlines, values: &lesson.values, texts: &texts, facts };
                match evaluate(&world) {
                    Ok(value) => return Ok(Ok(value)),
                    Err(unfinished) => {
                        if let Err(wrong) = lesson.values.lacks(unfinished) {
                            return Ok(Err(wrong));
                        }
                    }
                }
            }
            runs.poll()?;
            match lesson.values.ask(runs, run) {
                Ok(true) => {}
                Ok(false) => {
                    check()?;
                    runs.of(run, 0).wait(super::snapshot::LOOK);
                }
                Err(wrong) => return Ok(Err(wrong)),
            }
        }
    }
}
