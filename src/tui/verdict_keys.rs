//! Keys and names of a verdict: `D` goes to the next difference between two judged runs.

use llama_trace_core::trace::Run;

use super::app::App;
use super::comparison::ComparedWith;
use super::goto;
use super::verdict::Verdict;

/// The letter of a run, A or B; none without a verdict.
pub(super) fn letter(app: &App, run: Run) -> Option<&'static str> {
    app.comparison.verdict.as_ref().map(|_| if run == Run::ITSELF { "A" } else { "B" })
}

/// The heading of the compared run, and which run is subtracted from which. `name` is the heading without a verdict.
pub(super) fn names(app: &App, run: Run, name: String) -> (String, &'static str) {
    let which = letter(app, run).map_or(name, str::to_owned);
    let less = match &*which {
        "A" => "B − A",
        "B" => "A − B",
        _ => "here − there",
    };
    (which, less)
}

/// Goes to the next stage that differs; from the last one, to the first one.
pub(super) fn next_difference(app: &mut App) {
    let Some(verdict) = &mut app.comparison.verdict else {
        return app.say(
            "no runs are compared here: `llama-trace diff A B --tui` shows where B differs from A",
            false,
        );
    };
    let count = verdict.differences.len();
    let at = verdict.at.map_or(0, |at| (at + 1) % count.max(1));
    let Some(difference) = verdict.differences.get(at).cloned() else {
        let words = verdict.words.first().cloned().unwrap_or_default();
        return app.say(words, false);
    };
    verdict.at = Some(at);
    match goto::find(app, &difference.address) {
        Ok(spot) => {
            goto::go(app, &spot);
            app.comparison.with = app.comparison.has_previous.then_some(ComparedWith::Previous);
            app.say(format!("{} of {count}  {}", at + 1, difference.words), false);
        }
        Err(wrong) => app.say(wrong, true),
    }
}

impl App {
    /// Opens the viewer at the first stage in which two runs differ, with the two runs side by side.
    pub fn judge(&mut self, verdict: Verdict) {
        self.comparison.verdict = Some(verdict);
        (self.comparison.with, self.comparison.has_previous) = (Some(ComparedWith::Previous), true);
        next_difference(self);
        self.settle();
    }
}
