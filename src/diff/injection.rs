//! The judge that has the model: each stage is computed from the reference's own inputs and from those of the run that
//! is judged, so that what it brings in itself is told from what came with them.

use std::collections::HashMap;
use std::sync::Arc;

use super::bench::{Bench, Exactly, Frames, Otherwise, beside, of_the_run};
use super::difference::{Apart, Pair, keeps_fewer, value};
use super::mistakes::mistakes;
use super::report::{Diagnosis, Line};
use super::traced::{About, Pass};
use super::{Judge, Judged, Table, tolerance};
use crate::backend::Backend;
use crate::check::{Nothing, Sample};
use crate::config::{CacheDtype, Precision};
use crate::error::Result;
use crate::explain::{Drawing, Rules};
use crate::model::Model;
use crate::trace::stage::Section;
use crate::trace::{Frame, FrameData, ModelCard, PassDims, Site, Stage};

/// The least that a float32 stage may be off: a few units of its last place.
const LEAST: f64 = 1e-6;

/// The most, however far the reference itself is off on these inputs.
const MOST: f64 = 2e-5;

/// How many times as far off as the reference a float32 stage may be: others add up in another order.
const ORDERS: f64 = 16.0;

/// How many times as far off as rounding by the rules a bfloat16 stage may be: others round in other places.
const PLACES: f64 = 6.0;

/// The least that a bfloat16 stage may be off.
const LEAST_ROUNDED: f64 = 1e-2;

/// What a product in whole numbers may be off.
const WHOLE: f64 = 0.05;

/// What a cache may be off that keeps 8 bits of a number or more.
const CACHED: f64 = 4e-3;

/// What a unit in the last place of an angle's float32 is, over the angle.
const ANGLE: f64 = 1.2e-7;

/// The judge.
pub(super) struct Injection<'m, B: Backend> {
    model: &'m Model<B>,
    card: ModelCard,
    drawing: Drawing,
    /// Whether A says how it drew, and B not otherwise.
    drew_alike: bool,
    rules: Rules,
    /// The same with every result rounded, where one of the runs does that.
    rounded: Option<Rules>,
    precisions: [Precision; 2],
    passes: Vec<Pass>,
    begun: Vec<PassDims>,
    a: Frames,
    b: Frames,
    table: Table,
    /// Of stages that differ, what they may: and whether it is the reference that is off.
    bad: HashMap<Site, (f64, bool)>,
    sample: Sample,
}

impl<'m, B: Backend> Injection<'m, B> {
    pub(super) fn new(model: &'m Model<B>, a: &About, b: &About, sample: Sample) -> Self {
        let of = |about: &About| about.precision.unwrap_or(Precision::F32);
        let precisions = [of(a), of(b)];
        let card = ModelCard { precision: Precision::F32, ..model.card() };
        let nothing = Drawing { temperature: 0.0, top_k: 0, top_p: 1.0 };
        let drawing = a.drawing.unwrap_or(nothing);
        let rules = |precision| Rules::new(ModelCard { precision, ..card.clone() }, CacheDtype::F32, drawing);
        let rounded = precisions.contains(&Precision::Bf16).then(|| rules(Precision::Bf16));
        let precision = tolerance::coarser(precisions[0], precisions[1]);
        Self {
            model,
            drawing,
            drew_alike: a.drawing.is_some() && (b.drawing.is_none() || a.drawing == b.drawing),
            rules: rules(Precision::F32),
            rounded,
            precisions,
            passes: a.passes.clone(),
            begun: Vec::new(),
            a: Frames::new(),
            b: Frames::new(),
            table: Table { layers: card.config.layers, precision },
            bad: HashMap::new(),
            card,
            sample,
        }
    }

    fn bench<'a>(&'a self, rules: &'a Rules, run: &'a Frames) -> Bench<'a, B> {
        let (otherwise, made) = (Otherwise::default(), Frames::new());
        let (both, reference) = (&self.b, &self.a);
        Bench { model: self.model, rules, change: &Nothing, otherwise, run, both, reference, made }
    }

    /// What the stage is, computed from A's inputs and from B's; none where no rule is known or an input is missing.
    fn folded(&self, site: Site) -> Result<Option<[Exactly; 2]>> {
        let stage = site.stage;
        let known = match stage {
            Stage::Tokens | Stage::Nucleus | Stage::Sampled => false,
            Stage::Probs => self.drew_alike,
            _ => !stage.is_int8() && !stage.is_scale() && self.rules.of(site).is_some(),
        };
        if !known {
            return Ok(None);
        }
        let fold = |run| of_the_run(self.bench(&self.rules, run).fold(site, self.sample));
        let (Some(a), Some(b)) = (fold(&self.a)?, fold(&self.b)?) else { return Ok(None) };
        Ok(Some([a, b]))
    }

    /// How far a stage of a run in `precision` may be off, on A's own inputs. `alone` is how far A itself is.
    fn tolerance(&self, site: Site, precision: Precision, alone: f64, exact: &Exactly) -> Result<f64> {
        let chain = self.bench(&self.rules, &self.a).chain(site);
        let products = |site: &Site| {
            site.stage == Stage::Embedding || self.rules.of(*site).is_some_and(|of| of.matrix().is_some())
        };
        // The angles of late positions are large, and so are the last places of their float32.
        let turned = chain.iter().any(|site| matches!(site.stage, Stage::RopeCos | Stage::RopeSin));
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
                let rounded = of_the_run(self.bench(rules, &self.a).fold(site, self.sample))?;
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

/// How far a run's stage is from what its rule gives, from the first value on that it has.
fn apart(frame: &Frame, exactly: &Exactly, first: usize) -> Apart {
    let mut apart = Apart::default();
    for (at, found, exact) in beside(frame, exactly).filter(|(at, ..)| *at >= first) {
        apart.add(at, value(frame.site.stage, found), exact);
    }
    apart
}

impl<B: Backend> Judge for Injection<'_, B> {
    fn begin(&mut self, dims: PassDims) {
        let rules = std::iter::once(&mut self.rules).chain(&mut self.rounded);
        rules.for_each(|rules| rules.push(dims, None));
        self.begun.push(dims);
        // The ids are known where no run has them as a stage.
        let site = Site::once(dims.pass, Stage::Tokens);
        let pass = self.passes.iter().find(|pass| pass.dims == dims);
        let ids: Vec<i64> =
            pass.iter().flat_map(|pass| &pass.tokens).map(|token| i64::from(token.id)).collect();
        if ids.len() == dims.tokens {
            let data = FrameData::I64(ndarray::Array1::from(ids).into_dyn());
            let frame = Arc::new(Frame { site, axes: site.stage.axes(), data });
            self.a.insert(site, Arc::clone(&frame));
            self.b.insert(site, frame);
        }
    }

    fn alone(&mut self, frame: Frame) {
        self.a.insert(frame.site, Arc::new(frame));
    }

    fn see(&mut self, pair: &Pair) -> Result<Judged> {
        let site = pair.site;
        self.a.insert(site, Arc::clone(&pair.a));
        self.b.insert(site, Arc::clone(&pair.b));
        let Some([from_a, from_b]) = self.folded(site)? else { return self.table.see(pair) };
        let of_pair = pair.apart();
        let whole = of_pair.error();
        let (off_a, off_b) = (apart(&pair.a, &from_a, pair.first), apart(&pair.b, &from_b, pair.first));
        let mut inherited = Apart::default();
        let of_a: HashMap<usize, f64> = from_a.iter().copied().collect();
        for &(at, b) in from_b.iter().filter(|(at, _)| *at >= pair.first) {
            of_a.get(&at).into_iter().for_each(|&a| inherited.add(at, b, a));
        }
        let may = |precision| self.tolerance(site, precision, off_a.error(), &from_a);
        let [mut may_a, mut may_b] = [may(self.precisions[0])?, may(self.precisions[1])?];
        for (frame, may) in [(&pair.a, &mut may_a), (&pair.b, &mut may_b)] {
            if keeps_fewer(frame) {
                *may = may.max(CACHED);
            }
        }
        let (bad_a, bad_b) = (off_a.error() > may_a, !off_b.error().le(&may_b));
        let inherited = Some(inherited.error());
        if bad_a && bad_b {
            // Neither has what this model gives: one is judged by the other.
            let Judged { line, at, .. } = self.table.see(pair)?;
            let note = Some(format!("neither A nor B has what the model gives at {site}"));
            if line.differs() {
                self.bad.insert(site, (may_b, false));
            }
            return Ok(Judged { line: Line { inherited, ..line }, at, note });
        }
        if bad_a {
            let line = Line { site, apart: whole, error: off_a.error(), tolerance: may_a, inherited };
            self.bad.insert(site, (may_a, true));
            let note = Some(format!("it is A that does not have what the model gives at {site}; B does"));
            return Ok(Judged { line, at: off_a.cell(), note });
        }
        if bad_b {
            self.bad.insert(site, (may_b, false));
        }
        let line = Line { site, apart: whole, error: off_b.error(), tolerance: may_b, inherited };
        Ok(Judged { line, at: off_b.cell(), note: of_pair.note(site) })
    }

    fn diagnose(&mut self, site: Site) -> Result<Vec<Diagnosis>> {
        let Some(&(tolerance, of_a)) = self.bad.get(&site) else { return Ok(Vec::new()) };
        let run = if of_a { &self.a } else { &self.b };
        let Some(frame) = run.get(&site) else { return Ok(Vec::new()) };
        let Some(right) = of_the_run(self.bench(&self.rules, run).fold(site, self.sample))? else {
            return Ok(Vec::new());
        };
        let before = apart(frame, &right, 0).error();
        let mut found: Vec<Diagnosis> = Vec::new();
        let chain = self.bench(&self.rules, run).chain(site);
        for mistake in mistakes(&self.card, &self.begun, &chain, frame, &right) {
            let card = mistake.card.as_ref().unwrap_or(&self.card);
            let mut rules = Rules::new(card.clone(), CacheDtype::F32, self.drawing);
            self.begun.iter().for_each(|dims| rules.push(*dims, None));
            let mut bench = self.bench(&rules, run);
            (bench.change, bench.otherwise) = (&*mistake.change, mistake.otherwise);
            if !bench.chain(site).iter().any(|site| mistake.touches.contains(&site.stage)) {
                continue;
            }
            let Some(wrong) = of_the_run(bench.fold(site, self.sample))? else { continue };
            let after = apart(frame, &wrong, 0).error();
            let near = after <= tolerance || (mistake.rounds && after <= before / 8.0);
            if !near || !(after < before || before.is_nan()) {
                continue;
            }
            match found.iter_mut().find(|one| one.name == mistake.name) {
                Some(one) => one.after = one.after.min(after),
                None => found.push(Diagnosis { name: mistake.name, before, after }),
            }
        }
        found.sort_by(|a, b| a.after.total_cmp(&b.after));
        Ok(found)
    }

    fn part_done(&mut self, last: Site) {
        // What is in the cache comes from these, in later passes too; and what is before the layers stays for them all.
        let stays = |site: &Site| match site.stage {
            Stage::Xk | Stage::XkNorm | Stage::XkRope | Stage::Xv => true,
            _ if !site.stage.in_layer() => {
                site.stage.info().section == Section::Start || site.pass == last.pass
            }
            stage => stage == Stage::FfnResidual && site.pass == last.pass && site.layer == last.layer,
        };
        self.a.retain(|site, _| stays(site));
        self.b.retain(|site, _| stays(site));
    }

    fn measures(&self) -> bool {
        true
    }
}
