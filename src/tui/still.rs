//! The screen without a terminal: what the viewer shows of a place once all of it is there.

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

/// How soon it is seen that nobody waits any more.
const LOOK: Duration = Duration::from_millis(50);

/// What to draw.
#[derive(Debug)]
pub struct Still<'a> {
    /// Where.
    pub open: &'a OpenAt,
    /// The view; the one that the viewer opens with where there is none.
    pub view: Option<&'a str>,
    /// The notes beside it.
    pub chapters: Chapters,
    /// The colours.
    pub theme: Theme,
    /// How the tokens are drawn, for the title.
    pub drawing: Option<Drawing>,
    /// Columns and rows.
    pub size: (u16, u16),
}

impl Still<'_> {
    /// Draws it; `check` says whether to go on waiting for what is being computed.
    ///
    /// # Errors
    /// [`Error::Usage`] where the place or the view is not there, whatever `check` says, and why there is nothing to
    /// look at.
    pub fn draw(&self, runs: &mut Runs, mut check: impl FnMut() -> Result<()>) -> Result<Buffer> {
        let view = self.view.map(named).transpose()?;
        let mut app =
            App::new(runs.source().outline().clone(), self.theme, self.size).with_chapters(self.chapters);
        app.drawing = self.drawing;
        open::open(&mut app, self.open)?;
        arrive(&mut app, runs, &mut check)?;
        if let Some(pass) = app.opens_at.as_ref().and_then(OpenAt::pass) {
            let last = app.outline().passes.len() - 1;
            return Err(Error::usage(format!("there is no pass {pass}"))
                .found(format!("the text ended after pass {last}"))
                .next("choose an earlier one"));
        }
        if let Some(view) = view {
            let step = app.place().step;
            if !fitting(step).any(|other| other.name() == view) {
                let names: Vec<_> = fitting(step).map(View::name).collect();
                return Err(Error::usage(format!("{} has no view `{view}`", step.name()))
                    .expected(format!("one of {}", names.join(", "))));
            }
            let selected = app.selected;
            app.choose_view(view);
            // A token that the address names stays.
            if self
                .open
                .at
                .as_ref()
                .is_some_and(|at| at.index.iter().any(|(letter, _)| "tq".contains(*letter)))
            {
                app.selected = selected;
            }
            app.settle();
            arrive(&mut app, runs, &mut check)?;
        }
        let area = Rect::new(0, 0, self.size.0, self.size.1);
        let mut screen = Buffer::empty(area);
        app.render(area, &mut screen);
        Ok(screen)
    }
}

/// Asks until there is nothing more to ask.
fn arrive(app: &mut App, runs: &mut Runs, check: &mut impl FnMut() -> Result<()>) -> Result<()> {
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

/// The name of a view as the viewer has it.
fn named(name: &str) -> Result<&'static str> {
    let known = VIEWS.iter().map(|view| view.name()).find(|known| *known == name);
    known.ok_or_else(|| {
        let names: Vec<_> = VIEWS.iter().map(|view| view.name()).collect();
        Error::usage("there is no such view").expected(names.join(", ")).found(format!("`{name}`"))
    })
}
