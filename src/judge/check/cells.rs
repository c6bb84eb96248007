//! The cells of one stage, computed by their rules in float64 from the model's weights.

use std::ops::Range;

use rayon::prelude::*;

use super::sample::Sample;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::explain::{Exact, Fold, Folder, Held, Numbers, Place, Rule, Rules, SiteRules};
use llama_trace_core::stop::Stop;
use llama_trace_core::trace::{Site, Stage, WeightRows};
use llama_trace_engine::backend::{SeeGroups, WholeRows};
use llama_trace_engine::model::Model;

/// Cells per work item of a thread.
const CELLS: usize = 1 << 12;

/// Reads rows of a weight as float32; a vector has one row.
pub type ReadRows<'a> = &'a dyn Fn(Place, Range<usize>) -> Result<Vec<f32>>;

/// A modification of the rules or weights, to simulate a mistake.
pub trait Change: Sync {
    /// Returns the rule of cell `at` of `site`. It replaces `rule`.
    fn rule(&self, _site: Site, _at: usize, rule: Rule) -> Rule {
        rule
    }

    /// Returns the value of cell `at` of `site`. It replaces `value`, the result of the cell's rule.
    fn value(&self, _site: Site, _at: usize, value: Exact) -> Exact {
        value
    }

    /// Returns rows of a weight. They replace the rows that `read` returns.
    ///
    /// # Errors
    /// The errors of `read`.
    fn rows(&self, place: Place, rows: Range<usize>, read: ReadRows<'_>) -> Result<Vec<f32>> {
        read(place, rows)
    }
}

/// No modification.
#[derive(Clone, Copy, Debug)]
pub struct Nothing;

impl Change for Nothing {}

/// Weights as the rules read them: those of a model, or numbers without a model.
pub trait ReadWeights: Sync {
    /// Rows of a weight as float32; a vector has one row.
    ///
    /// # Errors
    /// [`Error::Usage`] if there is no such weight or row, and the errors of the backend.
    fn rows(&self, at: &WeightRows) -> Result<Vec<f32>>;

    /// Calls `see` with rows of a matrix as the int8 values that are multiplied, if products run in int8.
    ///
    /// # Errors
    /// The errors of [`ReadWeights::rows`] and those of `see`.
    fn int8_rows(&self, at: &WeightRows, see: SeeGroups<'_>) -> Result<()>;

    /// The request that stops the work on these weights.
    fn stop(&self) -> &Stop;
}

impl ReadWeights for Model {
    fn rows(&self, at: &WeightRows) -> Result<Vec<f32>> {
        self.rows(at)
    }

    fn int8_rows(&self, at: &WeightRows, see: SeeGroups<'_>) -> Result<()> {
        self.int8_rows(at, see)
    }

    fn stop(&self) -> &Stop {
        self.backend.stop()
    }
}

/// The cells of a stage and their operands.
pub struct Cells<'a> {
    model: &'a dyn ReadWeights,
    site: Site,
    whole: bool,
    rules: SiteRules<'a>,
    held: Held<'a>,
    change: &'a dyn Change,
    stop: &'a Stop,
}

/// A weight as a query to the model.
pub(crate) fn weight_rows(place: Place, rows: Range<usize>) -> Option<WeightRows> {
    let Place::Weight(layer, weight) = place else { return None };
    Some(WeightRows { run: llama_trace_core::trace::Run::ITSELF, layer, weight, rows })
}

/// A distinct number for each stage's matrix, for [`Sample::of`].
pub(super) fn number(site: Site) -> usize {
    site.layer.map_or(0, |layer| layer + 1) * Stage::ALL.len() + site.stage as usize
}

/// The rows of the matrix of `site` in `sample`; empty if its rules have no matrix.
pub fn rows(site: Site, rules: &SiteRules, sample: Sample) -> Vec<Range<usize>> {
    match rules.matrix() {
        Some(_) => sample.of(number(site), rules.shape().0),
        None => Vec::new(),
    }
}

impl<'a> Cells<'a> {
    /// The cells of `site`, whose rules are in `rules`; `held` has the stages of their operands.
    ///
    /// # Errors
    /// [`Error::Usage`] if `site` has no rule.
    pub fn new(
        model: &'a dyn ReadWeights,
        rules: &'a Rules,
        site: Site,
        held: Held<'a>,
        change: &'a dyn Change,
    ) -> Result<Self> {
        let whole = rules.card().precision.group().is_some();
        let Some(rules) = rules.of(site) else {
            return Err(Error::usage(format!("no rule is known for {site}")));
        };
        Ok(Self { model, site, whole, rules, held, change, stop: model.stop() })
    }

    /// Passes every cell with the result of its rule to `see`, in any order. For a product with a matrix, passes only
    /// the cells of `rows` ([`rows`]). Returns the merged results; `None` for inputs, which have no rule.
    ///
    /// # Errors
    /// The errors of the backend, and a stop request.
    pub fn fold<S: Default + Send>(
        &self,
        rows: &[Range<usize>],
        see: &(impl Fn(&mut S, usize, &Exact) + Sync),
        merge: impl Fn(S, S) -> S + Send + Sync + Copy,
    ) -> Result<Option<S>> {
        let fold = |held: &Held<'_>, at: &mut dyn Iterator<Item = usize>| {
            let (mut seen, mut folder) = (S::default(), Folder::default());
            for at in at {
                let rule = self.change.rule(self.site, at, self.rules.cell(at));
                let exact = self.change.value(self.site, at, folder.fold(&rule, held));
                see(&mut seen, at, &exact);
            }
            seen
        };
        Ok(match self.site.stage {
            Stage::Tokens => None,
            Stage::Embedding => Some(self.rows_of_table(&fold, merge)?),
            _ => Some(match self.rules.matrix() {
                Some(matrix) => self.product(matrix, rows, &fold, merge)?,
                None => self.cells(&fold, merge)?,
            }),
        })
    }

    fn rows(&self, place: Place, rows: Range<usize>) -> Result<Vec<f32>> {
        let read = |place: Place, rows: Range<usize>| match weight_rows(place, rows) {
            Some(rows) => self.model.rows(&rows),
            None => Ok(Vec::new()),
        };
        self.change.rows(place, rows, &read)
    }

    /// All cells of a stage without a matrix.
    fn cells<S: Default + Send>(
        &self,
        fold: &(impl Fn(&Held<'_>, &mut dyn Iterator<Item = usize>) -> S + Sync),
        merge: impl Fn(S, S) -> S + Send + Sync + Copy,
    ) -> Result<S> {
        // The weight and the bias of a norm.
        let (weight, bias) = self.rules.weights();
        let places = [weight, bias].into_iter().flatten();
        let vectors = places.map(|place| Ok((place, self.rows(place, 0..1)?))).collect::<Result<Vec<_>>>()?;
        let mut held = self.held.clone();
        vectors.iter().for_each(|(place, vector)| held.add(*place, 0, Numbers::F32(vector)));
        let count = self.rules.count();
        let part = |part: usize| {
            self.stop.check()?;
            let mut cells = part * CELLS..count.min((part + 1) * CELLS);
            Ok(fold(&held, &mut cells))
        };
        let parts = (0..count.div_ceil(CELLS)).into_par_iter().map(part);
        parts.try_reduce(S::default, |a, b| Ok(merge(a, b)))
    }

    /// The rows of the embedding table for the ids.
    fn rows_of_table<S: Default + Send>(
        &self,
        fold: &impl Fn(&Held<'_>, &mut dyn Iterator<Item = usize>) -> S,
        merge: impl Fn(S, S) -> S,
    ) -> Result<S> {
        let (Some(table), _) = self.rules.weights() else { return Ok(S::default()) };
        let mut seen = S::default();
        for mut cells in self.rules.tokens() {
            self.stop.check()?;
            let Fold::Lookup { id, .. } = self.rules.cell(cells.start).fold else { continue };
            let id = self.held.number(id) as usize;
            let row = self.rows(table, id..id + 1)?;
            let mut held = self.held.clone();
            held.add(table, id * row.len(), Numbers::F32(&row));
            seen = merge(seen, fold(&held, &mut cells));
        }
        Ok(seen)
    }

    /// A product with a matrix: each row for all tokens.
    fn product<S: Default + Send>(
        &self,
        matrix: Place,
        rows: &[Range<usize>],
        fold: &(impl Fn(&Held<'_>, &mut dyn Iterator<Item = usize>) -> S + Sync),
        merge: impl Fn(S, S) -> S + Send + Sync + Copy,
    ) -> Result<S> {
        let (_, bias) = self.rules.weights();
        let biases = match bias {
            Some(place) => self.rows(place, 0..1)?,
            None => Vec::new(),
        };
        let mut held = self.held.clone();
        bias.into_iter().for_each(|place| held.add(place, 0, Numbers::F32(&biases)));
        let (_, inputs) = self.rules.shape();
        let mut seen = Some(S::default());
        for run in rows {
            self.stop.check()?;
            let mut fold = |numbers: Numbers<'_>| {
                let mut held = held.clone();
                held.add(matrix, run.start * inputs, numbers);
                let row = |output: usize| {
                    if self.stop.asked() {
                        return S::default();
                    }
                    fold(&held, &mut self.rules.tokens().map(|cells| cells.start + output))
                };
                let found = run.clone().into_par_iter().map(row).reduce(S::default, merge);
                seen = seen.take().map(|seen| merge(seen, found));
            };
            if self.whole {
                let Some(rows) = weight_rows(matrix, run.clone()) else { continue };
                self.model.int8_rows(&rows, &mut |whole| {
                    match whole {
                        WholeRows::Int8(rows) => fold(Numbers::Int8(rows)),
                        // The dequantised blocks times the dequantised activations.
                        WholeRows::Blocks(_) => fold(Numbers::F32(&self.model.rows(&rows)?)),
                    }
                    Ok(())
                })?;
            } else {
                fold(Numbers::F32(&self.rows(matrix, run.clone())?));
            }
        }
        self.stop.check()?;
        Ok(seen.unwrap_or_default())
    }
}
