//! What the viewer asks its source for: the outline, the values that are shown, the texts of the tokens that
//! are visible. Nothing else is asked for.

use std::ops::Range;
use std::task::Poll;

use crate::error::Error;
use crate::trace::{Block, Region, Source, Status};

use super::app::{App, Show, Shown};
use super::open;
use super::place::Walk;
use super::summary::Part;
use super::tensor::{Tensor, region_in_stage};
use super::view::{self, grid::Grid, list::List};

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
        changed |= self.open_when_there();
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
        changed |= self.want(source);
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

    fn fetch(&mut self, source: &mut dyn Source) -> bool {
        let site = self.place.site();
        let region = self.needed();
        let same = match &self.shown {
            Shown::Values(tensor) if tensor.site() == site => {
                if tensor.block().region.covers(&region) {
                    let stays = self.is_current(tensor);
                    if !stays {
                        self.show_block(tensor.block().clone());
                    }
                    return !stays;
                }
                true
            }
            Shown::Values(_) | Shown::Pending => false,
            Shown::Failed(_) => return false,
        };
        let was_pending = matches!(self.shown, Shown::Pending);
        match source.block(site, &region) {
            // What is there of the same stage stays until the other rows come.
            Poll::Pending if same => false,
            Poll::Pending => {
                self.shown = Shown::Pending;
                !was_pending
            }
            Poll::Ready(Ok(block)) => {
                self.show_block(block);
                true
            }
            Poll::Ready(Err(Error::Interrupted(_))) => {
                self.shown = Shown::Failed("It was stopped. r computes it.".to_owned());
                true
            }
            Poll::Ready(Err(error)) => {
                self.shown = Shown::Failed(error.to_string());
                true
            }
        }
    }

    /// The indices, in the axes of the stage, of the values that are on the screen.
    fn needed(&self) -> Region {
        let step = self.place.step;
        let index = self.index();
        let mut needed: Vec<Range<usize>> = index.iter().map(|&index| index..index + 1).collect();
        let mut show = |axis: usize, seen: Range<usize>| {
            // Before it has settled, the cursor may be elsewhere.
            if seen.contains(&index[axis]) {
                needed[axis] = seen;
            }
        };
        let cut = self.cut();
        if let Some(area) = view::Panels::new(self).middle {
            if let Some(list) = List::new(self, area) {
                let ranked = self.show() == Show::Largest;
                show(cut.rows, if ranked { 0..list.count } else { list.visible(self) });
            } else if let (Some(grid), Some(columns)) = (Grid::new(self, area), cut.columns) {
                show(cut.rows, grid.visible_rows(self));
                show(columns, grid.visible_columns(self));
            }
        }
        let whole = self.outline.card.sizes.shape(step.stage().axes(), self.dims());
        region_in_stage(step, Region(needed), &whole).within(&whole)
    }

    fn show_block(&mut self, block: Block) {
        let shape = block.shape.clone();
        self.shown = match Tensor::new(block, self.place.step) {
            Some(tensor) => Shown::Values(tensor),
            None => Shown::Failed(format!(
                "{} came with the shape {shape:?}, which is not that of the table of stages",
                self.place.path()
            )),
        };
    }

    /// Has worked out what the screen needs to know about all values: of what comes in blocks the source knows
    /// them. True where that changes the screen.
    fn want(&mut self, source: &mut dyn Source) -> bool {
        let Some(tensor) = self.tensor() else { return false };
        let block = tensor.block().clone();
        let (Some(part), Some(span)) = (self.part(), self.span_part()) else { return false };
        let mut changed = false;
        for part in [Part { held: None, ..part }, span] {
            if block.is_whole() {
                self.summaries.want_stats(&block.frame, part);
            } else if self.summaries.lacks_stats(part) {
                match source.stats(part.site, part.held) {
                    Poll::Pending => break,
                    Poll::Ready(stats) => self.summaries.put_stats(part, stats.ok()),
                }
                changed = true;
            }
        }
        if self.show() == Show::Largest && block.region.covers(&self.needed()) {
            self.summaries.want_order(&block, part);
            self.settle();
        }
        changed
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
