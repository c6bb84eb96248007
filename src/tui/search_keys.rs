//! Keys that search in a tensor: `*` and `#` go to the largest value; `=`, `+` and `-` filter cells. Blocks that are
//! not there yet are requested region by region. The cursor moves once all regions were scanned.

use std::ops::Range;

use llama_trace_core::trace::block::index_of;
use llama_trace_core::trace::step::Arranged;
use llama_trace_core::trace::{Axis, Region, Step};

use super::app::App;
use super::filter::Filter;
use super::hidden::HIDDEN;
use super::search::{Goal, Matches};
use super::view::kind;

/// Number of values that are scanned together.
const AT_ONCE: usize = 1 << 20;

/// Searches for the largest value in the row under the cursor.
pub(super) fn largest_in_row(app: &mut App) {
    if app.hides_here() {
        return app.say(HIDDEN, false);
    }
    let (cut, shape) = (app.cut(), app.shape());
    let mut region: Vec<Range<usize>> = app.index().iter().map(|&index| index..index + 1).collect();
    let along = cut.columns.unwrap_or(cut.rows);
    region[along] = 0..shape[along];
    largest_in(app, Region(region));
}

/// Searches for the largest value in a region of the step.
fn largest_in(app: &mut App, region: Region) {
    let region = kind::in_stage(app, region);
    app.search.start(app.place.site(), vec![region], Goal::Largest(None));
}

/// When attention is shown for the first time, moves the cursor to the key with the largest weight for the current
/// query. If the user chose a key, the cursor stays there.
pub(super) fn open_on_largest_key(app: &mut App) {
    let Some((key, visible)) = visible_keys(app).filter(|_| !app.hides_here()) else { return };
    // A stage that failed is not searched again and again.
    let fails = app.answers.failure(app.place.site()).is_some();
    if app.cursor.keeps_key || app.search.is_scanning() || fails {
        return;
    }
    let mut region: Vec<Range<usize>> = app.index().iter().map(|&index| index..index + 1).collect();
    if region[key].start > 0 {
        app.cursor.keeps_key = true;
        return;
    }
    region[key] = visible;
    largest_in(app, Region(region));
}

/// If the query does not see the chosen key, moves to the query's key with the largest weight.
pub(super) fn leave_hidden_key(app: &mut App) {
    if visible_keys(app).is_some_and(|(key, visible)| !visible.contains(&app.index()[key])) {
        app.cursor.selected.set(Axis::Key, 0);
        app.cursor.keeps_key = false;
    }
}

/// The key axis of an attention stage, and the keys that the query under the cursor sees.
fn visible_keys(app: &App) -> Option<(usize, Range<usize>)> {
    let axes = app.place.step.axes();
    let key = axes.iter().position(|axis| *axis == Axis::Key)?;
    let query = axes.iter().position(|axis| *axis == Axis::Token).filter(|_| axes.contains(&Axis::Head))?;
    let position = app.dims().start + app.index()[query];
    Some((key, app.outline.card.sizes().sees(app.place.layer).keys(position)))
}

/// Searches for the largest value in the tensor.
pub(super) fn largest_of_all(app: &mut App) {
    if app.hides_here() {
        return app.say(HIDDEN, false);
    }
    let regions = regions(app);
    app.search.start(app.place.site(), regions, Goal::Largest(None));
}

/// Sets the value under the cursor as the filter, or removes the filter. Returns whether a filter was set.
pub(super) fn toggle_filter(app: &mut App) -> bool {
    if app.hides_here() {
        app.say(HIDDEN, false);
        return false;
    }
    if app.filter().is_some() {
        app.search.set_filter(None);
        app.say("all cells are shown again", false);
        return false;
    }
    let like = app.tensor().and_then(|tensor| tensor.get(&app.index()));
    match like.filter(|_| app.view().shows_numbers()) {
        Some(like) => {
            app.search.set_filter(Some(Filter { step: app.place.step, like }));
            true
        }
        None => {
            app.say(
                "= finds cells like the one under the cursor; the cells of this view are not values of a stage",
                false,
            );
            false
        }
    }
}

/// Goes to the next cell that the filter accepts (`by` 1) or to the previous one (-1), or counts the accepted cells
/// (0).
pub(super) fn next_match(app: &mut App, by: isize) {
    if app.hides_here() {
        return app.say(HIDDEN, false);
    }
    let Some(filter) = app.filter() else {
        app.say("= finds cells like the one under the cursor; + and - go from one to the next", false);
        return;
    };
    let (step, shape) = (app.place.step, stage_shape(app));
    let index = step.index_in_stage(&app.index(), &shape);
    let from = index.iter().zip(&shape).fold(0, |at, (index, length)| at * length + index);
    let regions = regions(app);
    app.search.start(app.place.site(), regions, Goal::Matches(Matches::new(filter, from, by)));
}

/// Shape of the stage. The stage's axes may be in another order than the step's.
fn stage_shape(app: &App) -> Vec<usize> {
    app.outline.card.sizes().shape(app.place.step.stage().axes(), app.dims())
}

/// The tensor divided into regions. The tensor is halved until a region has at most [`AT_ONCE`] values or cannot be
/// halved.
fn regions(app: &App) -> Vec<Region> {
    let mut rest = vec![Region::whole(&stage_shape(app))];
    // Halves the region along its outermost axis that is longer than 1.
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
    /// Continues the scan with the blocks that have come. At its end, the cursor goes to the result. True if the
    /// screen, or the next question of the scan, changes.
    pub(super) fn continue_search(&mut self) -> bool {
        let Some(mut scan) = self.search.take() else { return false };
        if scan.site != self.place.site() || self.answers.failure(scan.site).is_some() {
            return true;
        }
        let mut read = false;
        while let Some(region) = scan.next() {
            let Some(block) = self.answers.covering(scan.site, region) else {
                self.search.put_back(scan);
                return read;
            };
            scan.read(block);
            read = true;
        }
        let shape = stage_shape(self);
        match scan.goal {
            Goal::Largest(Some((_, index))) => self.put_cursor(&index, &shape),
            Goal::Largest(None) => {
                // Without a largest value, attention has no key to open at, so the cursor stays where it is.
                self.cursor.keeps_key = true;
                self.say("there is no largest value: every value here is NaN", false);
            }
            Goal::Matches(matches) => {
                let (all, words) = (shape.iter().product::<usize>(), matches.filter.words());
                let (name, count) = (self.place.step.name(), matches.count);
                let message = match matches.chosen() {
                    Some((at, number)) => {
                        self.put_cursor(&index_of(&shape, at), &shape);
                        format!(
                            "cell {number} of the {count} cells of {name} that are {words}; = shows all again"
                        )
                    }
                    None => format!(
                        "{count} of {all} cells of {name} are {words}; + and - go from one to the next, = shows all again"
                    ),
                };
                self.say(message, false);
            }
        }
        true
    }

    /// Puts the cursor on `index` in the axes of the stage, whose shape is `shape`.
    fn put_cursor(&mut self, index: &[usize], shape: &[usize]) {
        let step = self.place.step;
        if !std::mem::replace(&mut self.cursor.keeps_key, true) {
            // Scrolls as far to the right as the cursor allows, so that the diagonal is in sight.
            self.cursor.offset.1 = usize::MAX;
        }
        for (&axis, index) in step.axes().iter().zip(in_step(step, index, shape)) {
            self.cursor.selected.set(axis, index);
        }
        if step.axes().contains(&Axis::Vocab) {
            // The rank of the chosen id in the order of size.
            let id = self.cursor.selected.get(Axis::Vocab, usize::MAX);
            let order = self.answers.order(self.part());
            self.cursor.rank =
                order.and_then(|order| order.ids.iter().position(|&other| other as usize == id)).unwrap_or(0);
        }
        self.settle();
    }
}

/// `index` of the stage, whose shape is `shape`, converted to the axes of `step`.
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
}
