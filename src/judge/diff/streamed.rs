//! Compares two runs whose files have the layout of the stage: part by part, on all processors, without keeping a stage
//! in memory.

use std::ops::Range;

use ndarray::Array1;
use rayon::prelude::*;

use super::difference::{Apart, is_hidden, odd, value};
use super::sixteen::Bits;
use super::traced::Traced;
use llama_trace_core::config::CacheDtype;
use llama_trace_core::error::Result;
use llama_trace_core::stop;
use llama_trace_core::trace::frame::Summing;
use llama_trace_core::trace::{Frame, FrameData, Site, Stage, Stats, Values};

/// The number of values that are read at once from each run.
const AT_ONCE: usize = 1 << 20;

/// The number of keys that are examined together if some may be hidden.
const RUN: usize = 64;

/// The number of values that are summed together. The order of the sums does not depend on the number of processors.
const PART: usize = 1 << 14;

/// The result for a stage, after all its parts.
pub(super) struct Streamed {
    pub(super) apart: Apart,
    /// For a cache, the 16-bit number types that A's and B's values fit.
    pub(super) sixteen: [Option<CacheDtype>; 2],
    /// Whether the last row has the same bits in both runs.
    pub(super) same_last: bool,
}

/// The rows of a stage of `shape`, in parts.
fn parts(shape: &[usize]) -> impl Iterator<Item = Range<usize>> {
    let (width, rows) = rows(shape);
    let at_once = (AT_ONCE / width).max(1);
    (0..rows).step_by(at_once).map(move |first| first..rows.min(first + at_once))
}

/// The row length and the number of rows of a stage of `shape`.
fn rows(shape: &[usize]) -> (usize, usize) {
    let Some((&width, outer)) = shape.split_last() else { return (1, 0) };
    (width.max(1), outer.iter().product())
}

/// Compares `site` of both runs. `None` if one of them must compute or convert its values first; the inner error
/// describes damaged values.
///
/// # Errors
/// [`llama_trace_core::error::Error::Interrupted`] after a stop request.
pub(super) fn compare(
    a: &impl Traced,
    b: &impl Traced,
    site: Site,
    shape: &[usize],
) -> Result<std::result::Result<Option<Streamed>, String>> {
    let (width, count) = rows(shape);
    let mut seen = Streamed { apart: Apart::default(), sixteen: [None; 2], same_last: false };
    let mut bits = [Bits::default(), Bits::default()];
    for rows in parts(shape) {
        stop::check()?;
        let (ours, theirs) = match (a.rows(site, rows.clone()), b.rows(site, rows.clone())) {
            (Err(why), _) => return Ok(Err(format!("A: {why}"))),
            (_, Err(why)) => return Ok(Err(format!("B: {why}"))),
            (Ok(Some(ours)), Ok(Some(theirs))) if ours.len() == theirs.len() => (ours, theirs),
            _ => return Ok(Ok(None)),
        };
        let first = rows.start * width;
        let parts: Vec<Apart> = (0..ours.len().div_ceil(PART))
            .into_par_iter()
            .map(|part| {
                let part = part * PART..ours.len().min((part + 1) * PART);
                let at = first + part.start;
                of_part(site.stage, at, ours.slice(part.clone()), theirs.slice(part))
            })
            .collect();
        parts.iter().for_each(|part| seen.apart.merge(part));
        if matches!(site.stage, Stage::CacheK | Stage::CacheV) {
            bits[0].see(ours);
            bits[1].see(theirs);
        }
        if rows.end == count {
            let last = ours.len() - width..ours.len();
            seen.same_last = same(ours.slice(last.clone()), theirs.slice(last));
        }
        a.done(site, rows.clone());
        b.done(site, rows);
    }
    seen.sixteen = bits.map(|bits| bits.dtype());
    Ok(Ok(Some(seen)))
}

/// A description of unusual values of B at `site`.
///
/// # Errors
/// [`llama_trace_core::error::Error::Interrupted`] after a stop request.
pub(super) fn oddities(
    a: &impl Traced,
    b: &impl Traced,
    site: Site,
    shape: &[usize],
) -> Result<Option<String>> {
    let (Some(ours), Some(theirs)) = (stats(a, site, shape)?, stats(b, site, shape)?) else {
        return Ok(None);
    };
    Ok(odd([ours, theirs], shape.iter().product()))
}

/// The statistics of a stage of a run, if its values are available.
fn stats(of: &impl Traced, site: Site, shape: &[usize]) -> Result<Option<Stats>> {
    let mut sum = Summing::default();
    for rows in parts(shape) {
        stop::check()?;
        let Ok(Some(values)) = of.rows(site, rows.clone()) else { return Ok(None) };
        sum.add_values(values);
        of.done(site, rows);
    }
    Ok(Some(sum.stats()))
}

/// The value of a run at a cell; NaN if it is not available.
pub(super) fn number(of: &impl Traced, site: Site, shape: &[usize], at: usize) -> f64 {
    let (width, _) = rows(shape);
    let row = of.rows(site, at / width..at / width + 1);
    row.ok().flatten().and_then(|row| row.numbers().nth(at % width)).unwrap_or(f64::NAN)
}

/// The last row of a stage of a run, if it is available.
pub(super) fn last_row(of: &impl Traced, site: Site, shape: &[usize]) -> Option<Frame> {
    let (_, count) = rows(shape);
    let data = match of.rows(site, count.checked_sub(1)?..count).ok()?? {
        Values::F32(values) => FrameData::F32(Array1::from(values.to_vec()).into_dyn()),
        Values::I64(values) => FrameData::I64(Array1::from(values.to_vec()).into_dyn()),
        Values::I8(values) => FrameData::I8(Array1::from(values.to_vec()).into_dyn()),
    };
    Some(Frame { site, axes: site.stage.axes(), data })
}

/// The difference of some values, the first of which is cell `at`.
fn of_part(stage: Stage, at: usize, ours: Values<'_>, theirs: Values<'_>) -> Apart {
    let mut apart = Apart::default();
    let hides = matches!(stage, Stage::Mask | Stage::MaskedScores);
    let one_by_one = |apart: &mut Apart, at: usize, ours: Values<'_>, theirs: Values<'_>| {
        for (i, (a, b)) in ours.numbers().zip(theirs.numbers()).enumerate() {
            apart.add(at + i, value(stage, b), value(stage, a));
        }
    };
    let (Values::F32(a), Values::F32(b)) = (ours, theirs) else {
        one_by_one(&mut apart, at, ours, theirs);
        return apart;
    };
    if !hides {
        if !apart.add_finite(at, a, b) {
            one_by_one(&mut apart, at, ours, theirs);
        }
        return apart;
    }
    // Hidden keys are next to each other. A group of keys that are all hidden in both has no difference; a group
    // without hidden keys is summed as usual.
    for (i, (a, b)) in a.chunks(RUN).zip(b.chunks(RUN)).enumerate() {
        let hidden = |values: &[f32]| values.iter().fold(0, |count, x| count + usize::from(is_hidden(*x)));
        let at = at + i * RUN;
        match hidden(a) + hidden(b) {
            all if all == a.len() + b.len() => {}
            0 if apart.add_finite(at, a, b) => {}
            _ => one_by_one(&mut apart, at, Values::F32(a), Values::F32(b)),
        }
    }
    apart
}

fn same(a: Values<'_>, b: Values<'_>) -> bool {
    match (a, b) {
        (Values::F32(a), Values::F32(b)) => a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits()),
        (a, b) => a.numbers().eq(b.numbers()),
    }
}
