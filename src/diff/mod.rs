//! Where a run first parts from another: [`compare`] judges B by A, the reference, in the order of causes: the model,
//! the text, its tokens, then the stages in the order of the pass.
//!
//! | without a model | with one |
//! |---|---|
//! | a stage is as far from the reference's as it is, what came with its inputs included | the stage is computed from the run's own inputs, by its rule in float64: what is left is what the stage itself brought in |
//! | a table says how far it may be ([`tolerance`]) | that is measured on these very inputs: float32 against float64, bfloat16 against float32 |
//! | | on the first stage that differs known mistakes are tried ([`NAMES`]) |
//!
//! There is no second forward pass: the rules are those of [`crate::explain`]. Stages come one at a time from a
//! [`Traced`], and with a model those of a layer are held.

mod bench;
mod causes;
mod difference;
mod injection;
mod mistakes;
mod report;
mod streamed;
pub mod tolerance;
mod traced;

use std::collections::HashMap;
use std::sync::Arc;

use difference::{Apart, Pair, keeps_fewer, shape};
use injection::Injection;
use streamed::Streamed;

use crate::backend::Backend;
use crate::check::Sample;
use crate::config::Precision;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::trace::{Address, Frame, PassDims, Site, Sizes, Stage, Step, Values};

pub use difference::fitted;
pub use mistakes::NAMES;
pub use report::{Diagnosis, First, Growth, Kind, Line, Missing, Report, number};
pub use traced::{About, Found, Pass, Traced};

/// What judges a stage.
trait Judge {
    /// A pass begins.
    fn begin(&mut self, dims: PassDims);

    /// Judges a stage that both have.
    fn see(&mut self, pair: &Pair) -> Result<Judged>;

    /// Judges a stage by what was seen of it part by part; none for who needs all of it.
    fn see_streamed(&mut self, _site: Site, _seen: &Streamed) -> Option<Judged> {
        None
    }

    /// Whether stages may come part by part.
    fn streams(&self) -> bool {
        false
    }

    /// Takes note of a stage that A alone has.
    fn alone(&mut self, _frame: Frame) {}

    /// The mistakes that would give what B has of a stage of the part of the pass that was seen last.
    fn diagnose(&mut self, _site: Site) -> Result<Vec<Diagnosis>> {
        Ok(Vec::new())
    }

    /// What was seen of the layer, or before or after the layers, is over.
    fn part_done(&mut self, _last: Site) {}

    /// Whether tolerances are measured.
    fn measures(&self) -> bool {
        false
    }
}

/// What a judge says of a stage.
struct Judged {
    line: Line,
    /// The cell of largest error, where something differs.
    at: Option<usize>,
    /// What else is to be said where it differs.
    note: Option<String>,
}

/// The cell of a stage that is told of, and what else is known of B's.
struct Cell<'a> {
    at: usize,
    shape: &'a [usize],
    /// A's value and B's.
    values: [f64; 2],
    odd: Option<String>,
    print: Option<u64>,
}

/// Judges by the table.
struct Table {
    layers: usize,
    precision: Precision,
}

impl Judge for Table {
    fn begin(&mut self, _: PassDims) {}

    fn see(&mut self, pair: &Pair) -> Result<Judged> {
        Ok(self.judge(pair.site, &pair.apart(), keeps_fewer(&pair.a) || keeps_fewer(&pair.b)))
    }

    fn see_streamed(&mut self, site: Site, seen: &Streamed) -> Option<Judged> {
        Some(self.judge(site, &seen.apart, seen.keeps_fewer))
    }

    fn streams(&self) -> bool {
        true
    }
}

impl Table {
    fn judge(&mut self, site: Site, apart: &Apart, keeps_fewer: bool) -> Judged {
        // What is read from a cache of 16 bits is as far off as bfloat16 is.
        if self.precision == Precision::F32 && keeps_fewer {
            self.precision = Precision::Bf16;
        }
        let (error, at) = (apart.error(), apart.cell());
        let tolerance = tolerance::of(site, self.layers, self.precision);
        let line = Line { site, apart: error, error, tolerance, inherited: None };
        Judged { line, at, note: None }
    }
}

/// Told how many stages of how many were compared.
pub type Progress<'a> = &'a dyn Fn(usize, usize);

/// Compares B with A by the table of tolerances.
///
/// # Errors
/// [`Error::Usage`] where nothing can be compared, and those of the runs.
pub fn compare(a: &mut impl Traced, b: &mut impl Traced, progress: Progress<'_>) -> Result<Report> {
    let layers = sizes(a, b)?.layers;
    let precision = coarser(a.about(), b.about());
    Comparison::new(a, b, None, Table { layers, precision })?.run(progress)
}

/// Compares B with A on `model`, whose rules and weights tell what each stage brings in. Of large matrices the rows that
/// `sample` has are computed.
///
/// # Errors
/// As [`compare`], [`Error::Model`] where A is a run of another model, and where the backend fails or was asked to stop.
pub fn compare_with<B: Backend>(
    model: &Model<B>,
    a: &mut impl Traced,
    b: &mut impl Traced,
    sample: Sample,
    progress: Progress<'_>,
) -> Result<Report> {
    let of_model = match serde_json::json!(model.config) {
        serde_json::Value::Object(all) => all,
        _ => serde_json::Map::new(),
    };
    if let Some((name, theirs, ours)) = causes::setting(&a.about().known(), &of_model) {
        return Err(Error::model("the model is another one than the reference's")
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
        return Err(Error::model("the model has other weights than the reference's")
            .at(&a.about().name)
            .expected(format!("a run of {}", model.card().name))
            .next("give the model that A was recorded from"));
    }
    let injection = Injection::new(model, a.about(), b.about(), sample);
    Comparison::new(a, b, Some(model.sizes()), injection)?.run(progress)
}

/// How far `b` is from `a` as a stage of a pass, ‖b − a‖ / ‖a‖, and the sine of the angle between them over the values
/// that are finite in both; none where they have not the stage's shape.
pub fn distance(site: Site, sizes: &Sizes, dims: PassDims, a: &Frame, b: &Frame) -> Option<[f64; 2]> {
    let pair = Pair::new(site, &shape(site, sizes, dims), a, b).ok()?;
    Some([pair.apart().error(), pair.sine()])
}

/// The coarser one of the precisions of two runs.
fn coarser(a: &About, b: &About) -> Precision {
    let of = |about: &About| about.precision.unwrap_or(Precision::F32);
    tolerance::coarser(of(a), of(b))
}

/// The sizes of the model of the first run that says what it is.
fn sizes(a: &impl Traced, b: &impl Traced) -> Result<Sizes> {
    let cards = [&a.about().card, &b.about().card];
    let card = cards.into_iter().flatten().next();
    card.map(crate::trace::ModelCard::sizes).ok_or_else(|| {
        Error::usage("neither run says which model it is of")
            .expected("a manifest.json with a `card`, or --model")
            .next("add --model, or compare with an export")
    })
}

/// Two runs under comparison.
struct Comparison<'a, A, B, J> {
    a: &'a mut A,
    b: &'a mut B,
    judge: J,
    sizes: Sizes,
    report: Report,
    /// The stage that differs first, until the part of the pass that it is in is over.
    waits: Option<Site>,
    /// Stages of B by what is in them, to notice one that is another's.
    seen: HashMap<u64, Site>,
    /// Whether the last row of logits has the same bits in both, and so what is drawn must be the same.
    same_logits: bool,
}

impl<'a, A: Traced, B: Traced, J: Judge> Comparison<'a, A, B, J> {
    /// `known` are the sizes of the model, where neither run says them.
    fn new(a: &'a mut A, b: &'a mut B, known: Option<Sizes>, judge: J) -> Result<Self> {
        let sizes = sizes(a, b).or_else(|error| known.ok_or(error))?;
        let (sizes, report) = (sizes, Report { measured: judge.measures(), ..Report::default() });
        Ok(Self { a, b, judge, sizes, report, waits: None, seen: HashMap::new(), same_logits: false })
    }

    fn run(mut self, progress: Progress<'_>) -> Result<Report> {
        if let Some((first, diagnosis)) = causes::first(self.a.about(), self.b.about()) {
            (self.report.first, self.report.diagnosis) = (Some(first), diagnosis);
        }
        let until = causes::same_until(self.a.about(), self.b.about());
        let passes: Vec<PassDims> = self.a.about().passes.iter().map(|pass| pass.dims).collect();
        let of_b = self.b.about().passes.len();
        let sites: Vec<_> =
            passes.iter().take(until).map(|dims| (*dims, Site::all(&self.sizes, *dims))).collect();
        let (total, mut done) = (sites.iter().map(|(_, sites)| sites.len()).sum(), 0);
        for (number, (dims, sites)) in sites.iter().enumerate() {
            self.judge.begin(*dims);
            for (i, &site) in sites.iter().enumerate() {
                crate::stop::check()?;
                if number >= of_b && of_b > 0 {
                    self.report.missing.push(Missing { site, why: None });
                } else {
                    self.stage(site, *dims)?;
                }
                let next = sites.get(i + 1);
                let part = |site: &Site| (site.layer, site.stage.info().section);
                if next.is_none_or(|next| part(next) != part(&site)) {
                    self.part_done(site)?;
                }
                done += 1;
                progress(done, total);
            }
        }
        if self.report.lines.is_empty() && self.report.first.is_none() {
            return Err(Error::usage("there is nothing to compare: the two have no stage in common")
                .at(&self.b.about().name)
                .expected(format!("stages that {} has", self.a.about().name))
                .found(
                    self.report
                        .missing
                        .first()
                        .and_then(|missing| missing.why.clone())
                        .unwrap_or("none".into()),
                )
                .next("look which files each of them has"));
        }
        Ok(self.report)
    }

    fn stage(&mut self, site: Site, dims: PassDims) -> Result<()> {
        let missing = |why| Missing { site, why };
        let absent =
            |about: &About| about.card.as_ref().is_some_and(|card| !site.stage.present(&card.sizes(), dims));
        if self.judge.streams() && !absent(self.a.about()) && !absent(self.b.about()) {
            let shape = shape(site, &self.sizes, dims);
            match streamed::compare(&*self.a, &*self.b, site, &shape)? {
                Ok(Some(seen)) => return self.streamed(site, &shape, &seen),
                Ok(None) => {}
                Err(why) => {
                    self.report.missing.push(missing(Some(why)));
                    return Ok(());
                }
            }
        }
        let ours = self.a.stage(site)?.frame();
        let theirs = if absent(self.b.about()) { return Ok(()) } else { self.b.stage(site)?.frame() };
        let (a, b) = match (ours, theirs) {
            (Ok(Some(a)), Ok(Some(b))) => (a, b),
            (Ok(None), Ok(_)) => return Ok(()),
            (Err(why), _) => {
                self.report.missing.push(missing(Some(format!("A: {why}"))));
                return Ok(());
            }
            (Ok(a), theirs) => {
                let why = theirs.err().map(|why| format!("B: {why}"));
                self.report.missing.push(missing(why));
                a.into_iter().for_each(|frame| self.judge.alone(Arc::unwrap_or_clone(frame)));
                return Ok(());
            }
        };
        let shape = shape(site, &self.sizes, dims);
        let pair = match Pair::new(site, &shape, &a, &b) {
            Ok(pair) => pair,
            Err(why) => {
                if b.values().is_empty() || a.values().is_empty() {
                    self.report.missing.push(missing(Some(why)));
                } else {
                    self.differs_in_shape(site, &a, &b, &why);
                }
                return Ok(());
            }
        };
        if site.stage == Stage::Logits {
            let last = shape.iter().product::<usize>() - shape.last().copied().unwrap_or(0);
            let bits = |frame: &Frame| {
                frame
                    .values()
                    .slice(last..frame.values().len())
                    .numbers()
                    .map(f64::to_bits)
                    .collect::<Vec<_>>()
            };
            self.same_logits = bits(&pair.a) == bits(&pair.b);
        }
        // Which id is drawn turns on a hair: it follows from logits with the same bits only.
        if matches!(site.stage, Stage::Nucleus | Stage::Sampled) && !self.same_logits {
            return Ok(());
        }
        let judged = self.judge.see(&pair)?;
        let print = match pair.b.values() {
            Values::F32(values) if values.len() > 1 => Some(print(values)),
            _ => None,
        };
        if judged.line.differs() {
            let at = judged.at.unwrap_or(pair.first);
            let cell =
                Cell { at, shape: &shape, values: pair.at(at), odd: difference::oddities(&pair.b), print };
            self.differs(&cell, &judged);
        }
        self.judged(judged, print);
        Ok(())
    }

    /// Takes note of a stage whose values came part by part.
    fn streamed(&mut self, site: Site, shape: &[usize], seen: &Streamed) -> Result<()> {
        if site.stage == Stage::Logits {
            self.same_logits = seen.same_last;
        }
        if matches!(site.stage, Stage::Nucleus | Stage::Sampled) && !self.same_logits {
            return Ok(());
        }
        let Some(judged) = self.judge.see_streamed(site, seen) else { return Ok(()) };
        let is_print = !site.stage.is_ids() && !site.stage.is_int8() && shape.iter().product::<usize>() > 1;
        let print = self.b.print(site).filter(|_| is_print);
        if judged.line.differs() {
            let at = judged.at.unwrap_or(0);
            let values =
                [streamed::number(&*self.a, site, shape, at), streamed::number(&*self.b, site, shape, at)];
            // It takes another look at all of its values.
            let odd = match self.report.first {
                None => streamed::oddities(&*self.b, site, shape)?,
                Some(_) => None,
            };
            self.differs(&Cell { at, shape, values, odd, print }, &judged);
        }
        self.judged(judged, print);
        Ok(())
    }

    fn judged(&mut self, judged: Judged, print: Option<u64>) {
        if let Some(print) = print {
            self.seen.entry(print).or_insert(judged.line.site);
        }
        self.report.lines.push(judged.line);
    }

    /// Takes note of a stage that differs.
    fn differs(&mut self, cell: &Cell<'_>, judged: &Judged) {
        let site = judged.line.site;
        let [ours, theirs] = cell.values;
        let index = crate::trace::block::index_of(cell.shape, cell.at);
        let kind = if site.stage == Stage::Tokens { Kind::Tokens } else { Kind::Stage };
        let difference = First {
            kind,
            address: Address::of(site, Step::Stage(site.stage), &index).to_string(),
            ours: number(ours),
            theirs: number(theirs),
            error: Some(judged.line.error),
            tolerance: Some(judged.line.tolerance),
            site: Some(site),
        };
        self.report.differences.push(difference.clone());
        if self.report.first.is_some() {
            return;
        }
        self.report.first = Some(difference);
        let notes = &mut self.report.notes;
        notes.extend(cell.odd.iter().map(|what| format!("B's {site}: {what}")));
        if let Some(other) = cell.print.and_then(|print| self.seen.get(&print)) {
            notes.push(format!("B's {site} repeats its {other}, value for value"));
        }
        notes.extend(judged.note.clone());
        self.waits = (kind == Kind::Stage).then_some(site);
    }

    /// Of a stage with another shape there is no cell to name.
    fn differs_in_shape(&mut self, site: Site, a: &Frame, b: &Frame, why: &str) {
        let (error, tolerance) = (f64::NAN, 0.0);
        self.report.lines.push(Line { site, apart: error, error, tolerance, inherited: None });
        let difference = First {
            kind: Kind::Stage,
            address: site.to_string(),
            ours: serde_json::json!(difference::listed(a.shape())),
            theirs: serde_json::json!(difference::listed(b.shape())),
            error: None,
            tolerance: None,
            site: Some(site),
        };
        self.report.differences.push(difference.clone());
        if self.report.first.is_none() {
            self.report.first = Some(difference);
            self.report.notes.push(format!("{site}: {why}"));
        }
    }

    fn part_done(&mut self, last: Site) -> Result<()> {
        if let Some(site) = self.waits.take() {
            self.report.diagnosis = self.judge.diagnose(site)?;
        }
        self.judge.part_done(last);
        Ok(())
    }
}

/// A number for values that is another one for others, but for one case in 2⁶⁴.
fn print(values: &[f32]) -> u64 {
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    values.iter().fold(MIX, |print, x| (print.rotate_left(23) ^ u64::from(x.to_bits())).wrapping_mul(MIX))
}
