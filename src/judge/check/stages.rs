//! One stage compared with its rule in float64.

use std::collections::HashMap;
use std::sync::Arc;

use super::cells::{self, Cells, Nothing};
use super::distance::Sums;
use super::sample::Sample;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::explain::{Held, Numbers, Place, Rules};
use llama_trace_core::trace::{Frame, Site, Values};
use llama_trace_engine::model::Model;

/// The frames in memory.
pub(super) type Frames = HashMap<Site, Arc<Frame>>;

/// The distance of the cells of `site` from their rules in float64: all cells, or for a product those of the rows in
/// `sample`. `None` for inputs, which have no rule.
///
/// # Errors
/// The errors of the backend, and a stop request.
pub(super) fn distance(
    model: &Model,
    rules: &Rules,
    site: Site,
    frames: &Frames,
    sample: Sample,
) -> Result<Option<Sums>> {
    let frame = |site: Site| {
        frames
            .get(&site)
            .ok_or_else(|| Error::usage(format!("{site} was not recorded, or was dropped too early")))
    };
    let mut held = Held::default();
    for source in rules.sources(site) {
        held.add(Place::Stage(source), 0, numbers(frame(source)?));
    }
    let found = numbers(frame(site)?);
    let found = |at: usize| match found {
        Numbers::F32(values) => f64::from(values[at]),
        Numbers::I8(values) => f64::from(values[at]),
        Numbers::I64(values) => values[at] as f64,
        Numbers::Int8(_) => f64::NAN,
    };
    let cells = Cells::new(model, rules, site, held, &Nothing)?;
    let rows = rules.of(site).map_or_else(Vec::new, |rules| cells::rows(site, &rules, sample));
    cells.fold(&rows, &|sums: &mut Sums, at, exact| sums.add(at, found(at), exact), Sums::merge)
}

/// The values of a frame.
pub(super) fn numbers(frame: &Frame) -> Numbers<'_> {
    match frame.values() {
        Values::F32(values) => Numbers::F32(values),
        Values::I64(values) => Numbers::I64(values),
        Values::I8(values) => Numbers::I8(values),
    }
}
