//! What the viewer asks its source for: the outline, the values that are shown, the texts of the tokens that
//! are visible. Nothing else is asked for.

use std::ops::Range;

use crate::trace::{Part, Query, Region, Source, Status};

use super::app::{App, Show};
use super::open;
use super::place::Walk;
use super::tensor::region_in_stage;
use super::view::{self, grid::Grid, list::List};

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
        // What is there decides what else is needed: where values are, statistics; where an order is, its rows.
        for _ in 0..ROUNDS {
            let questions = self.questions();
            if !self.answers.ask(source, &questions) {
                break;
            }
            changed = true;
            self.settle();
        }
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

    /// The indices, in the axes of the stage, of the values that are on the screen.
    pub(super) fn needed(&self) -> Region {
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

    /// What the screen needs to know now, the values first.
    fn questions(&self) -> Vec<Query> {
        let (site, needed, part) = (self.place.site(), self.needed(), self.part());
        let there = self.answers.covering(site, &needed).is_some();
        let mut questions = vec![Query::Block(site, needed)];
        if self.tensor().is_some() {
            questions.push(Query::Spread(Part::whole(site)));
            let span = self.span_part();
            questions.extend((span.held.is_some()).then_some(Query::Spread(span)));
            questions
                .extend((part.held.is_some() && self.cut().columns.is_none()).then_some(Query::Spread(part)));
        }
        if self.show() == Show::Largest && there {
            questions.push(Query::Order(part));
        }
        questions
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
