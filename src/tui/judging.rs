//! Going from difference to difference, where two runs were judged.

use llama_trace_core::trace::Run;

use super::app::App;
use super::beside::Beside;
use super::goto;
use super::verdict::Verdict;

/// Which of the two a run is, where a verdict is there.
pub(super) fn letter(app: &App, run: Run) -> Option<&'static str> {
    app.verdict.as_ref().map(|_| if run == Run::ITSELF { "A" } else { "B" })
}

/// What is beside the run that is shown, of this run and called this, and which of the two is taken from which.
pub(super) fn names(app: &App, run: Run, name: String) -> (String, &'static str) {
    let which = letter(app, run).map_or(name, str::to_owned);
    let less = match &*which {
        "A" => "B − A",
        "B" => "A − B",
        _ => "here − there",
    };
    (which, less)
}

/// To the next stage that differs, and after the last to the first.
pub(super) fn next(app: &mut App) {
    let Some(verdict) = &mut app.verdict else {
        return app
            .say("nothing is judged here: `llama-trace diff A B --tui` shows where B parts from A", false);
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
            app.compares = app.goes_back.then_some(Beside::Before);
            app.say(format!("{} of {count}  {}", at + 1, difference.words), false);
        }
        Err(wrong) => app.say(wrong, true),
    }
}

impl App {
    /// Stands at the first stage in which two runs differ, the other one beside it.
    pub fn judge(&mut self, verdict: Verdict) {
        (self.verdict, self.compares, self.goes_back) = (Some(verdict), Some(Beside::Before), true);
        next(self);
        self.settle();
    }
}
