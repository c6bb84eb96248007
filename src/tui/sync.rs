//! Synchronisation with the source: the viewer asks only for the outline, for the values on the screen and for the
//! texts of visible tokens.

use llama_trace_core::trace::{Source, Status};

use super::action::Action;
use super::app::App;
use super::move_keys;
use super::open;
use super::place::Walk;
use super::search_keys;

/// Maximum number of rounds of questions before the screen is drawn. The answers of a round can lead to
/// further questions.
const ROUNDS: usize = 4;

/// The message while the requested pass runs.
pub(super) const RUNNING: &str = "running the next token …";

impl App {
    /// Asks `source` for what the screen shows. True if the answers change the screen. Call it after updates and
    /// whenever the source has news.
    pub fn sync(&mut self, source: &mut dyn Source) -> bool {
        let mut changed = false;
        if self.outline != *source.outline() {
            let more = source.outline().passes.len() > self.outline.passes.len();
            self.outline = source.outline().clone();
            if more && std::mem::take(&mut self.progress.awaits_pass) {
                let (last, was) = (self.outline.passes.len() - 1, move_keys::here(self));
                self.go(Walk::new(&self.outline, last).same(self.place));
                move_keys::record(self, was, Action::NextPass);
                self.input.message.take_if(|message| message.text == RUNNING);
            }
            changed = true;
        }
        changed |= self.open_when_there();
        search_keys::open_on_largest_key(self);
        let status = source.status();
        changed |= self.progress.status != status;
        self.progress.status = status;
        if self.progress.awaits_pass && self.progress.status == Status::Idle {
            self.progress.awaits_pass = false;
            self.say("the next token did not arrive; t tries again, and shows the reason", true);
            changed = true;
        }
        // Answers lead to further questions: values to a question for statistics, an order to a question for its rows.
        for _ in 0..ROUNDS {
            let questions = self.questions();
            let news = self.answers.ask(source, &questions);
            let more = self.take_effects();
            if news {
                self.settle();
            }
            // A search may continue with blocks that were already there.
            if !(self.continue_search() || news || more) {
                break;
            }
            changed = true;
        }
        // The status is read again, because the new questions have started work that the next key may stop.
        let status = source.status();
        changed |= self.progress.status != status;
        self.progress.status = status;
        let ids = self.vocabulary_ids();
        self.answers.fetch_texts(source, &ids) || changed
    }

    /// Goes to the place that the command line asked for, once the pass of that place is there.
    fn open_when_there(&mut self) -> bool {
        let Some(at) = self
            .progress
            .opens_at
            .take_if(|at| at.pass().is_some_and(|pass| self.outline.passes.len() > pass))
        else {
            return false;
        };
        // The place was checked before the screen opened.
        if let Err(error) = open::open(self, &at) {
            self.say(error.to_string(), true);
        }
        true
    }
}
