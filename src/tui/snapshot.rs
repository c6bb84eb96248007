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
use super::open;
use super::place::OpenAt;
use super::runs::Runs;
use super::theme::Theme;
use super::view::kind::View;
use super::view::views::{VIEWS, fitting};

/// Interval at which `check` is called.
const LOOK: Duration = Duration::from_millis(50);

/// A snapshot to draw.
#[derive(Debug)]
pub struct Snapshot<'a> {
    /// The place.
    pub open: &'a OpenAt,
    /// The view; none means the view that the viewer opens with.
    pub view: Option<&'a str>,
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
        let view = self.view.map(named).transpose()?;
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
        if let Some(view) = view {
            let step = app.place().step;
            if !fitting(step).any(|other| other.name() == view) {
                let names: Vec<_> = fitting(step).map(View::name).collect();
                return Err(Error::usage(format!("{} has no view `{view}`", step.name()))
                    .expected(format!("one of {}", names.join(", "))));
            }
            let selected = app.cursor.selected;
            app.choose_view(view);
            // If the address names a token, that token stays selected.
            if self
                .open
                .at
                .as_ref()
                .is_some_and(|at| at.index.iter().any(|(letter, _)| "tq".contains(*letter)))
            {
                app.cursor.selected = selected;
            }
            app.settle();
            complete(&mut app, runs, &mut check)?;
        }
        let area = Rect::new(0, 0, self.size.0, self.size.1);
        let mut screen = Buffer::empty(area);
        app.render(area, &mut screen);
        Ok(screen)
    }
}

/// Asks the source until every question is answered.
fn complete(app: &mut App, runs: &mut Runs, check: &mut impl FnMut() -> Result<()>) -> Result<()> {
    loop {
        runs.poll()?;
        let news = app.sync(runs.source());
        if !news && runs.source().status() == Status::Idle && !app.answers.waits() {
            return Ok(());
        }
        if !news {
            check()?;
            runs.source().wait(LOOK);
        }
    }
}

/// The view's name in the table of views.
fn named(name: &str) -> Result<&'static str> {
    let known = VIEWS.iter().map(|view| view.name()).find(|known| *known == name);
    known.ok_or_else(|| {
        let names: Vec<_> = VIEWS.iter().map(|view| view.name()).collect();
        Error::usage("there is no such view").expected(names.join(", ")).found(format!("`{name}`"))
    })
}
