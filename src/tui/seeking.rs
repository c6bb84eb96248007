//! Going to the largest value, of the row under the cursor or of the whole tensor, and to cells that a filter takes. What
//! is not there yet is asked for part by part, and the cursor goes when all of it was seen.

use std::ops::Range;

use llama_trace_core::trace::block::index_of;
use llama_trace_core::trace::step::Arranged;
use llama_trace_core::trace::{Axis, Query, Region, Step};

use super::app::App;
use super::seek::{Goal, Like, Seek};
use super::view::kind;

/// Values that are looked at together.
const AT_ONCE: usize = 1 << 20;

/// Looks for the largest value of the row under the cursor.
pub(super) fn row(app: &mut App) {
    let (cut, shape) = (app.cut(), app.shape());
    let mut region: Vec<Range<usize>> = app.index().iter().map(|&index| index..index + 1).collect();
    let along = cut.columns.unwrap_or(cut.rows);
    region[along] = 0..shape[along];
    let rest = vec![kind::in_stage(app, Region(region))];
    app.seek = Some(Seek { site: app.place.site(), rest, goal: Goal::Largest(None) });
}

/// Where attention is looked at for the first time there is something to see under the cursor: the largest key of the
/// query, the last one where none was chosen.
pub(super) fn open(app: &mut App) {
    let Some((key, seen)) = keys_seen(app) else { return };
    // Of what cannot be had nothing is looked for again and again.
    let fails = app.answers.failure(app.place.site()).is_some();
    if app.opened || app.seek.is_some() || fails {
        return;
    }
    let mut region: Vec<Range<usize>> = app.index().iter().map(|&index| index..index + 1).collect();
    if region[key].start > 0 {
        app.opened = true;
        return;
    }
    region[key] = seen;
    let rest = vec![kind::in_stage(app, Region(region))];
    app.seek = Some(Seek { site: app.place.site(), rest, goal: Goal::Largest(None) });
}

/// A key that was chosen before and is hidden from the query is given up for its largest.
pub(super) fn unhide(app: &mut App) {
    if keys_seen(app).is_some_and(|(key, seen)| !seen.contains(&app.index()[key])) {
        app.selected.set(Axis::Key, 0);
        app.opened = false;
    }
}

/// Which axis of a stage of attention its keys are, and those that the query under the cursor sees.
fn keys_seen(app: &App) -> Option<(usize, Range<usize>)> {
    let axes = app.place.step.axes();
    let key = axes.iter().position(|axis| *axis == Axis::Key)?;
    let query = axes.iter().position(|axis| *axis == Axis::Token).filter(|_| axes.contains(&Axis::Head))?;
    let end = app.dims().start + app.index()[query] + 1;
    let window = app.place.layer.and_then(|layer| app.outline.card.sizes().window_of(layer));
    Some((key, window.map_or(0, |window| end.saturating_sub(window))..end))
}

/// Looks for the largest value of the tensor.
pub(super) fn tensor(app: &mut App) {
    app.seek = Some(Seek { site: app.place.site(), rest: parts(app), goal: Goal::Largest(None) });
}

/// Looks for the next cell that the filter takes, or the one before, or counts them.
pub(super) fn like(app: &mut App, by: isize) {
    let Some(filter) = app.filter() else {
        app.say("= looks for cells like the one under the cursor; + and - go from one to the next", false);
        return;
    };
    let (step, shape) = (app.place.step, stage_shape(app));
    let index = step.index_in_stage(&app.index(), &shape);
    let from = index.iter().zip(&shape).fold(0, |at, (index, length)| at * length + index);
    let goal = Goal::Like(Like::new(filter, from, by));
    app.seek = Some(Seek { site: app.place.site(), rest: parts(app), goal });
}

fn stage_shape(app: &App) -> Vec<usize> {
    app.outline.card.sizes().shape(app.place.step.stage().axes(), app.dims())
}

/// The tensor in parts that can be looked at one by one.
fn parts(app: &App) -> Vec<Region> {
    let mut rest = vec![Region::whole(&stage_shape(app))];
    // Halved along the outermost axis that can be, until each part is small.
    while let Some(at) = rest.iter().position(|region| region.count() > AT_ONCE) {
        let region = rest.remove(at);
        let Some(axis) = region.0.iter().position(|range| range.len() > 1) else { break };
        let Range { start, end } = region.0[axis].clone();
        let middle = start + (end - start) / 2;
        for range in [start..middle, middle..end] {
            let mut part = region.clone();
            part.0[axis] = range;
            rest.insert(at, part);
        }
    }
    rest
}

impl App {
    /// What the search needs to know next.
    pub(super) fn sought(&self) -> Option<Query> {
        let seek = self.seek.as_ref()?;
        Some(Query::Block(seek.site, seek.rest.last()?.clone()))
    }

    /// Takes in what of the search is there; at its end the cursor goes to what was found.
    /// True where something of it was.
    pub(super) fn go_on_seeking(&mut self) -> bool {
        let Some(mut seek) = self.seek.take() else { return false };
        if seek.site != self.place.site() || self.answers.failure(seek.site).is_some() {
            return true;
        }
        let before = seek.rest.len();
        while let Some(region) = seek.rest.last() {
            let Some(block) = self.answers.covering(seek.site, region) else {
                let went = seek.rest.len() < before;
                self.seek = Some(seek);
                return went;
            };
            let (shape, width) = (&block.shape, region.0.last().map_or(1, ExactSizeIterator::len));
            let at =
                |index: &[usize]| index.iter().zip(shape).fold(0, |at, (index, length)| at * length + index);
            for index in rows(region) {
                let first = at(&index);
                let Some(run) = block.run(first) else { continue };
                let values = block.frame.values().slice(run.start..run.start + width);
                match &mut seek.goal {
                    Goal::Largest(best) => {
                        let Some((offset, value)) = largest(values.numbers()) else { continue };
                        if best.as_ref().is_none_or(|(other, _)| value > *other) {
                            let mut index = index;
                            index.last_mut().into_iter().for_each(|last| *last += offset);
                            *best = Some((value, index));
                        }
                    }
                    Goal::Like(like) => {
                        let taken =
                            values.numbers().enumerate().filter(|&(_, value)| like.filter.takes(value));
                        let taken: Vec<usize> = taken.map(|(offset, _)| first + offset).collect();
                        taken.into_iter().for_each(|at| like.add(at));
                    }
                }
            }
            seek.rest.pop();
        }
        let shape = stage_shape(self);
        match seek.goal {
            Goal::Largest(Some((_, index))) => self.stand_on(&index, &shape),
            Goal::Largest(None) => {
                // What has no largest value has none for the cursor to open at either.
                self.opened = true;
                self.say("there is no number here", false);
            }
            Goal::Like(like) => {
                let (all, words) = (shape.iter().product::<usize>(), like.filter.words());
                let name = self.place.step.name();
                let told = match like.chosen() {
                    Some((at, number)) => {
                        self.stand_on(&index_of(&shape, at), &shape);
                        format!(
                            "{number} of {} cells of {name} that are {words}; = shows all again",
                            like.count
                        )
                    }
                    None => format!(
                        "{} of {all} cells of {name} are {words}; + and - go from one to the next, = shows all again",
                        like.count
                    ),
                };
                self.say(told, false);
            }
        }
        true
    }

    /// Puts the cursor on an index of the stage, whose shape is `shape`.
    fn stand_on(&mut self, index: &[usize], shape: &[usize]) {
        let step = self.place.step;
        if !std::mem::replace(&mut self.opened, true) {
            // As far to the right as the cursor lets it: there the diagonal is.
            self.offset.1 = usize::MAX;
        }
        for (&axis, index) in step.axes().iter().zip(in_step(step, index, shape)) {
            self.selected.set(axis, index);
        }
        if step.axes().contains(&Axis::Vocab) {
            // Of its row the largest is the first in the order of size.
            let id = self.selected.get(Axis::Vocab, usize::MAX);
            let order = self.answers.order(self.part());
            self.rank =
                order.and_then(|order| order.ids.iter().position(|&other| other as usize == id)).unwrap_or(0);
        }
        self.settle();
    }
}

/// The index of the first value of each row of `region`, in the axes of the stage.
fn rows(region: &Region) -> impl Iterator<Item = Vec<usize>> + '_ {
    let mut lengths = region.shape();
    lengths.last_mut().into_iter().for_each(|last| *last = (*last).min(1));
    let count = lengths.iter().product();
    (0..count).map(move |row| {
        let inside = index_of(&lengths, row);
        inside.iter().zip(&region.0).map(|(index, range)| range.start + index).collect()
    })
}

/// The largest of `values`, and the number of it; of equals the first. What is not a number is none.
fn largest(values: impl Iterator<Item = f64>) -> Option<(usize, f64)> {
    let mut best: Option<(usize, f64)> = None;
    for (at, value) in values.enumerate() {
        if !value.is_nan() && best.is_none_or(|(_, other)| value > other) {
            best = Some((at, value));
        }
    }
    best
}

/// An index of the stage, whose shape is `shape`, in the axes of `step`.
fn in_step(step: Step, index: &[usize], shape: &[usize]) -> Vec<usize> {
    match step.arranged() {
        Arranged::Same => index.to_vec(),
        Arranged::Axes(order) => order.map(|axis| index[axis]).to_vec(),
        Arranged::Merged => vec![index[0], index[1] * shape[2] + index[2]],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llama_trace_core::trace::View;

    #[test]
    fn an_index_in_the_stage_comes_back_from_the_step() {
        let shape = [3, 4, 2];
        for view in View::ALL {
            let step = Step::View(*view);
            for at in [[0, 0, 0], [2, 3, 1], [1, 2, 0]] {
                assert_eq!(step.index_in_stage(&in_step(step, &at, &shape), &shape), at, "{view}");
            }
        }
    }

    #[test]
    fn the_first_of_equals_is_the_largest_and_nan_is_none() {
        let largest = |values: &[f32]| largest(values.iter().map(|&value| f64::from(value)));
        assert_eq!(largest(&[f32::NAN, -1.0, 2.0, 2.0]), Some((2, 2.0)));
        assert_eq!(largest(&[f32::NAN]), None);
        assert_eq!(largest(&[f32::NEG_INFINITY]), Some((0, f64::NEG_INFINITY)));
    }
}
