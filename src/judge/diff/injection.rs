//! The judge with a model. It computes each stage from the reference's inputs and from those of the judged run. This
//! separates the error of the stage itself from the error of its inputs.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use super::bench::{Bench, Exactly, Frames, Otherwise, beside, of_the_run};
use super::difference::{Apart, Pair, floats, frame, value};
use super::judge::Tried;
use super::report::{Diagnosis, Line};
use super::traced::{About, Pass};
use super::{Judge, Judged, Table, sixteen, tolerance};
use crate::check::{Nothing, Sample, TOGETHER};
use llama_trace_core::config::{CacheDtype, ModelConfig, Precision};
use llama_trace_core::error::Result;
use llama_trace_core::explain::Rules;
use llama_trace_core::trace::stage::{Rounded, Section};
use llama_trace_core::trace::{Frame, FrameData, ModelCard, PassDims, Sampling, Site, Stage};
use llama_trace_engine::model::Model;

/// The smallest tolerance of a float32 stage: a few units in its last place.
const LEAST: f64 = 1e-6;

/// The largest tolerance, whatever the reference's own error on these inputs.
const MOST: f64 = 2e-5;

/// Tolerance of a float32 stage as a multiple of the reference's error, because other programs sum in another order.
const ORDERS: f64 = 16.0;

/// Tolerance of a bfloat16 stage as a multiple of the error of rounding by the rules, because other programs round at
/// other points.
const PLACES: f64 = 6.0;

/// The tolerance of a bfloat16 stage divided by this number is the error that the actual mistake may leave: twice the
/// error of rounding by the rules.
const EXPLAINED: f64 = PLACES / 2.0;

/// The smallest tolerance of a bfloat16 stage.
const LEAST_ROUNDED: f64 = 1e-2;

/// Factor for the rounding of earlier layers in bfloat16: the tolerance of a stage in layer L grows by at least this
/// factor times √(L + 1). A layer's inputs are inexact, and products and norms amplify the error. Measured on the
/// built-in model and the golden models in transformers: the worst case uses 0.8 of the tolerance.
const PASSED_ON: f64 = 2.0;

/// Tolerance of an int8 product.
const WHOLE: f64 = 0.05;

/// Tolerance for a cache that keeps at least 8 significant bits of a number (bf16, f16).
const CACHED: f64 = 4e-3;

/// A unit in the last place of an angle in float32, relative to the angle.
const ANGLE: f64 = 1.2e-7;

/// Factor for rows outside the sample. A row is computed too if its distance from A exceeds the largest distance of a
/// sampled row times this factor.
const STANDS_OUT: f64 = 2.0;

/// The judge that compares stages by means of a model.
pub(super) struct Injection<'m> {
    pub(super) model: &'m Model,
    pub(super) card: ModelCard,
    pub(super) sampling: Sampling,
    /// Whether A's sampler settings are known, and B's do not differ.
    drew_alike: bool,
    pub(super) rules: Rules,
    /// The rules with every result rounded, if one of the runs rounds.
    rounded: Option<Rules>,
    precisions: [Precision; 2],
    passes: Vec<Pass>,
    pub(super) begun: Vec<PassDims>,
    pub(super) a: Frames,
    pub(super) b: Frames,
    /// Substitutes for stages of A and of B that B lacks and later stages read: keys and values of earlier passes, and
    /// the output of the previous layer. They come from the cache, or are computed from the run's own inputs.
    pub(super) kept: [Frames; 2],
    /// The stages that B has, of all passes so far.
    shown: HashSet<Site>,
    table: Table,
    bad: HashMap<Site, Bad>,
    sample: Sample,
    /// Whether some rows of a matrix were not computed.
    samples: bool,
}

/// A stage that differs.
pub(super) struct Bad {
    /// The stage's tolerance.
    pub(super) tolerance: f64,
    /// The largest error that a mistake may leave if it is to explain the difference. If results are rounded, the
    /// tolerance is large enough for other mistakes too; the actual mistake leaves only the rounding error.
    pub(super) explained: f64,
    /// Whether the stage of the reference differs from the model, and not the stage of B.
    pub(super) of_a: bool,
    /// The rows of the stage's matrix that were computed.
    pub(super) rows: Vec<Range<usize>>,
    /// The index of the first value that both runs have.
    pub(super) first: usize,
}

impl<'m> Injection<'m> {
    pub(super) fn new(model: &'m Model, a: &About, b: &About, sample: Sample) -> Self {
        let of = |about: &About| about.precision.unwrap_or(Precision::F32);
        let precisions = [of(a), of(b)];
        let card = ModelCard { precision: Precision::F32, ..model.card() };
        let sampling = a.sampling.unwrap_or_default();
        // The seed does not affect `probs` or `nucleus`.
        let unseeded = |about: &About| about.sampling.map(|sampling| Sampling { seed: 0, ..sampling });
        let rules =
            |precision| Rules::new(ModelCard { precision, ..card.clone() }, CacheDtype::F32, sampling);
        let rounded = precisions.contains(&Precision::Bf16).then(|| rules(Precision::Bf16));
        let precision = tolerance::coarser(precisions[0], precisions[1]);
        let caches_fewer = [a.may_cache_fewer(), b.may_cache_fewer()];
        Self {
            model,
            sampling,
            drew_alike: a.sampling.is_some() && (b.sampling.is_none() || unseeded(a) == unseeded(b)),
            rules: rules(Precision::F32),
            rounded,
            precisions,
            passes: a.passes.clone(),
            begun: Vec::new(),
            a: Frames::new(),
            b: Frames::new(),
            kept: [Frames::new(), Frames::new()],
            shown: HashSet::new(),
            table: Table { layers: card.config.layers, precision, caches_fewer },
            bad: HashMap::new(),
            card,
            sample,
            samples: false,
        }
    }

    /// A bench for stages of A or of B.
    pub(super) fn bench<'a>(&'a self, rules: &'a Rules, of_a: bool) -> Bench<'a> {
        let (otherwise, made) = (Otherwise::default(), Frames::new());
        let (both, reference) = (&self.b, &self.a);
        let (run, kept) = if of_a { (&self.a, &self.kept[0]) } else { (&self.b, &self.kept[1]) };
        Bench { model: self.model, rules, change: &Nothing, otherwise, run, both, kept, reference, made }
    }

    /// The stage computed from A's inputs and from B's; for a product, only these rows of the matrix. `None` if there
    /// is no rule, or an input is missing.
    fn folded(&self, site: Site, rows: &[Range<usize>]) -> Result<Option<[Exactly; 2]>> {
        let stage = site.stage;
        let known = match stage {
            Stage::Tokens | Stage::MinP | Stage::TypicalP | Stage::Nucleus | Stage::Sampled => false,
            Stage::PenalizedLogits | Stage::Probs => self.drew_alike,
            _ => !stage.is_int8() && !stage.is_scale() && self.rules.of(site).is_some(),
        };
        if !known {
            return Ok(None);
        }
        let fold = |of_a| of_the_run(self.bench(&self.rules, of_a).fold_rows(site, rows));
        let (Some(a), Some(b)) = (fold(true)?, fold(false)?) else { return Ok(None) };
        Ok(Some([a, b]))
    }

    /// The rows of a matrix outside `looked` in which B is farther from A than in any row of `looked`, and farther than
    /// the tolerance. They are computed as well: a difference must not hide outside the sample.
    fn standing_out(&self, pair: &Pair, looked: &[Range<usize>], tolerance: f64) -> Vec<Range<usize>> {
        let Some(outputs) =
            self.rules.of(pair.site).filter(|of| of.matrix().is_some()).map(|of| of.shape().0)
        else {
            return Vec::new();
        };
        if looked.iter().map(ExactSizeIterator::len).sum::<usize>() == outputs {
            return Vec::new();
        }
        let (mut apart, mut norm) = (vec![0.0; outputs], 0.0);
        let rows = floats(&pair.a).chunks(outputs).zip(floats(&pair.b).chunks(outputs));
        for (a, b) in rows.skip(pair.first / outputs) {
            for (apart, (a, b)) in apart.iter_mut().zip(a.iter().zip(b)) {
                let (a, b) = (f64::from(*a), f64::from(*b));
                norm += if a.is_finite() { a * a } else { 0.0 };
                // Equal infinities count as equal, and so does NaN in both runs.
                *apart += if a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan() {
                    0.0
                } else {
                    (b - a).powi(2)
                };
            }
        }
        let furthest = looked.iter().cloned().flatten().fold(0.0, |most: f64, row| most.max(apart[row]));
        let most = (STANDS_OUT * STANDS_OUT * furthest).max(tolerance * tolerance * norm / outputs as f64);
        let is_looked_at = |row: usize| looked.iter().any(|run| run.contains(&row));
        let mut out: Vec<Range<usize>> = Vec::new();
        // NaN counts as farther than anything.
        for row in (0..outputs).filter(|&row| !apart[row].le(&most) && !is_looked_at(row)) {
            match out.last_mut() {
                Some(run) if run.end == row && run.len() < TOGETHER => run.end += 1,
                _ => out.push(row..row + 1),
            }
        }
        out
    }

    /// A stage of A or of B whose error exceeds `tolerance`.
    fn of_bad(&self, of_a: bool, tolerance: f64, rows: Vec<Range<usize>>, first: usize) -> Bad {
        let rounds = self.precisions[usize::from(!of_a)] == Precision::Bf16;
        let explained = if rounds { tolerance / EXPLAINED } else { tolerance };
        Bad { tolerance, explained, of_a, rows, first }
    }

    /// The tolerance for rounding in a 16-bit cache of run `i`. It is 0 unless the computation of the stage uses cached
    /// keys and values that the run lacks.
    fn cached(&self, i: usize, site: Site) -> f64 {
        let reads = |site: &Site| matches!(site.stage, Stage::Keys | Stage::Values);
        let unseen = || self.bench(&self.rules, i == 0).chain(site).iter().any(reads);
        if unseen() { CACHED } else { 0.0 }
    }

    /// Keeps substitutes for stages of the finished layer that B lacks: its keys and values for later passes, and its
    /// output for the next layer. Keys and values come from the caches, or are computed from the runs' own inputs. The
    /// output is kept only in float32: rounded results drift from their rules layer by layer, beyond the tolerance of
    /// one stage.
    fn keep(&mut self, last: Site) -> Result<()> {
        let (Some(dims), Some(_)) = (self.rules.pass(last.pass), last.layer) else { return Ok(()) };
        let is_last = self.begun.len() >= self.passes.len();
        let exact = self.precisions == [Precision::F32; 2] && self.table.caches_fewer == [false; 2];
        let parts: [(_, Option<Stage>, &[Stage]); 3] = [
            (Stage::XkRope, Some(Stage::CacheK), &[Stage::Xk, Stage::XkNorm]),
            (Stage::Xv, Some(Stage::CacheV), &[]),
            (Stage::FfnResidual, None, &[]),
        ];
        for (stage, cache, others) in parts {
            let has = |stage: &Stage| self.b.contains_key(&last.other(*stage));
            let idle = if cache.is_some() { is_last } else { !exact };
            if has(&stage) || others.iter().any(has) || idle {
                continue;
            }
            let (site, shape) = (last.other(stage), self.rules.sizes().shape(stage.axes(), dims));
            let cached = |of: &Frames| of.get(&last.other(cache?)).cloned();
            let made = if let (Some(a), Some(b)) = (cached(&self.a), cached(&self.b)) {
                [a, b].map(|cached| newest(&cached, site, &shape))
            } else if self.bench(&self.rules, false).stands_on_own(site) {
                let made = |of_a| of_the_run(self.bench(&self.rules, of_a).operand(site, site));
                // A's own values, except for the output: computing it measures how far float32 drifts from the rules.
                let own = self.a.get(&site).filter(|_| cache.is_some()).cloned();
                [own.map_or_else(|| made(true), |own| Ok(Some(own)))?, made(false)?]
            } else {
                continue;
            };
            if let [Some(a), Some(b)] = made {
                self.kept[0].insert(site, a);
                self.kept[1].insert(site, b);
            }
        }
        // The output of the previous layer is no longer needed.
        let stays = |site: &Site| {
            site.stage != Stage::FfnResidual || (site.pass, site.layer) == (last.pass, last.layer)
        };
        self.kept.iter_mut().for_each(|kept| kept.retain(|site, _| stays(site)));
        Ok(())
    }

    /// The number of stages of the pass that are computed from B's own stages to get this stage, this stage included.
    /// Only stages that are rounded in bfloat16 count.
    fn between(&self, site: Site) -> usize {
        let (mut between, mut open) = (HashSet::from([site]), vec![site]);
        while let Some(of) = open.pop() {
            let sources = self.rules.sources(of).into_iter();
            let unseen = |source: &Site| source.pass == site.pass && !self.shown.contains(source);
            open.extend(sources.filter(unseen).filter(|source| between.insert(*source)));
        }
        rounded_stages(&self.card.config, &between).max(1)
    }

    /// Two counts of stages of the pass. The first counts the stages that are computed from B's own stages to get
    /// `site`. The second counts the further stages that lead to `site` through stages of the reference. Only stages
    /// that are rounded in bfloat16 count.
    fn computed(&self, site: Site) -> [usize; 2] {
        let bench = self.bench(&self.rules, false);
        let own: HashSet<Site> = bench.chain(site).into_iter().collect();
        let mut before = HashSet::new();
        let borrowed =
            |source: &Site| source.pass == site.pass && !own.contains(source) && !bench.is_there(*source);
        let mut open: Vec<Site> =
            own.iter().flat_map(|of| self.rules.sources(*of)).filter(borrowed).collect();
        while let Some(of) = open.pop() {
            if of.pass == site.pass && !own.contains(&of) && before.insert(of) {
                open.extend(self.rules.sources(of));
            }
        }
        [own, before].map(|sites| rounded_stages(&self.card.config, &sites))
    }

    /// The tolerance of a stage of B. `may` returns the stage's own tolerance for a precision. In float32 with float32
    /// caches, the tolerance grows with the root of the number of stages that are computed because B lacks them: both
    /// runs round in these stages, with independent errors. Otherwise it grows if the computation uses outputs of the
    /// reference's layers, as in [`tolerance::of`]. In bfloat16, it grows by the larger of two factors: [`PASSED_ON`]
    /// times as much, or √((a + b) / a) with the two counts a and b of [`Self::computed`].
    fn borrowing(&self, site: Site, may: impl Fn(Precision) -> Result<f64>) -> Result<f64> {
        let [of_a, own] = self.precisions;
        let precision = tolerance::coarser(of_a, own);
        let is_exact = precision == Precision::F32 && self.table.caches_fewer == [false; 2];
        if is_exact {
            return Ok(may(own)? * (self.between(site) as f64).sqrt());
        }
        if !self.bench(&self.rules, false).borrows(site) {
            return may(own);
        }
        let least = match precision {
            Precision::F32 => CACHED,
            Precision::Bf16 => LEAST_ROUNDED,
            Precision::Q8 { .. } => WHOLE,
        };
        let layers = (site.layer.unwrap_or(self.table.layers) as f64 + 1.0).sqrt();
        let growth = match precision {
            Precision::Bf16 => {
                let [own, before] = self.computed(site).map(|count| count as f64);
                (1.0 + before / own.max(1.0)).sqrt().max(PASSED_ON * layers)
            }
            _ => layers,
        };
        Ok(may(precision)?.max(least) * growth)
    }

    /// The tolerance of a stage of a run in `precision`, on A's own inputs. `alone` is the error of A itself.
    fn tolerance(&self, site: Site, precision: Precision, alone: f64, exact: &Exactly) -> Result<f64> {
        let chain = self.bench(&self.rules, true).chain(site);
        let products = |site: &Site| {
            site.stage == Stage::Embedding || self.rules.of(*site).is_some_and(|of| of.matrix().is_some())
        };
        // Late positions have large angles, and so large units in the last place of their float32.
        let turned = chain.iter().any(|site| site.stage.is_rope_table());
        let keys = self.rules.pass(site.pass).map_or(0, PassDims::keys);
        let angles = if turned { keys as f64 * ANGLE } else { 0.0 };
        let plain = match self.precisions[0] {
            Precision::F32 if alone.is_finite() => (ORDERS * alone).clamp(LEAST, MOST) + angles,
            _ => MOST + angles,
        };
        Ok(match precision {
            Precision::F32 => plain,
            Precision::Q8 { .. } if chain.iter().any(products) => WHOLE,
            Precision::Q8 { .. } => plain,
            Precision::Bf16 => {
                let Some(rules) = &self.rounded else { return Ok(LEAST_ROUNDED) };
                let rounded = of_the_run(self.bench(rules, true).fold(site, self.sample))?;
                let exact: HashMap<usize, f64> = exact.iter().copied().collect();
                let mut apart = Apart::default();
                for (at, rounded) in rounded.into_iter().flatten() {
                    exact.get(&at).into_iter().for_each(|&exact| apart.add(at, rounded, exact));
                }
                let measured = if apart.error().is_finite() { apart.error() } else { 0.0 };
                (PLACES * measured).max(LEAST_ROUNDED)
            }
        })
    }
}

/// The rows that the last pass wrote to a cache, as a frame of `site`, the stage from which they were copied.
fn newest(cached: &Frame, site: Site, shape: &[usize]) -> Option<Arc<Frame>> {
    let (values, count) = (floats(cached), shape.iter().product::<usize>());
    let first = values.len().checked_sub(count)?;
    frame(site, shape, values[first..].to_vec()).map(Arc::new)
}

/// The difference of a run's stage from its rule, from the first value on that the run has.
pub(super) fn apart(frame: &Frame, exactly: &Exactly, first: usize) -> Apart {
    let mut apart = Apart::default();
    for (at, found, exact) in beside(frame, exactly).filter(|(at, ..)| *at >= first) {
        apart.add(at, value(frame.site.stage, found), exact);
    }
    apart
}

impl Judge for Injection<'_> {
    fn begin(&mut self, dims: PassDims) {
        self.begun.push(dims);
        // The ids are known even if no run has them as a stage.
        let site = Site::once(dims.pass, Stage::Tokens);
        let pass = self.passes.iter().find(|pass| pass.dims == dims);
        let ids: Vec<i64> =
            pass.iter().flat_map(|pass| &pass.tokens).map(|token| i64::from(token.id)).collect();
        for rules in std::iter::once(&mut self.rules).chain(&mut self.rounded) {
            rules.push(dims, None);
            rules.read(ids.iter().map(|id| *id as u32));
        }
        if ids.len() == dims.tokens {
            let data = FrameData::I64(ndarray::Array1::from(ids).into_dyn());
            let frame = Arc::new(Frame { site, axes: site.stage.axes(), data });
            self.a.insert(site, Arc::clone(&frame));
            self.b.insert(site, frame);
        }
    }

    fn only_a(&mut self, frame: Frame) {
        self.a.insert(frame.site, Arc::new(frame));
    }

    fn see(&mut self, pair: &Pair) -> Result<Judged> {
        let site = pair.site;
        self.a.insert(site, Arc::clone(&pair.a));
        self.b.insert(site, Arc::clone(&pair.b));
        self.shown.insert(site);
        let mut rows = self.bench(&self.rules, true).rows(site, self.sample);
        let Some([mut from_a, mut from_b]) = self.folded(site, &rows)? else { return self.table.see(pair) };
        let of_pair = pair.apart();
        let whole = of_pair.error();
        let mut off = [apart(&pair.a, &from_a, pair.first), apart(&pair.b, &from_b, pair.first)];
        let may = |precision| self.tolerance(site, precision, off[0].error(), &from_a);
        let mut may = [may(self.precisions[0])?, self.borrowing(site, may)?];
        let kept = [sixteen::dtype(&pair.a), sixteen::dtype(&pair.b)];
        for (i, may) in may.iter_mut().enumerate() {
            if self.table.caches_fewer[i] {
                *may = may.max(if kept[i].is_some() { CACHED } else { self.cached(i, site) });
            }
        }
        // An error that is NaN exceeds any tolerance.
        let is_bad = |off: &[Apart; 2]| (!off[0].error().le(&may[0]), !off[1].error().le(&may[1]));
        if is_bad(&off) == (false, false) {
            let others = self.standing_out(pair, &rows, may[1]);
            if let Some([a, b]) = if others.is_empty() { None } else { self.folded(site, &others)? } {
                from_a.extend(a);
                from_b.extend(b);
                rows.extend(others);
                off = [apart(&pair.a, &from_a, pair.first), apart(&pair.b, &from_b, pair.first)];
            }
        }
        let outputs = self.rules.of(site).map_or(0, |of| of.shape().0);
        self.samples |= !rows.is_empty() && rows.iter().map(ExactSizeIterator::len).sum::<usize>() < outputs;
        let mut inherited = Apart::default();
        let of_a: HashMap<usize, f64> = from_a.iter().copied().collect();
        for &(at, b) in from_b.iter().filter(|(at, _)| *at >= pair.first) {
            of_a.get(&at).into_iter().for_each(|&a| inherited.add(at, b, a));
        }
        let ((bad_a, bad_b), [may_a, may_b], [off_a, off_b]) = (is_bad(&off), may, off);
        let inherited = Some(inherited.error());
        if bad_a && bad_b {
            // Neither matches the model: B is compared with A.
            let Judged { line, at, .. } = self.table.see(pair)?;
            let note = Some(format!("neither A nor B has the model's values at {site}"));
            if line.differs() {
                self.bad.insert(site, self.of_bad(false, may_b, rows, pair.first));
            }
            return Ok(Judged { line: Line { inherited, ..line }, at, note });
        }
        if bad_a {
            let line = Line { site, apart: whole, error: off_a.error(), tolerance: may_a, inherited };
            self.bad.insert(site, self.of_bad(true, may_a, rows, pair.first));
            let note = Some(format!("A does not have the model's values at {site}; B has them"));
            return Ok(Judged { line, at: off_a.cell(), note });
        }
        if bad_b {
            self.bad.insert(site, self.of_bad(false, may_b, rows, pair.first));
        }
        let line = Line { site, apart: whole, error: off_b.error(), tolerance: may_b, inherited };
        let unsaid = kept[1].filter(|_| bad_b && !self.table.caches_fewer[1]);
        let note = unsaid.map(|dtype| sixteen::note(site, dtype)).or_else(|| of_pair.note(site));
        Ok(Judged { line, at: off_b.cell(), note })
    }

    fn diagnose(&mut self, site: Site, tried: Tried<'_>) -> Result<Vec<Diagnosis>> {
        self.bad.get(&site).map_or_else(|| Ok(Vec::new()), |bad| self.search_mistakes(site, bad, tried))
    }

    fn part_done(&mut self, last: Site) -> Result<()> {
        self.keep(last)?;
        // Later passes read these from the cache. Stages before the layers are kept for all layers.
        let stays = |site: &Site| match site.stage.first_of_name() {
            Stage::Xk | Stage::XkNorm | Stage::XkRope | Stage::Xv => true,
            _ if !site.stage.in_layer() => {
                site.stage.info().section == Section::Start || site.pass == last.pass
            }
            stage => stage == Stage::FfnResidual && site.pass == last.pass && site.layer == last.layer,
        };
        self.a.retain(|site, _| stays(site));
        self.b.retain(|site, _| stays(site));
        Ok(())
    }

    fn samples(&self) -> bool {
        self.samples
    }

    fn measures(&self) -> bool {
        true
    }
}

/// The number of these stages that the model rounds in bfloat16.
fn rounded_stages(config: &ModelConfig, sites: &HashSet<Site>) -> usize {
    sites.iter().filter(|site| config.rounded(site.stage) != Rounded::Never).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use llama_trace_core::config::RopeRounding;

    #[test]
    fn tables_that_the_family_does_not_round_are_not_counted() {
        let sites = [Stage::Tokens, Stage::RopeCos, Stage::RopeSin, Stage::Embedding];
        let sites: HashSet<Site> = sites.into_iter().map(|stage| Site::once(0, stage)).collect();
        for (rope_rounding, count) in [(RopeRounding::Products, 3), (RopeRounding::SumOfFloat32, 1)] {
            let config = ModelConfig { rope_rounding, ..ModelConfig::of_heads(2, 1, 4) };
            assert_eq!(rounded_stages(&config, &sites), count, "{rope_rounding:?}");
        }
    }
}
