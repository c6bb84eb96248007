//! A bar on standard error for work that takes longer than a moment.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How long work lasts before its bar is shown.
const MOMENT: Duration = Duration::from_secs(1);

/// A progress bar on a terminal, shown once the work has taken longer than a moment.
#[derive(Clone)]
pub(super) struct Progress(ProgressBar);

impl Progress {
    /// A bar for `total` pieces of work; `pieces` is their name.
    pub(super) fn new(total: usize, pieces: &str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total as u64), ProgressDrawTarget::hidden());
        if let Ok(style) =
            ProgressStyle::with_template(&format!("{{bar:30}} {{pos}}/{{len}} {pieces} {{msg}}"))
        {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// Adds `count` finished pieces.
    pub(super) fn add(&self, count: usize) {
        self.show();
        self.0.inc(count as u64);
    }

    /// Sets the number of finished pieces.
    pub(super) fn set(&self, done: usize) {
        self.show();
        self.0.set_position(done as u64);
    }

    /// Draws the bar if it is time to show it, without adding progress.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "used only with a GPU"))]
    pub(super) fn tick(&self) {
        self.show();
        self.0.tick();
    }

    fn show(&self) {
        if self.0.is_hidden() && self.0.elapsed() > MOMENT && io::stderr().is_terminal() {
            self.0.set_draw_target(ProgressDrawTarget::stderr());
        }
    }

    /// Sets the text beside the bar.
    pub(super) fn say(&self, text: String) {
        self.show();
        self.0.set_message(text);
    }

    /// Hides the bar while `print` writes to the same screen.
    pub(super) fn aside<R>(&self, print: impl FnOnce() -> R) -> R {
        self.0.suspend(print)
    }

    /// Removes the bar.
    pub(super) fn finish(&self) {
        self.0.finish_and_clear();
    }
}
