//! The cells that an edit changes.

use std::ops::RangeInclusive;

use crate::error::{Error, Result};
use crate::trace::select::{absent, past_the_last};
use crate::trace::{Axis, ModelCard, PassDims, Site, Sizes, Stage, Step};

/// A selection of numbers: `*`, `3`, `0-2` or `0,3-5`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection(Vec<RangeInclusive<usize>>);

impl Selection {
    /// Parses a selection.
    ///
    /// # Errors
    /// A message with the wrong item.
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        if text.trim() == "*" {
            return Ok(Self::default());
        }
        let item = |item: &str| {
            let (first, last) = item.split_once('-').unwrap_or((item, item));
            let range = (number(first)?, number(last)?);
            (range.0 <= range.1).then_some(range.0..=range.1)
        };
        let items = text.split(',').map(|part| {
            item(part).ok_or_else(|| {
                format!("`{}` is not a number, a range or `*`: write 3, 0-2, 0,3-5 or *", part.trim())
            })
        });
        items.collect::<std::result::Result<_, _>>().map(Self)
    }

    /// The selection of one number.
    pub fn one(number: usize) -> Self {
        Self(vec![number..=number])
    }

    /// Whether it selects everything.
    pub fn is_all(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it selects `number`.
    pub fn contains(&self, number: usize) -> bool {
        self.is_all() || self.0.iter().any(|range| range.contains(&number))
    }

    /// The selected numbers below `length`, in ascending order.
    pub fn below(&self, length: usize) -> Vec<usize> {
        if self.is_all() {
            return (0..length).collect();
        }
        let mut numbers: Vec<usize> = self
            .0
            .iter()
            .flat_map(|range| *range.start()..length.min(range.end().saturating_add(1)))
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    /// Whether it selects a number below `length`.
    fn has_below(&self, length: usize) -> bool {
        length > 0 && (self.is_all() || self.0.iter().any(|range| *range.start() < length))
    }

    /// The largest selected number, if not everything is selected.
    pub fn last(&self) -> Option<usize> {
        self.0.iter().map(|range| *range.end()).max()
    }
}

fn number(text: &str) -> Option<usize> {
    let text = text.trim();
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// The cells of one stage that an edit changes.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// Sequences of a batch.
    pub sequences: Selection,
    /// Passes.
    pub passes: Selection,
    /// Layers; everything for a stage outside the layers.
    pub layers: Selection,
    /// The stage.
    pub stage: Stage,
    /// Positions of axes of the stage, each with the selected indices.
    pub index: Vec<(usize, Selection)>,
    /// Positions in the text, for the token axis.
    pub positions: Option<Selection>,
}

impl Place {
    /// All cells of `stage`.
    pub fn of(stage: Stage) -> Self {
        let all = Selection::default;
        Self { sequences: all(), passes: all(), layers: all(), stage, index: Vec::new(), positions: None }
    }

    /// Whether the place has cells of `site`, as far as its path says.
    pub fn has(&self, site: Site) -> bool {
        self.stage == site.stage
            && self.sequences.contains(site.sequence)
            && self.passes.contains(site.pass)
            && site.layer.is_none_or(|layer| self.layers.contains(layer))
    }

    /// Whether pass `dims` has a cell of the place, if the path selects the pass.
    pub fn has_cells(&self, sizes: &Sizes, dims: PassDims) -> bool {
        let all = Selection::default();
        let axis = |(at, &axis): (usize, &Axis)| {
            let selected = self.index.iter().find(|(of, _)| *of == at).map_or(&all, |(_, selected)| selected);
            match self.positions.as_ref().filter(|_| axis == Axis::Token) {
                Some(positions) => {
                    (0..dims.tokens).any(|t| selected.contains(t) && positions.contains(dims.start + t))
                }
                None => selected.has_below(sizes.axis(axis, dims)),
            }
        };
        self.stage.present(sizes, dims) && self.stage.axes().iter().enumerate().all(axis)
    }

    /// The selected indices along each axis, in pass `dims`. Without an index on some axis, the place has no cell there.
    pub fn cells(&self, sizes: &Sizes, dims: PassDims) -> Vec<Vec<usize>> {
        let all = Selection::default();
        let axis = |(at, &axis): (usize, &Axis)| {
            let selected = self.index.iter().find(|(of, _)| *of == at).map_or(&all, |(_, selected)| selected);
            let mut indices = selected.below(sizes.axis(axis, dims));
            if let Some(positions) = self.positions.as_ref().filter(|_| axis == Axis::Token) {
                indices.retain(|t| positions.contains(dims.start + t));
            }
            indices
        };
        self.stage.axes().iter().enumerate().map(axis).collect()
    }

    /// Checks that the model `card` and a run with `passes` have every cell that the place names. `passes` holds the
    /// number of the sequence and the sizes of each pass. If it is empty, only the model is checked.
    ///
    /// # Errors
    /// [`Error::Usage`] with the first part that does not exist.
    pub fn check(&self, card: &ModelCard, passes: &[(usize, PassDims)]) -> Result<()> {
        let sizes = card.sizes();
        let none = |what: String, expected: String| {
            Err(Error::usage(what).expected(expected).next("name cells that this run has"))
        };
        if let Some(layer) = self.layers.last().filter(|&layer| layer >= sizes.layers) {
            return none(
                format!("the model has no layer {layer}"),
                format!("layers from 0 to {}", sizes.layers - 1),
            );
        }
        let longest = PassDims { pass: 0, start: 0, tokens: card.config.context, ..PassDims::default() };
        if passes.is_empty() {
            return self.check_axes(card, &[longest]);
        }
        let of_sequences = |selected: &Selection| passes.iter().any(|&(s, _)| selected.contains(s));
        if !of_sequences(&self.sequences)
            || self.sequences.last().is_some_and(|last| passes.iter().all(|&(sequence, _)| sequence != last))
        {
            let last = passes.iter().map(|&(sequence, _)| sequence).max().unwrap_or(0);
            return none("the run has no such sequence".into(), format!("sequences from 0 to {last}"));
        }
        let here: Vec<PassDims> = (passes.iter())
            .filter(|(sequence, dims)| self.sequences.contains(*sequence) && self.passes.contains(dims.pass))
            .map(|&(_, dims)| dims)
            .collect();
        let last_pass = passes.iter().map(|(_, dims)| dims.pass).max().unwrap_or(0);
        if here.is_empty() || self.passes.last().is_some_and(|pass| pass > last_pass) {
            let pass = self.passes.last().unwrap_or(0);
            return none(
                format!("the run has no pass {pass}"),
                format!("passes from 0 to {last_pass}; -n sets their number"),
            );
        }
        self.check_axes(card, &here)?;
        let present = here.iter().filter(|&&dims| self.stage.present(&sizes, dims));
        if let Some(last) = self.positions.as_ref().and_then(Selection::last) {
            let end = present.map(|dims| dims.keys()).max().unwrap_or(0);
            if last >= end {
                return none(
                    format!("the run has no position {last}"),
                    format!("positions from 0 to {}", end - 1),
                );
            }
        }
        Ok(())
    }

    /// Checks the stage and the indices in `passes`.
    fn check_axes(&self, card: &ModelCard, passes: &[PassDims]) -> Result<()> {
        let sizes = card.sizes();
        let layers: Vec<_> = match self.stage.in_layer() {
            true => self.layers.below(sizes.layers).into_iter().map(Some).collect(),
            false => vec![None],
        };
        let has_layer = |dims| layers.iter().any(|&layer| self.stage.present_in(&sizes, dims, layer));
        let present: Vec<PassDims> = passes.iter().copied().filter(|&dims| has_layer(dims)).collect();
        if present.is_empty() {
            return Err(absent(Step::Stage(self.stage), card, passes[0], layers.first().copied().flatten()));
        }
        for (at, selected) in &self.index {
            let axis = self.stage.axes()[*at];
            let longest = present.iter().max_by_key(|&&dims| sizes.axis(axis, dims));
            if let (Some(last), Some(&dims)) = (selected.last(), longest)
                && last >= sizes.axis(axis, dims)
            {
                let length = sizes.axis(axis, dims);
                return Err(Error::usage(past_the_last(axis, last, length, dims))
                    .expected(format!("numbers below {length}"))
                    .next("name cells that this run has"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_is_a_star_or_a_list_of_numbers_and_ranges() {
        let below = |text: &str| Selection::parse(text).map(|selected| selected.below(5));
        assert_eq!(below("*"), Ok(vec![0, 1, 2, 3, 4]));
        assert_eq!(below("3, 0-1"), Ok(vec![0, 1, 3]));
        assert_eq!(below("4-9"), Ok(vec![4]));
        for wrong in ["", "-1", "3-2", "a", "1,", "99999999999999999999"] {
            assert!(below(wrong).is_err(), "{wrong}");
        }
    }
}
