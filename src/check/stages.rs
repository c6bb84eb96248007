//! One stage against its rule in float64.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use super::distance::Sums;
use super::sample::Sample;
use crate::backend::{Backend, WholeRows};
use crate::error::{Error, Result};
use crate::explain::{Fold, Folder, Held, Numbers, Place, Rules, SiteRules};
use crate::model::Model;
use crate::stop::Stop;
use crate::trace::{Frame, Site, Stage, Values, WeightRows};

/// The frames that are held.
pub(super) type Frames = HashMap<Site, Arc<Frame>>;

/// Cells that a thread takes at once.
const CELLS: usize = 1 << 12;

/// A stage, its rules and its operands.
struct Stages<'a, B: Backend> {
    model: &'a Model<B>,
    site: Site,
    rules: SiteRules<'a>,
    found: Numbers<'a>,
    held: Held<'a>,
    stop: &'a Stop,
}

/// How far the cells of `site` are from what their rules give in float64: all of them, or of a product those of the
/// rows that `sample` has. Nothing for what is given.
///
/// # Errors
/// Where the backend fails or was asked to stop.
pub(super) fn distance<B: Backend>(
    model: &Model<B>,
    rules: &Rules,
    site: Site,
    frames: &Frames,
    sample: Sample,
) -> Result<Option<Sums>> {
    let frame = |site: Site| {
        frames.get(&site).ok_or_else(|| Error::usage(format!("{site} was not recorded, or let go too early")))
    };
    let Some(of) = rules.of(site) else { return Err(Error::usage(format!("no rule is known for {site}"))) };
    let mut held = Held::default();
    for source in rules.sources(site) {
        held.add(Place::Stage(source), 0, numbers(frame(source)?));
    }
    let frame = frame(site)?;
    let stage = Stages { model, site, rules: of, found: numbers(frame), held, stop: model.backend.stop() };
    Ok(match site.stage {
        Stage::Tokens => None,
        Stage::Embedding => Some(stage.rows_of_table()?),
        _ => Some(match stage.rules.matrix() {
            Some(matrix) => stage.product(matrix, sample)?,
            None => stage.cells()?,
        }),
    })
}

/// The matrix of a stage that is a product with one, as a question to the model: all of its rows.
pub(super) fn weight_rows(place: Place, rows: Range<usize>) -> Option<WeightRows> {
    let Place::Weight(layer, weight) = place else { return None };
    Some(WeightRows { run: crate::trace::Run::ITSELF, layer, weight, rows })
}

/// The values of a frame.
pub(super) fn numbers(frame: &Frame) -> Numbers<'_> {
    match frame.values() {
        Values::F32(values) => Numbers::F32(values),
        Values::I64(values) => Numbers::I64(values),
        Values::I8(values) => Numbers::I8(values),
    }
}

impl<'a, B: Backend> Stages<'a, B> {
    fn found(&self, at: usize) -> f64 {
        match self.found {
            Numbers::F32(values) => f64::from(values[at]),
            Numbers::I8(values) => f64::from(values[at]),
            Numbers::I64(values) => values[at] as f64,
            Numbers::Int8(_) => f64::NAN,
        }
    }

    /// Compares the cells that `at` names.
    fn compare(&self, folder: &mut Folder, held: &Held<'_>, at: impl Iterator<Item = usize>) -> Sums {
        let mut sums = Sums::default();
        for at in at {
            sums.add(at, self.found(at), &folder.fold(&self.rules.cell(at), held));
        }
        sums
    }

    /// All cells of a stage that reads no matrix.
    fn cells(&self) -> Result<Sums> {
        let (weight, _) = self.rules.weights();
        let vector = match weight.and_then(|place| weight_rows(place, 0..1)) {
            Some(rows) => self.model.rows(&rows)?,
            None => Vec::new(),
        };
        let mut held = self.held.clone();
        weight.into_iter().for_each(|place| held.add(place, 0, Numbers::F32(&vector)));
        let count = self.rules.count();
        let part = |part: usize| {
            self.stop.check()?;
            let cells = part * CELLS..count.min((part + 1) * CELLS);
            Ok(self.compare(&mut Folder::default(), &held, cells))
        };
        let parts = (0..count.div_ceil(CELLS)).into_par_iter().map(part);
        parts.try_reduce(Sums::default, |a, b| Ok(a.merge(b)))
    }

    /// The rows of the embedding table that the ids name.
    fn rows_of_table(&self) -> Result<Sums> {
        let (Some(table), _) = self.rules.weights() else { return Ok(Sums::default()) };
        let mut sums = Sums::default();
        for cells in self.rules.tokens() {
            self.stop.check()?;
            let Fold::Lookup { id, .. } = self.rules.cell(cells.start).fold else { continue };
            let id = self.held.number(id) as usize;
            let Some(rows) = weight_rows(table, id..id + 1) else { continue };
            let row = self.model.rows(&rows)?;
            let mut held = self.held.clone();
            held.add(table, id * row.len(), Numbers::F32(&row));
            sums = sums.merge(self.compare(&mut Folder::default(), &held, cells));
        }
        Ok(sums)
    }

    /// A product with a matrix: a row of it for all tokens, then the next.
    fn product(&self, matrix: Place, sample: Sample) -> Result<Sums> {
        let (_, bias) = self.rules.weights();
        let biases = match bias.and_then(|place| weight_rows(place, 0..1)) {
            Some(rows) => self.model.rows(&rows)?,
            None => Vec::new(),
        };
        let mut held = self.held.clone();
        bias.into_iter().for_each(|place| held.add(place, 0, Numbers::F32(&biases)));
        let (outputs, inputs) = self.rules.shape();
        let mut sums = Sums::default();
        for run in sample.of(number(self.site), outputs) {
            self.stop.check()?;
            let Some(rows) = weight_rows(matrix, run.clone()) else { continue };
            let mut compare = |numbers: Numbers<'_>| {
                let mut held = held.clone();
                held.add(matrix, run.start * inputs, numbers);
                let row = |output: usize| {
                    if self.stop.asked() {
                        return Sums::default();
                    }
                    let cells = self.rules.tokens().map(|cells| cells.start + output);
                    self.compare(&mut Folder::default(), &held, cells)
                };
                let found = run.clone().into_par_iter().map(row).reduce(Sums::default, Sums::merge);
                sums = sums.merge(found);
            };
            if self.model.backend.precision().group().is_some() {
                self.model.int8_rows(&rows, &mut |whole| {
                    match whole {
                        WholeRows::Int8(rows) => compare(Numbers::Int8(rows)),
                        // What the blocks stand for, times what the int8 values stand for.
                        WholeRows::Blocks(_) => compare(Numbers::F32(&self.model.rows(&rows)?)),
                    }
                    Ok(())
                })?;
            } else {
                compare(Numbers::F32(&self.model.rows(&rows)?));
            }
        }
        self.stop.check()?;
        Ok(sums)
    }
}

/// A number of a stage's matrix, for [`Sample::of`]: another one for each.
pub(super) fn number(site: Site) -> usize {
    site.layer.map_or(0, |layer| layer + 1) * Stage::ALL.len() + site.stage as usize
}
