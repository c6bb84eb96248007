//! What the viewer asks its source for: the outline, the values that are shown, the texts of the tokens that
//! are visible. Nothing else is asked for.

use llama_trace_core::trace::{Source, Status};

use super::action::Action;
use super::advancing::RUNNING;
use super::app::App;
use super::open;
use super::place::Walk;
use super::seeking;
use super::travel;

/// How often questions lead to further ones before the screen is drawn.
const ROUNDS: usize = 4;

impl App {
    /// Asks `source` for what is to be shown; true where that changes the screen. Call it after updates and
    /// whenever the source has news.
    pub fn sync(&mut self, source: &mut dyn Source) -> bool {
        let mut changed = false;
        if self.outline != *source.outline() {
            let more = source.outline().passes.len() > self.outline.passes.len();
            self.outline = source.outline().clone();
            if more && std::mem::take(&mut self.expects_pass) {
                let (last, was) = (self.outline.passes.len() - 1, travel::here(self));
                self.go(Walk::new(&self.outline, last).same(self.place));
                travel::keep(self, was, Action::NextPass);
                self.message.take_if(|message| message.text == RUNNING);
            }
            changed = true;
        }
        changed |= self.open_when_there();
        seeking::open(self);
        let status = source.status();
        changed |= self.status != status;
        self.status = status;
        if self.expects_pass && self.status == Status::Idle {
            self.expects_pass = false;
            self.say("the next token did not come; t asks again, and is told why", true);
            changed = true;
        }
        // What is there decides what else is needed: where values are, statistics; where an order is, its rows.
        for _ in 0..ROUNDS {
            let questions = self.questions();
            let news = self.answers.ask(source, &questions);
            if news {
                self.settle();
            }
            // What was looked for may have been there before.
            if !(self.go_on_seeking() || news) {
                break;
            }
            changed = true;
        }
        // What was asked for just now is under way already: a key that stops it may be the next.
        let status = source.status();
        changed |= self.status != status;
        self.status = status;
        self.fetch_texts(source) || changed
    }

    /// Goes to where the command line asked for, as soon as that pass is there.
    fn open_when_there(&mut self) -> bool {
        let Some(at) =
            self.opens_at.take_if(|at| at.pass().is_some_and(|pass| self.outline.passes.len() > pass))
        else {
            return false;
        };
        // It was checked before the screen opened.
        if let Err(error) = open::open(self, &at) {
            self.say(error.to_string(), true);
        }
        true
    }

    fn fetch_texts(&mut self, source: &dyn Source) -> bool {
        let missing: Vec<u32> =
            self.vocabulary_ids().into_iter().filter(|id| !self.texts.contains_key(id)).collect();
        for &id in &missing {
            self.texts.insert(id, source.token_text(id));
        }
        !missing.is_empty()
    }
}
