//! The viewer: the passes of a recorded or running model, step by step, in a terminal.
//!
//! It knows a [`Source`] and nothing that computes.
//!
//! ```text
//!  events ─ Action ─▶ update ─ Effect ─▶ effects ─▶ runs, files
//!                       │ ▲                 │
//!                       ▼ └───── Report ────┘
//!  view ◀────────────  App  ◀─ sync ─ answers of the source
//! ```
//!
//! An event becomes an [`action::Action`]. [`update::update`] changes the [`app::App`] and returns an effect, which
//! [`events`], the loop, executes; [`effects`] reports the result back to `update`. [`view`] draws the app and changes
//! nothing. State is in files named after it (`cursor`, `display`, `search`, …), and the handlers of keys that need the
//! whole app in `…_keys`.

pub mod action;
pub mod answers;
pub mod app;
mod bins;
mod branch_keys;
pub mod branch_list;
mod chapter_keys;
mod comparison;
mod comparison_keys;
pub mod completions;
mod cursor;
pub mod derivation;
mod derivation_keys;
pub mod derivation_queries;
pub mod display;
pub mod effects;
pub mod events;
pub mod export;
pub mod filter;
pub mod fit;
pub mod goto;
mod history;
pub mod input;
mod keys;
pub mod marks;
mod mirror;
mod mouse;
mod move_keys;
mod notes_state;
pub mod open;
pub mod palette;
pub mod panel_state;
pub mod place;
pub mod plane;
mod playback;
mod progress;
pub mod report;
pub mod runs;
pub mod sampler_trial;
mod screen;
mod search;
mod search_keys;
pub mod slice;
pub mod snapshot;
pub mod strip_values;
mod sync;
pub mod tensor;
pub mod terminal;
pub mod text;
pub mod theme;
mod token_strip;
pub mod update;
mod verdict;
mod verdict_keys;
pub mod view;

use std::io::{IsTerminal, stdin, stdout};

use llama_trace_core::chapters::Chapters;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::Source;
use llama_trace_core::trace::manifest::Drawing;
use llama_trace_picture::Paper;

use app::{App, Origin};
use events::Ended;
use marks::Marks;
use palette::Palette;
use theme::Theme;

pub use place::OpenAt;
pub use runs::{NewRun, Runs};
pub use verdict::Verdict;

/// The settings of the viewer beside the run.
#[derive(Debug, Default)]
pub struct Setting {
    /// The chapters for the notes.
    pub chapters: Chapters,
    /// The colour scales of the values.
    pub palette: Palette,
    /// The background of the terminal.
    pub paper: Paper,
    /// Name of the open trace, for the title.
    pub file: Option<String>,
    /// The sampler's setting, for the title.
    pub drawing: Option<Drawing>,
    /// The marked places.
    pub marks: Marks,
    /// The verdict on two runs that are shown side by side.
    pub verdict: Option<Verdict>,
}

/// Shows `runs` in the terminal until the user quits.
///
/// # Errors
/// [`Error::Usage`] if `open` names something that does not exist, [`Error::Terminal`] if there is no terminal or it
/// fails, [`Error::Interrupted`] if a signal ended the viewer. The terminal is restored in any case.
pub fn run(runs: Runs, open: &OpenAt, setting: Setting) -> Result<()> {
    match show(runs, open, setting)? {
        Ended::Left => Ok(()),
        Ended::Abandoned => Err(Error::interrupted("stopped before the first pass was done")),
    }
}

/// Like [`run`] with one source, for a program that continues afterwards. Leaving before the first pass is no error.
///
/// # Errors
/// Like [`run`].
pub fn visit(source: Box<dyn Source>, open: &OpenAt, setting: Setting) -> Result<()> {
    show(Runs::new(source), open, setting).map(drop)
}

fn show(mut runs: Runs, open: &OpenAt, setting: Setting) -> Result<Ended> {
    require_terminal()?;
    let depth = theme::Depth::detect(|name| std::env::var(name).ok());
    let theme = Theme::new(depth).with(setting.palette, setting.paper);
    let mut app = App::new(runs.source().outline().clone(), theme, (80, 24))
        .with_chapters(setting.chapters)
        .with_origin(Origin { file: setting.file, drawing: setting.drawing })
        .with_marks(setting.marks);
    open::open(&mut app, open)?;
    if let Some(verdict) = setting.verdict {
        app.judge(verdict);
    }
    let guard = terminal::Guard::take()?;
    events::run(&mut app, &mut runs, &guard)
}

/// Checks that there is a terminal to draw on and to read keys from.
///
/// # Errors
/// [`Error::Terminal`], which names the commands that work without one.
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
