//! What the viewer asks its source for: the outline, the frame that is shown, the texts of the tokens that
//! are visible. Nothing else is asked for.

use std::sync::Arc;
use std::task::Poll;

use crate::trace::{Frame, Source, Status};

use super::app::{App, Show, Shown};
use super::place::Walk;
use super::summary::Part;
use super::tensor::Tensor;
use super::view;

impl App {
    /// Asks `source` for what is to be shown; true where that changes the screen. Call it after updates and
    /// whenever the source has news.
    pub fn sync(&mut self, source: &mut dyn Source) -> bool {
        let mut changed = self.summaries.poll();
        if self.outline != *source.outline() {
            let more = source.outline().passes.len() > self.outline.passes.len();
            self.outline = source.outline().clone();
            if more && std::mem::take(&mut self.expects_pass) {
                let last = self.outline.passes.len() - 1;
                self.go(Walk::new(&self.outline, last).same(self.place));
                self.message = None;
            }
            changed = true;
        }
        let status = source.status();
        changed |= self.status != status;
        self.status = status;
        if self.expects_pass && self.status == Status::Idle {
            self.expects_pass = false;
            self.say("the next token did not come; t asks again, and is told why", true);
            changed = true;
        }
        changed |= self.fetch(source);
        if changed {
            self.settle();
        }
        self.want();
        self.fetch_texts(source) || changed
    }

    fn fetch(&mut self, source: &mut dyn Source) -> bool {
        let site = self.place.site();
        match &self.shown {
            Shown::Values(tensor) if self.is_current(tensor) => return false,
            Shown::Values(tensor) if tensor.site() == site => {
                self.show_frame(tensor.frame().clone());
                return true;
            }
            Shown::Values(_) | Shown::Pending => {}
            Shown::Failed(_) => return false,
        }
        let was_pending = matches!(self.shown, Shown::Pending);
        match source.frame(site) {
            Poll::Pending => {
                self.shown = Shown::Pending;
                !was_pending
            }
            Poll::Ready(Ok(frame)) => {
                self.show_frame(frame);
                true
            }
            Poll::Ready(Err(error)) => {
                self.shown = Shown::Failed(error.to_string());
                true
            }
        }
    }

    fn show_frame(&mut self, frame: Arc<Frame>) {
        let shape = frame.shape().to_vec();
        self.shown = match Tensor::new(frame, self.place.step) {
            Some(tensor) => Shown::Values(tensor),
            None => Shown::Failed(format!(
                "{} came with the shape {shape:?}, which is not that of the table of stages",
                self.place.path()
            )),
        };
    }

    /// Has worked out what the screen needs to know about all values.
    pub(super) fn want(&mut self) {
        let Some(tensor) = self.tensor() else { return };
        let frame = tensor.frame().clone();
        let (Some(part), Some(span)) = (self.part(), self.span_part()) else { return };
        self.summaries.want_stats(&frame, Part { held: None, ..part });
        self.summaries.want_stats(&frame, span);
        if self.show() == Show::Largest {
            self.summaries.want_order(&frame, part);
            self.settle();
        }
    }

    fn fetch_texts(&mut self, source: &dyn Source) -> bool {
        let missing: Vec<u32> =
            view::vocabulary_ids(self).into_iter().filter(|id| !self.texts.contains_key(id)).collect();
        for &id in &missing {
            self.texts.insert(id, source.token_text(id));
        }
        !missing.is_empty()
    }
}
