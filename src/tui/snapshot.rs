//! Snapshots: the screen of a place. It is drawn without a terminal, once all its values are there.

use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::widgets::Widget;

use llama_trace_core::chapters::Chapters;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::Status;
use llama_trace_core::trace::manifest::Drawing;

use super::app::App;
use super::events::take_in;
use super::open;
use super::place::OpenAt;
use super::runs::Runs;
use super::theme::Theme;

/// Interval at which `check` is called.
pub(super) const LOOK: Duration = Duration::from_millis(50);

/// A snapshot to draw.
#[derive(Debug)]
pub struct Snapshot<'a> {
    /// The place.
    pub open: &'a OpenAt,
    /// The chapters in the notes.
    pub chapters: Chapters,
    /// The colours.
    pub theme: Theme,
    /// The sampler's setting, for the title.
    pub drawing: Option<Drawing>,
    /// Columns and rows.
    pub size: (u16, u16),
}

impl Snapshot<'_> {
    /// Draws the screen. `check` is called while values are computed; its error ends the wait.
    ///
    /// # Errors
    /// [`Error::Usage`] if the place or the view does not exist, the error of `check`, or the source's failure.
    pub fn draw(&self, runs: &mut Runs, mut check: impl FnMut() -> Result<()>) -> Result<Buffer> {
        let mut app =
            App::new(runs.source().outline().clone(), self.theme, self.size).with_chapters(self.chapters);
        app.origin.drawing = self.drawing;
        open::open(&mut app, self.open)?;
        complete(&mut app, runs, &mut check)?;
        if let Some(pass) = app.progress.opens_at.as_ref().and_then(OpenAt::pass) {
            let last = app.outline().passes.len() - 1;
            return Err(Error::usage(format!("there is no pass {pass}"))
                .found(format!("the text ended after pass {last}"))
                .next("choose an earlier pass"));
        }
        let area = Rect::new(0, 0, self.size.0, self.size.1);
        let mut screen = Buffer::empty(area);
        app.render(area, &mut screen);
        Ok(screen)
    }
}

/// Asks the source until every question is answered.
pub(super) fn complete(app: &mut App, runs: &mut Runs, check: &mut impl FnMut() -> Result<()>) -> Result<()> {
    loop {
        let news = take_in(app, runs)?;
        let idle = runs.source().status() == Status::Idle
            && runs.before().is_none_or(|before| before.status() == Status::Idle);
        if !news && idle && !app.waits() {
            return Ok(());
        }
        if !news {
            check()?;
            runs.source().wait(LOOK);
        }
    }
}
