//! The viewer: a recorded or running model's passes, step by step, in a terminal.
//!
//! It knows a [`Source`] and nothing that computes. An event becomes an [`action::Action`],
//! [`update::update`] changes the [`app::App`], [`view`] draws it; [`events`] is the loop around them.

pub mod action;
pub mod advancing;
pub mod answers;
pub mod app;
mod beside;
pub mod bins;
mod branching;
pub mod carries;
mod comparing;
pub mod completing;
pub mod courses;
pub mod derivation;
pub mod events;
pub mod explained;
mod explaining;
pub mod export;
pub mod filter;
mod filtering;
pub mod fit;
pub mod goto;
mod history;
mod judging;
mod keys;
mod knobs;
pub mod marks;
mod mouse;
mod moving;
pub mod open;
pub mod palette;
pub mod parting;
pub mod place;
pub mod plane;
pub mod play;
mod playing;
pub mod runs;
mod screen;
mod seek;
mod seeking;
pub mod slice;
pub mod still;
mod strip;
mod sync;
mod teaching;
pub mod tensor;
pub mod terminal;
pub mod text;
pub mod theme;
mod travel;
pub mod trying;
pub mod update;
mod verdict;
pub mod view;

use std::io::{IsTerminal, stdin, stdout};

use llama_trace_core::chapters::Chapters;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::Source;
use llama_trace_core::trace::manifest::Drawing;
use llama_trace_picture::Paper;

use events::Ended;
use marks::Marks;
use palette::Palette;
use theme::Theme;

pub use place::OpenAt;
pub use runs::{Other, Runs};
pub use verdict::Verdict;

/// How the viewer looks and what it has beside the run.
#[derive(Debug, Default)]
pub struct Setting {
    /// The notes beside it.
    pub chapters: Chapters,
    /// The scales of the values.
    pub palette: Palette,
    /// The ground of the terminal.
    pub paper: Paper,
    /// The name of the trace that is open, for the title.
    pub file: Option<String>,
    /// How the tokens are drawn, for the title.
    pub drawing: Option<Drawing>,
    /// Places with a letter.
    pub marks: Marks,
    /// What was found of two runs that stand side by side.
    pub verdict: Option<Verdict>,
}

/// Shows `runs` in the terminal until the user quits.
///
/// # Errors
/// [`Error::Usage`] where `open` names something that is not there, [`Error::Terminal`] where there is no
/// terminal or it fails, [`Error::Interrupted`] where a signal ended it. The terminal is as before in any case.
pub fn run(runs: Runs, open: &OpenAt, setting: Setting) -> Result<()> {
    match show(runs, open, setting)? {
        Ended::Left => Ok(()),
        Ended::Abandoned => Err(Error::interrupted("stopped before the first pass was done")),
    }
}

/// As [`run`] of one source, for a program that goes on afterwards: not to wait for the first pass is no error here.
///
/// # Errors
/// As [`run`].
pub fn visit(source: Box<dyn Source>, open: &OpenAt, setting: Setting) -> Result<()> {
    show(Runs::new(source), open, setting).map(drop)
}

fn show(mut runs: Runs, open: &OpenAt, setting: Setting) -> Result<Ended> {
    require_terminal()?;
    let depth = theme::Depth::detect(|name| std::env::var(name).ok());
    let theme = Theme::new(depth).with(setting.palette, setting.paper);
    let mut app =
        app::App::new(runs.source().outline().clone(), theme, (80, 24)).with_chapters(setting.chapters);
    (app.file, app.drawing, app.marks) = (setting.file, setting.drawing, setting.marks);
    open::open(&mut app, open)?;
    if let Some(verdict) = setting.verdict {
        app.judge(verdict);
    }
    let guard = terminal::Guard::take()?;
    events::run(&mut app, &mut runs, &guard)
}

/// Fails where there is no terminal to draw in and to read keys from.
///
/// # Errors
/// [`Error::Terminal`], which names what works without one.
pub fn require_terminal() -> Result<()> {
    for (name, is_terminal) in [("output", stdout().is_terminal()), ("input", stdin().is_terminal())] {
        if !is_terminal {
            return Err(Error::terminal(format!("the standard {name} is not a terminal"))
                .expected("a terminal to draw in and to read keys from")
                .next("give --prompt for the text alone, or use `llama-trace log` to print the steps, or `llama-trace export` to write them to files"));
        }
    }
    if std::env::var_os("TERM").is_some_and(|term| term == "dumb") {
        return Err(Error::terminal("this terminal cannot be drawn on")
            .expected("a terminal whose cursor can be moved")
            .found("TERM=dumb")
            .next("use `llama-trace log` to print the steps, `llama-trace export` to write them to files, or `llama-trace snapshot` to draw a screen into one"));
    }
    Ok(())
}
