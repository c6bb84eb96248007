//! The viewer: the passes of a recorded or running model, step by step, in a terminal.
//!
//! It uses a [`Source`](llama_trace_core::trace::Source), and does not know how the source computes.
//!
//! ```text
//!  events ─ Action ─▶ update ─ Effect ─▶ effects ─▶ runs, files
//!                       │ ▲                 │
//!                       ▼ └───── Report ────┘
//!  view ◀────────────  App  ◀─ sync ─ answers of the source
//! ```
//!
//! A [`user_event::Event`] becomes an [`action::Action`]. [`update::update`] changes the [`app::App`] and
//! returns an effect. The loop executes the effect, and [`effects`] reports the result back to `update`.
//! [`view`] draws the app and changes nothing. Each part of the state is in a file named after it (`cursor`,
//! `display`, `search`, …). The handlers of keys that need the whole app are in the files `…_keys`.
//!
//! The feature `native` adds the terminal, files, and the loop ([`run`]). Without it, a front end passes in events and
//! draws the app on its own screen.

pub mod action;
pub mod answers;
pub mod app;
mod app_edits;
pub mod begin;
mod bins;
mod branch_keys;
pub mod branch_list;
mod chapter_keys;
mod chapter_list;
mod comparison;
mod comparison_keys;
pub mod completions;
mod cursor;
pub mod derivation;
mod derivation_keys;
pub mod derivation_queries;
pub mod display;
mod edit_keys;
pub mod edit_list;
mod edited;
pub mod effect;
pub mod effects;
pub mod erase;
pub mod events;
#[cfg(feature = "native")]
pub mod export;
pub mod filter;
pub mod fit;
pub mod goto;
mod goto_keys;
mod help_keys;
mod hidden;
mod hiding;
mod history;
pub mod input;
mod jump;
#[cfg(feature = "native")]
pub mod lesson_file;
mod lesson_keys;
pub mod lesson_screens;
pub mod lesson_search;
mod lesson_state;
mod lesson_sync;
mod lesson_values;
mod mark_keys;
pub mod marks;
mod mirror;
mod mouse;
mod move_keys;
mod notes_state;
pub mod open;
pub mod palette;
mod panel_keys;
pub mod panel_state;
mod patch_keys;
mod patch_maps;
pub mod patch_state;
pub mod place;
pub mod plane;
mod playback;
mod progress;
pub mod report;
pub mod runs;
pub mod sampler_trial;
#[cfg(feature = "native")]
mod scene_limits;
#[cfg(feature = "native")]
mod scene_text;
mod screen;
pub mod screen_option;
mod screen_settings;
mod search;
mod search_keys;
#[cfg(feature = "native")]
mod show;
pub mod slice;
pub mod snapshot;
pub mod strip_values;
mod sync;
pub mod synonyms;
pub mod tensor;
#[cfg(feature = "native")]
pub mod terminal;
pub mod text;
#[cfg(feature = "native")]
mod text_file;
pub mod theme;
mod token_strip;
pub mod update;
pub mod user_event;
mod verdict;
mod verdict_keys;
pub mod view;
mod view_keys;

use std::fmt;

use llama_trace_core::chapters::{Chapter, Chapters};
use llama_trace_core::error::Result;
use llama_trace_core::trace::manifest::Drawing;
use llama_trace_picture::Paper;

use marks::Marks;
use palette::Palette;

pub use lesson_state::{Answered, LessonProgress, OpenLesson};
pub use lesson_values::Facts;
pub use place::OpenAt;
pub use runs::{Edited, NewRun, RunStarter, Runs};
#[cfg(feature = "native")]
pub use show::{require_terminal, run, visit};
pub use verdict::Verdict;

/// The settings of the viewer that do not belong to the run.
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
    /// The first lesson, which `/learn` opens.
    pub tour: Option<Chapter>,
    /// Facts about the model's heads, for lessons; none if the model is not the built-in one.
    pub facts: Option<Facts>,
    /// The lesson to open.
    pub lesson: Option<OpenLesson>,
    /// The file to which the key `W` appends scenes.
    #[cfg(feature = "native")]
    pub lesson_file: Option<lesson_file::LessonFile>,
    /// Stores the progress of lessons.
    pub progress: Option<StoreProgress>,
}

type Store = dyn FnMut(&LessonProgress) -> Result<()>;

/// Function that stores the progress of a lesson.
pub struct StoreProgress(pub Box<Store>);

impl fmt::Debug for StoreProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreProgress")
    }
}
