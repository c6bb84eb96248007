//! Going to the largest value: of the row under the cursor, or of the whole tensor. What is not there yet is asked for
//! part by part, and the cursor goes when all of it was seen.

use std::ops::Range;

use crate::trace::frame::FrameData;
use crate::trace::step::Arranged;
use crate::trace::{Axis, Block, Query, Region, Step};

use super::app::App;
use super::seek::Seek;
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
    app.seek = Some(Seek { site: app.place.site(), rest, best: None });
}

/// Where attention is looked at for the first time there is something to see under the cursor: the largest key of the
/// query, the last one where none was chosen.
pub(super) fn open(app: &mut App) {
    let axes = app.place.step.axes();
    let key = axes.iter().position(|axis| *axis == Axis::Key);
    let (Some(key), true) = (key, axes.contains(&Axis::Token) && axes.contains(&Axis::Head)) else { return };
    if app.opened || app.seek.is_some() {
        return;
    }
    let mut region: Vec<Range<usize>> = app.index().iter().map(|&index| index..index + 1).collect();
    if region[key].start > 0 {
        app.opened = true;
        return;
    }
    region[key] = 0..app.shape()[key];
    let rest = vec![kind::in_stage(app, Region(region))];
    app.seek = Some(Seek { site: app.place.site(), rest, best: None });
}

/// Looks for the largest value of the tensor.
pub(super) fn tensor(app: &mut App) {
    let shape = app.outline.card.sizes().shape(app.place.step.stage().axes(), app.dims());
    let mut rest = vec![Region::whole(&shape)];
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
    app.seek = Some(Seek { site: app.place.site(), rest, best: None });
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
            for (value, index) in rows(block, region) {
                if seek.best.as_ref().is_none_or(|(best, _)| value > *best) {
                    seek.best = Some((value, index));
                }
            }
            seek.rest.pop();
        }
        let Some((_, index)) = seek.best else {
            self.say("there is no number here", false);
            return true;
        };
        let step = self.place.step;
        if !std::mem::replace(&mut self.opened, true) {
            // As far to the right as the cursor lets it: there the diagonal is.
            self.offset.1 = usize::MAX;
        }
        let shape = self.outline.card.sizes().shape(step.stage().axes(), self.dims());
        for (&axis, index) in step.axes().iter().zip(in_step(step, &index, &shape)) {
            self.selected.set(axis, index);
        }
        if step.axes().contains(&Axis::Vocab) {
            // Of its row it is the first in the order of size.
            self.rank = 0;
        }
        self.settle();
        true
    }
}

/// The largest value of each row of `region`, and where it is; of equals the first. What is not a number is none.
fn rows<'a>(block: &'a Block, region: &'a Region) -> impl Iterator<Item = (f64, Vec<usize>)> + 'a {
    let lengths = region.shape();
    let width = lengths.last().copied().unwrap_or(1);
    let count = region.count() / width.max(1);
    (0..count).filter_map(move |row| {
        let mut index = vec![0; lengths.len()];
        let mut rest = row;
        for axis in (0..lengths.len().saturating_sub(1)).rev() {
            index[axis] = region.0[axis].start + rest % lengths[axis];
            rest /= lengths[axis];
        }
        let last = lengths.len().checked_sub(1)?;
        index[last] = region.0[last].start;
        let at = index.iter().zip(&block.shape).fold(0, |at, (index, length)| at * length + index);
        let first = block.run(at)?.start;
        let (offset, value) = match &block.frame.data {
            FrameData::F32(array) => largest(array.as_slice()?.get(first..first + width)?, |v| f64::from(*v)),
            FrameData::I64(array) => largest(array.as_slice()?.get(first..first + width)?, |v| *v as f64),
            FrameData::I8(array) => largest(array.as_slice()?.get(first..first + width)?, |v| f64::from(*v)),
        }?;
        index[last] += offset;
        Some((value, index))
    })
}

fn largest<T>(values: &[T], real: impl Fn(&T) -> f64) -> Option<(usize, f64)> {
    let mut best: Option<(usize, f64)> = None;
    for (at, value) in values.iter().map(real).enumerate() {
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
    use crate::trace::View;

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
        let real = |value: &f32| f64::from(*value);
        assert_eq!(largest(&[f32::NAN, -1.0, 2.0, 2.0], real), Some((2, 2.0)));
        assert_eq!(largest(&[f32::NAN], real), None);
        assert_eq!(largest(&[f32::NEG_INFINITY], real), Some((0, f64::NEG_INFINITY)));
    }
}
