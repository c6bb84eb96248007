//! The numbers that an edit can reach.

use super::Place;
use crate::trace::stage::{Input, Section};
use crate::trace::{Axis, PassDims, Site, Sizes, Stage};

impl Place {
    /// Whether the place has the cell with this index of its stage, in pass `dims`.
    pub fn contains(&self, dims: PassDims, index: &[usize]) -> bool {
        let selected = |(at, selected): &(usize, super::Selection)| {
            index.get(*at).is_some_and(|&index| selected.contains(index))
        };
        let here = |positions: &super::Selection| {
            let token = self.stage.axes().iter().position(|&axis| axis == Axis::Token);
            token.and_then(|at| index.get(at)).is_some_and(|t| positions.contains(dims.start + t))
        };
        self.index.iter().all(selected) && self.positions.as_ref().is_none_or(here)
    }

    /// Whether a change of these cells can change another number: the one at `index` of `site`. `passes` are the passes
    /// of the run. The answer follows from the order of the stages, the causal mask, the heads and the cache. It does
    /// not use values, and it does not follow single components of a vector.
    pub fn reaches(&self, sizes: &Sizes, passes: &[PassDims], site: Site, index: &[usize]) -> bool {
        let Some(&dims) = passes.get(site.pass) else { return false };
        let number = Number::new(site, dims, index);
        let last = number.positions().into_iter().flatten().max().unwrap_or(dims.keys().saturating_sub(1));
        self.sequences.contains(site.sequence)
            && passes[..=site.pass].iter().filter(|dims| self.passes.contains(dims.pass)).any(|&edited| {
                let Some(edited_at) = self.positions_in(sizes, edited) else { return false };
                match edited.pass < site.pass {
                    // Through the cache, or through a token that was sampled since.
                    true => edited_at.first().is_none_or(|&first| first <= last),
                    false => self.reaches_in_pass(sizes, dims, &number, &edited_at),
                }
            })
    }

    /// The positions in the text that have edited cells in pass `dims`; empty if the stage has no such axis. None if the
    /// pass has no edited cell.
    fn positions_in(&self, sizes: &Sizes, dims: PassDims) -> Option<Vec<usize>> {
        let cells = self.cells(sizes, dims);
        if !self.stage.present(sizes, dims) || cells.iter().any(Vec::is_empty) {
            return None;
        }
        let axes = self.stage.axes();
        let at = |wanted: Axis| axes.iter().position(|&axis| axis == wanted);
        Some(match (at(Axis::Token), at(Axis::Key)) {
            (Some(at), _) => cells[at].iter().map(|t| dims.start + t).collect(),
            (None, Some(at)) => cells[at].clone(),
            (None, None) => Vec::new(),
        })
    }

    /// As [`Place::reaches`], for edits at these positions of the number's own pass.
    fn reaches_in_pass(&self, sizes: &Sizes, dims: PassDims, number: &Number<'_>, edited: &[usize]) -> bool {
        let layers = match self.stage.in_layer() {
            true => self.layers.below(sizes.layers).into_iter().map(Some).collect(),
            false => vec![None],
        };
        layers.into_iter().any(|layer| {
            let (from, to) = (depth(self.stage, layer, sizes), depth(number.stage, number.layer, sizes));
            if from > to || from == to && !self.leads_to(sizes, dims, number) {
                return false;
            }
            let leads = |from, to| leads(from, to, sizes, dims);
            let memory = [Stage::Keys, Stage::Values];
            // Attention carries a value to all later positions.
            let feeds = from < to
                && memory.into_iter().any(|memory| self.stage == memory || leads(self.stage, memory));
            let carried = to - from >= 2 || feeds;
            let first = edited.first().copied().unwrap_or(0);
            let at = |position: usize| {
                edited.is_empty() || edited.contains(&position) || carried && position > first
            };
            let [query, key] = number.positions();
            if let (Some(query), Some(key), true) = (query, key, number.stage < Stage::Softmax) {
                let on_its_side = |side: Stage| from < to || self.stage == side || leads(self.stage, side);
                return on_its_side(Stage::XqRope) && at(query)
                    || on_its_side(Stage::Keys) && at(key)
                    || from == to
                        && self.stage.axes() == number.stage.axes()
                        && self.contains(dims, number.index);
            }
            let mixes = number.layer.is_some()
                && memory.into_iter().any(|memory| {
                    leads(memory, number.stage)
                        && (from < to || self.stage == memory || leads(self.stage, memory))
                });
            match query.or(key) {
                Some(position) if mixes => position >= first,
                Some(position) => at(position),
                None => true,
            }
        })
    }

    /// Whether the number's stage is computed from this stage in the same layer, and from these heads.
    fn leads_to(&self, sizes: &Sizes, dims: PassDims, number: &Number<'_>) -> bool {
        let group = (sizes.heads / sizes.kv_heads.max(1)).max(1);
        let kv_head = |axis: Axis, head: usize| if axis == Axis::Head { head / group } else { head };
        let axes = self.stage.axes();
        let own = axes.iter().position(|axis| matches!(axis, Axis::Head | Axis::KvHead));
        let heads = own.zip(number.head()).is_none_or(|(at, (axis, head))| {
            let mut edited = self.cells(sizes, dims)[at].clone().into_iter();
            edited.any(|one| match axes[at] == axis {
                true => one == head,
                false => kv_head(axes[at], one) == kv_head(axis, head),
            })
        });
        heads && leads(self.stage, number.stage, sizes, dims)
    }
}

/// A number of a run.
struct Number<'a> {
    stage: Stage,
    layer: Option<usize>,
    dims: PassDims,
    index: &'a [usize],
}

impl<'a> Number<'a> {
    fn new(site: Site, dims: PassDims, index: &'a [usize]) -> Self {
        Self { stage: site.stage, layer: site.layer, dims, index }
    }

    fn on(&self, wanted: Axis) -> Option<usize> {
        let at = self.stage.axes().iter().position(|&axis| axis == wanted)?;
        self.index.get(at).copied()
    }

    /// The positions in the text of its token and of its key.
    fn positions(&self) -> [Option<usize>; 2] {
        [self.on(Axis::Token).map(|t| self.dims.start + t), self.on(Axis::Key)]
    }

    fn head(&self) -> Option<(Axis, usize)> {
        [Axis::Head, Axis::KvHead].into_iter().find_map(|axis| Some((axis, self.on(axis)?)))
    }
}

/// The place of a stage in the order of the layers: 0 before them, and after them one more than their number.
fn depth(stage: Stage, layer: Option<usize>, sizes: &Sizes) -> usize {
    match (layer, stage.info().section) {
        (Some(layer), _) => layer + 1,
        (None, Section::Start) => 0,
        (None, _) => sizes.layers + 1,
    }
}

/// Whether `to` is computed from `from` in the same layer.
fn leads(from: Stage, to: Stage, sizes: &Sizes, dims: PassDims) -> bool {
    to.inputs(sizes, dims).into_iter().any(|input| match input {
        Input::Stage(input) => {
            input == from || input.in_layer() == to.in_layer() && leads(from, input, sizes, dims)
        }
        Input::LayerInput | Input::Positions => false,
    })
}
