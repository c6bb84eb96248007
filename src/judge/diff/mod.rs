//! Finds the first difference between two runs. [`compare`] judges B by A, the reference, in the order of causes: the
//! model, the text, its tokens, then the stages in the order of the pass.
//!
//! | without a model | with one |
//! |---|---|
//! | the distance of a stage from the same stage of the reference includes the error of its inputs | the stage is computed from the run's own inputs by its rule in float64: only its own error is left |
//! | its tolerance is in a table ([`tolerance`]) | its tolerance is measured on these inputs: float32 against float64, bfloat16 against float32 |
//! | | known mistakes are tried on the first stage that differs ([`NAMES`]) |
//!
//! If the two runs store RoPE's pairs in different orders, both are compared in one order.
//!
//! There is no second forward pass: the rules are those of [`llama_trace_core::explain`]. Stages come one at a time
//! from a [`Traced`]; with a model, those of one layer are in memory.

mod bench;
mod causes;
mod comparison;
mod difference;
mod drawn;
mod given;
mod injection;
mod judge;
mod mistake_search;
mod mistakes;
mod one_stage;
mod pairs;
mod report;
mod sixteen;
mod streamed;
pub mod tolerance;
mod traced;
mod whole_stage;

use comparison::Comparison;
use difference::{Pair, shape};
use injection::Injection;
use judge::{Judge, Judged, Table};
use pairs::InOrder;

use crate::check::Sample;
use llama_trace_core::config::Precision;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::{Axis, Frame, PassDims, Site, Sizes, Stage};
use llama_trace_engine::model::Model;

pub(crate) use bench::Frames;
pub use difference::fitted;
pub use mistakes::{Known, NAMES};
pub use one_stage::Named;
pub(crate) use one_stage::OneStage;
pub use report::{Diagnosis, First, Growth, Kind, Line, Misshapen, Missing, Report, number, whole};
pub use traced::{About, Found, Pass, Traced};

/// The progress of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Stages compared.
    Stages {
        /// The number compared so far.
        done: usize,
        /// The number of all stages.
        of: usize,
    },
    /// Known mistakes tried on the first stage that differs.
    Mistakes {
        /// The number tried so far.
        tried: usize,
        /// The number of all mistakes.
        of: usize,
    },
}

/// Called with the progress of a comparison.
pub type Progress<'a> = &'a dyn Fn(Doing);

/// Compares B with A by the table of tolerances.
///
/// # Errors
/// [`Error::Usage`] if nothing can be compared, and the errors of the runs.
pub fn compare(a: &mut impl Traced, b: &mut impl Traced, progress: Progress<'_>) -> Result<Report> {
    let (sizes, order) = (sizes(a, b)?, pairs::of(a.about()));
    let precision = coarser(a.about(), b.about());
    let caches_fewer = [a.about().may_cache_fewer(), b.about().may_cache_fewer()];
    let note = pairs::note(a.about(), b.about());
    let mut b = InOrder::new(b, order, sizes.head_dim);
    let table = Table { layers: sizes.layers, precision, caches_fewer };
    let mut report = Comparison::new(a, &mut b, None, table)?.run(progress)?;
    report.notes.extend(note);
    Ok(report)
}

/// Compares B with A by means of `model`, whose rules and weights give the error of each stage itself. For large
/// matrices, only the rows in `sample` are computed.
///
/// # Errors
/// The errors of [`compare`], [`Error::Model`] if A is a run of another model, the errors of the backend, and a stop
/// request.
pub fn compare_with(
    model: &Model,
    a: &mut impl Traced,
    b: &mut impl Traced,
    sample: Sample,
    progress: Progress<'_>,
) -> Result<Report> {
    let (order, head_dim) = (Some(model.config.pairing), model.config.head_dim);
    let note = pairs::note(a.about(), b.about());
    let (a, b) = (&mut InOrder::new(a, order, head_dim), &mut InOrder::new(b, order, head_dim));
    let of_model = match serde_json::json!(model.config) {
        serde_json::Value::Object(all) => all,
        _ => serde_json::Map::new(),
    };
    if let Some((name, theirs, ours)) = causes::setting(&a.about().known(), &of_model) {
        return Err(Error::model("this is not the model of the reference")
            .at(&a.about().name)
            .expected(format!("a run of {}: {name} {ours}", model.card().name))
            .found(format!("{name} {theirs}"))
            .next("give the model that A was recorded from"));
    }
    let of_a = (&a.about().fingerprint, a.about().precision);
    if let (Some(weights), Some(precision)) = of_a
        && precision == model.backend.precision()
        && *weights != model.fingerprint()?.weights
    {
        return Err(Error::model("the model's weights differ from the reference's")
            .at(&a.about().name)
            .expected(format!("a run of {}", model.card().name))
            .next("give the model that A was recorded from"));
    }
    let injection = Injection::new(model, a.about(), b.about(), sample);
    let mut report = Comparison::new(a, b, Some(model.sizes()), injection)?.run(progress)?;
    report.notes.extend(note);
    Ok(report)
}

/// The distance between a stage of two runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distance {
    /// ‖b − a‖ / ‖a‖.
    pub error: f64,
    /// The sine of the angle between them, over the values that are finite in both.
    pub sine: f64,
    /// The error of the first token alone, which sees no other token and is not rotated. `None` if the stage has no
    /// tokens, or that token's values are the same in every run.
    pub first: Option<f64>,
}

impl Distance {
    /// Returns whether the first token's values are equal up to rounding.
    pub fn is_near_first(&self) -> bool {
        /// The tolerance of the first token.
        const NEAR: f64 = 0.01;
        self.first.is_some_and(|error| error <= NEAR)
    }
}

/// The distance of `b` from `a` as a stage of a pass; `None` if they do not have the stage's shape.
pub fn distance(site: Site, sizes: &Sizes, dims: PassDims, a: &Frame, b: &Frame) -> Option<Distance> {
    let pair = Pair::new(site, &shape(site, sizes, dims), a, b).ok()?;
    let is_told = site.stage.axes().first() == Some(&Axis::Token)
        && !site.stage.is_rope_table()
        && site.stage != Stage::Mask;
    let row = pair.a.values().len() / dims.tokens.max(1);
    let first = (is_told && dims.tokens > 1 && pair.first == 0).then(|| pair.apart_soon(0..row).error());
    let whole = pair.apart_soon(pair.first..pair.a.values().len());
    Some(Distance { error: whole.error(), sine: pair.sine(), first })
}

/// The stages that a pass of `dims` does not have because they would equal another stage: masked scores if nothing is
/// hidden. A port may write them anyway.
pub fn beyond(sizes: &Sizes, dims: PassDims) -> Vec<Site> {
    let stages = Stage::ALL.iter().filter(|stage| stage.in_layer() && stage.info().instead.is_some());
    stages
        .flat_map(|&stage| (0..sizes.layers).map(move |layer| Site::layer(dims.pass, layer, stage)))
        .filter(|site| !site.present(sizes, dims))
        .collect()
}

/// The less exact of the precisions of two runs.
fn coarser(a: &About, b: &About) -> Precision {
    let of = |about: &About| about.precision.unwrap_or(Precision::F32);
    tolerance::coarser(of(a), of(b))
}

/// The sizes of the model, from the first run that has its card.
fn sizes(a: &impl Traced, b: &impl Traced) -> Result<Sizes> {
    let cards = [&a.about().card, &b.about().card];
    let card = cards.into_iter().flatten().next();
    card.map(llama_trace_core::trace::ModelCard::sizes).ok_or_else(|| {
        Error::usage("neither run says which model it comes from")
            .expected("a manifest.json with a `card`, or --model")
            .next("add --model, or compare with an export")
    })
}
