//! Compares two runs stage by stage, in the order of the pass.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::causes::{self, Cause};
use super::difference::{self, Apart, Pair, floats, shape};
use super::drawn::Own;
use super::judge::{Judge, Judged};
use super::report::{First, Kind, Line, Misshapen, Missing, Report, number};
use super::streamed::Streamed;
use super::traced::{About, Traced};
use super::{Doing, Progress, sizes, streamed};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::stage::{Op, Rounded, Section, Unit};
use llama_trace_core::trace::{
    Address, Frame, ModelCard, PassDims, Sampling, Site, Sizes, Stage, Step, Values,
};

/// The reported cell of a stage, and further facts about B's stage.
struct Cell<'a> {
    at: usize,
    shape: &'a [usize],
    /// A's value and B's.
    values: [f64; 2],
    odd: Option<String>,
    print: Option<u64>,
}

/// If a stage that reads the first differing stage is equal in both runs, only the file of the differing stage is
/// wrong. This is reported if the difference is at least this many times the tolerance of the stage that reads it.
const CLEAR: f64 = 16.0;

/// The maximum number of uncompared stages that are named one by one.
const NAMED: usize = 6;

/// Two runs that are compared.
pub(super) struct Comparison<'a, A, B, J> {
    a: &'a mut A,
    b: &'a mut B,
    judge: J,
    sizes: Sizes,
    report: Report,
    /// The first stage that differs, until its part of the pass is complete.
    waits: Option<Site>,
    /// Stages of B by a hash of their values, to detect a copy of another stage.
    seen: HashMap<u64, Site>,
    /// Whether the last row of logits has the same bits in both runs; the draw must then be the same.
    same_logits: bool,
    /// B's own logits and probabilities in the current pass.
    own: Own,
    /// Passes in which B's draw cannot be judged.
    not_told: BTreeSet<usize>,
}

impl<'a, A: Traced, B: Traced, J: Judge> Comparison<'a, A, B, J> {
    /// A comparison of two runs. `known` are the sizes of the model, which are used if neither run has them.
    pub(super) fn new(a: &'a mut A, b: &'a mut B, known: Option<Sizes>, judge: J) -> Result<Self> {
        let sizes = sizes(a, b).or_else(|error| known.ok_or(error))?;
        let (sizes, report) = (sizes, Report { measured: judge.measures(), ..Report::default() });
        Ok(Self {
            a,
            b,
            judge,
            sizes,
            report,
            waits: None,
            seen: HashMap::new(),
            same_logits: false,
            own: Own::default(),
            not_told: BTreeSet::new(),
        })
    }

    pub(super) fn run(mut self, progress: Progress<'_>) -> Result<Report> {
        self.check_layers()?;
        let cause = causes::first(self.a.about(), self.b.about());
        if cause.as_ref().is_none_or(|cause| cause.first.kind == Kind::Tokens) {
            causes::check_passes(self.a.about(), self.b.about())?;
        }
        // The tokens of a later pass were drawn from the results of earlier passes, so the earlier passes are compared
        // first.
        let (now, later) =
            if cause.as_ref().is_some_and(|cause| cause.pass == 0) { (cause, None) } else { (None, cause) };
        now.into_iter().for_each(|cause| self.because(cause));
        let until = causes::same_until(self.a.about(), self.b.about());
        let passes: Vec<PassDims> = self.a.about().passes.iter().map(|pass| pass.dims).collect();
        let of_b = self.b.about().passes.len();
        let sites: Vec<_> = passes.iter().take(until).map(|dims| (*dims, self.sites(*dims))).collect();
        let (total, mut done) = (sites.iter().map(|(_, sites)| sites.len()).sum(), 0);
        progress(Doing::Stages { done, of: total });
        for (number, (dims, sites)) in sites.iter().enumerate() {
            if number >= of_b && of_b > 0 {
                self.report.absent.push(Site::once(dims.pass, Stage::Tokens));
                done += sites.len();
                progress(Doing::Stages { done, of: total });
                continue;
            }
            self.judge.begin(*dims);
            (self.own, self.same_logits) = (Own::default(), false);
            let compared = |report: &Report| report.lines.len() + report.misshapen.len();
            let (before, missing) = (compared(&self.report), self.report.missing.len());
            for (i, &site) in sites.iter().enumerate() {
                llama_trace_core::stop::check()?;
                self.stage(site, *dims)?;
                let next = sites.get(i + 1);
                let part = |site: &Site| (site.layer, site.stage.info().section);
                if next.is_none_or(|next| part(next) != part(&site)) {
                    self.part_done(site, progress)?;
                }
                done += 1;
                progress(Doing::Stages { done, of: total });
            }
            let seen = self.report.lines.iter().rev().take(compared(&self.report) - before);
            // The tokens are given, so they prove nothing about the pass.
            let only_tokens = seen.clone().all(|line| line.site.stage == Stage::Tokens)
                && self.report.misshapen.iter().all(|one| one.site.pass != dims.pass);
            let lacks = self.report.missing[missing..].iter().any(|missing| {
                let is_after = |of: &About| self.is_after(of, missing.site);
                !is_after(self.a.about()) && !is_after(self.b.about())
            });
            if only_tokens && (lacks || seen.len() == 0 && number > 0) {
                if lacks {
                    self.report.empty.push(Site::once(dims.pass, Stage::Tokens));
                }
                let note = format!(
                    "nothing of p{} is compared, because the runs have no stage in common in this pass",
                    dims.pass
                );
                self.report.notes.push(note);
            }
        }
        match later {
            Some(cause) if self.report.first.is_none() => self.because(cause),
            Some(cause) => self
                .report
                .notes
                .push(format!("from p{} on the runs read different tokens and are not compared", cause.pass)),
            None => {}
        }
        // A wrong shape is a problem of the file; different values are a problem of the run.
        if let (None, Some(one)) = (&self.report.first, self.report.misshapen.first()) {
            self.report.first = Some(one.difference());
            self.report.notes.push(format!("{}: {}", one.site, one.why));
        }
        if let [first, ..] = &self.report.absent[..] {
            let passes = match self.report.absent.len() {
                1 => format!("p{} is", first.pass),
                more => format!("p{} to p{} are", first.pass, first.pass + more - 1),
            };
            self.report
                .notes
                .push(format!("B sampled or wrote fewer tokens than A, so {passes} not compared"));
        }
        if let (more @ 1.., true) = (of_b.saturating_sub(passes.len()), until == passes.len()) {
            let passes = if more == 1 { "a pass" } else { &format!("{more} passes") };
            self.report.notes.push(format!("B has {passes} that A does not have: not compared"));
        }
        self.report.notes.extend(self.unsure());
        self.report.notes.extend(self.beyond_compared());
        self.report.samples = self.judge.samples();
        let otherwise = self.went_on_otherwise();
        self.report.written_alone = otherwise.is_some();
        self.report.notes.extend(otherwise);
        // If a stage differs, this note is left out.
        let not_told = self.not_told.len();
        if not_told > 0 && self.report.first.is_none() {
            let passes = if not_told == 1 { "a pass" } else { &format!("{not_told} passes") };
            let why = match self.sampling() {
                Some(_) => "B has no logits, or no probs, of its own there",
                None => "neither run says how it sampled",
            };
            self.report.notes.push(format!("the sampling of {passes} is not compared: {why}"));
        }
        if self.report.lines.is_empty() && self.report.first.is_none() {
            if let Some(missing) = self.report.damaged().next() {
                return Err(Error::model(
                    "there is nothing to compare: none of B's files for the stages of A can be read",
                )
                .at(missing.site)
                .expected("values that can be compared")
                .found(missing.why.as_deref().unwrap_or("none"))
                .next("correct the file, or its entry in capture.toml"));
            }
            let what = match not_told {
                0 => "the runs have no stage in common",
                _ => "it cannot be decided whether B's sampling is right",
            };
            return Err(Error::usage(format!("there is nothing to compare: {what}"))
                .at(&self.b.about().name)
                .expected(format!("stages that {} has", self.a.about().name))
                .found(
                    self.report.missing.iter().find_map(|missing| missing.why.as_deref()).unwrap_or("none"),
                )
                .next("check which files each run has"));
        }
        Ok(self.report)
    }

    /// Notes about the stages for which B's map has `maybe`. If a stage differs: this stage, and the files that may
    /// hold an earlier stage. Otherwise: every compared stage with `maybe`.
    fn unsure(&self) -> Vec<String> {
        let unsure = &self.b.about().unsure;
        let listed =
            |stages: &[Stage]| stages.iter().map(|stage| stage.name()).collect::<Vec<_>>().join(", ");
        let Some(first) = &self.report.first else {
            let is_compared = |stage: Stage| self.report.lines.iter().any(|line| line.site.stage == stage);
            let compared = unsure.iter().filter(|(stage, _)| is_compared(**stage));
            let note = |(stage, others): (&Stage, &Vec<Stage>)| {
                format!(
                    "unsure between {stage} and {}: B's file may be any of these stages. It is the same as A's {stage} \
                     within the tolerance (correct capture.toml, or write more stages)",
                    listed(others)
                )
            };
            return compared.map(note).collect();
        };
        let Some(first) = first.site else { return Vec::new() };
        let mut others: BTreeSet<Stage> = unsure.get(&first.stage).into_iter().flatten().copied().collect();
        let own = !others.is_empty();
        // A file with `maybe` counts whether its values matched or not, because it may hold another stage.
        let place = |site: Site| (site.pass, site.layer);
        let compared = |stage: Stage| self.report.lines.iter().find(|line| line.site.stage == stage);
        let mut earlier = Vec::new();
        for (stage, more) in unsure.iter().filter(|(stage, _)| **stage != first.stage) {
            let Some(line) = compared(*stage) else { continue };
            let is_before = |other: &&Stage| {
                let (own, first_of_all) = (place(line.site), place(first));
                own < first_of_all || own == first_of_all && **other < first.stage
            };
            let before: BTreeSet<Stage> = more.iter().filter(is_before).copied().collect();
            if !before.is_empty() {
                earlier.push(*stage);
                others.insert(*stage);
                others.extend(before);
            }
        }
        let others = listed(&others.into_iter().filter(|other| *other != first.stage).collect::<Vec<_>>());
        let between = format!("unsure between {} and {others}:", first.stage);
        let mend = "(correct capture.toml, or write more stages)";
        match (own, &earlier[..]) {
            (false, []) => Vec::new(),
            (true, []) => vec![format!(
                "{between} B's file may be any of these stages. The mistake is in one of them, or in a stage that they are \
                 computed from {mend}"
            )],
            (_, earlier) => {
                let files = listed(earlier);
                let [file, other] = if earlier.len() == 1 {
                    ["file", "another of these stages; if so, the mistake is in that stage"]
                } else {
                    ["files", "others of these stages; if so, the mistake is in one of those"]
                };
                vec![format!("{between} B's {file} of {files} may be {other} {mend}")]
            }
        }
    }

    /// If nothing differs, notes the stages that B lacks and that no compared stage depends on. A mistake in them does
    /// not show.
    fn beyond_compared(&self) -> Option<String> {
        if self.report.first.is_some() {
            return None;
        }
        let lines = || self.report.lines.iter().map(|line| line.site);
        let (mut led, mut open): (HashSet<Site>, Vec<Site>) = (lines().collect(), lines().collect());
        while let Some(of) = open.pop() {
            open.extend(self.sources(of).into_iter().filter(|source| led.insert(*source)));
        }
        let is_computed = |site: &Site| {
            let info = site.stage.info();
            info.section != Section::Sampler && info.rounded != Rounded::Never
        };
        let is_after =
            |site: &Site| [self.a.about(), self.b.about()].iter().any(|of| self.is_after(of, *site));
        let beyond: Vec<Site> = self
            .report
            .missing
            .iter()
            .map(|missing| missing.site)
            .filter(|site| is_computed(site) && !led.contains(site) && !is_after(site))
            .collect();
        let which = match &beyond[..] {
            [] => return None,
            [first, .., last] if beyond.len() > NAMED => {
                format!("{} stages, from {first} to {last}", beyond.len())
            }
            few => few.iter().map(Site::to_string).collect::<Vec<_>>().join(", "),
        };
        Some(format!(
            "a mistake in these stages would not show, because they are not compared, and no compared stage depends on them: {which} (write more stages)"
        ))
    }

    /// Records a difference that is not in a stage.
    fn because(&mut self, cause: Cause) {
        (self.report.first, self.report.diagnosis) = (Some(cause.first), cause.diagnosis);
    }

    /// Checks the number of layers that the runs report, and notes the stages that are therefore not compared.
    fn check_layers(&mut self) -> Result<()> {
        let all = self.sizes.layers;
        for (letter, about) in [("A", self.a.about()), ("B", self.b.about())] {
            match about.layers {
                Some(ran) if ran > all => {
                    return Err(Error::model("the run says that more layers ran than the model has")
                        .at(&about.name)
                        .expected(format!("at most {all}"))
                        .found(format!("layers = {ran}"))
                        .next("correct `layers` in capture.toml, or leave it out if all layers ran"));
                }
                Some(ran) if ran < all => self.report.notes.push(format!(
                    "in {letter} only the first {ran} of {all} layers ran: later stages are not compared"
                )),
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns whether `site` comes after the layers that ran, if not all of them did.
    fn is_after(&self, about: &About, site: Site) -> bool {
        about.layers.is_some_and(|ran| match site.layer {
            Some(layer) => layer >= ran,
            None => ran < self.sizes.layers && site.stage.info().section != Section::Start,
        })
    }

    /// The stages of a pass, and B's additional ones, each after the stage that stands for it.
    fn sites(&self, dims: PassDims) -> Vec<Site> {
        let mut sites = Site::all(&self.sizes, dims);
        for site in super::beyond(&self.sizes, dims).into_iter().filter(|site| self.b.has_beyond(*site)) {
            let stands = self.stands_for(site, dims).and_then(|of| sites.iter().position(|site| *site == of));
            stands.into_iter().for_each(|at| sites.insert(at + 1, site));
        }
        sites
    }

    /// A's counterpart of a stage that the pass does not have.
    fn stands_for(&self, site: Site, dims: PassDims) -> Option<Site> {
        let mut stage = site.stage;
        // The stage in its place may be absent too: without a cap, masked scores stand for scores.
        while !site.other(stage).present(&self.sizes, dims) {
            stage = stage.info().instead?;
        }
        (stage != site.stage).then(|| site.other(stage))
    }

    fn stage(&mut self, site: Site, dims: PassDims) -> Result<()> {
        let stands = self.stands_for(site, dims);
        let missing = |why, damaged| Missing { site, why, damaged };
        if self.is_after(self.a.about(), site) || self.is_after(self.b.about(), site) {
            self.report.missing.push(missing(None, false));
            return Ok(());
        }
        let absent = |about: &About| {
            let lacks = |card: &ModelCard| !site.present(&card.sizes(), dims);
            stands.is_none() && about.card.as_ref().is_some_and(lacks)
        };
        if self.judge.streams() && stands.is_none() && !absent(self.a.about()) && !absent(self.b.about()) {
            let shape = shape(site, &self.sizes, dims);
            match streamed::compare(&*self.a, &*self.b, site, &shape)? {
                Ok(Some(seen)) => return self.streamed(site, &shape, &seen),
                Ok(None) => {}
                Err(why) => {
                    self.report.missing.push(missing(Some(why), true));
                    return Ok(());
                }
            }
        }
        let ours = self.a.stage(stands.unwrap_or(site))?.of(site).frame();
        let theirs = if absent(self.b.about()) { return Ok(()) } else { self.b.stage(site)?.frame() };
        let (a, b) = match (ours, theirs) {
            (Ok(Some(a)), Ok(Some(b))) => (a, b),
            (Ok(None), Ok(theirs)) => {
                if let Some(theirs) = &theirs {
                    // B may have sampled from this stage.
                    let (values, width) = (floats(theirs), self.sizes.vocab);
                    let last = || values.len().checked_sub(width).map(|first| values[first..].to_vec());
                    self.own.take(site.stage, last);
                }
                self.report.unjudged += usize::from(theirs.is_some());
                return Ok(());
            }
            (Err((why, damaged)), _) => {
                self.report.missing.push(missing(Some(format!("A: {why}")), damaged));
                return Ok(());
            }
            // The tokens were compared before the stages.
            (Ok(Some(_)), Ok(None)) if site.stage == Stage::Tokens && says_ids(self.b.about(), site.pass) => {
                return Ok(());
            }
            (Ok(a), theirs) => {
                let nowhere = || self.b.about().nowhere.get(&site.stage.first_of_name()).cloned();
                let named = || nowhere().or_else(|| self.b.unwritten(site)).map(|why| (why, true));
                let named = || a.is_some().then(named).flatten();
                let (why, damaged) = theirs.err().or_else(named).unzip();
                let why = why.map(|why| format!("B: {why}"));
                self.report.missing.push(missing(why, damaged.unwrap_or(false)));
                a.into_iter().for_each(|frame| self.judge.only_a(Arc::unwrap_or_clone(frame)));
                return Ok(());
            }
        };
        let shape = shape(site, &self.sizes, dims);
        let pair = match Pair::new(site, &shape, &a, &b) {
            Ok(pair) => pair,
            Err(why) => {
                if b.values().is_empty() || a.values().is_empty() {
                    self.report.missing.push(missing(Some(why), true));
                } else {
                    self.differs_in_shape(site, &shape, [a, b], why);
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
        let last = || {
            let values = floats(&pair.b);
            Some(values[values.len() - shape.last()?..].to_vec())
        };
        self.own.take(site.stage, last);
        if self.drew_right(site, &pair.b, || pair.apart()) {
            return Ok(());
        }
        let mut judged = self.judge.see(&pair)?;
        if let Some(stands) = stands.filter(|_| judged.line.differs()) {
            let note = format!("nothing is hidden in p{}, so {site} must equal {}", dims.pass, stands.stage);
            judged.note = Some(note);
        }
        let print = match pair.b.values() {
            Values::F32(values) if values.len() > 1 => Some(print(values)),
            _ => None,
        };
        if judged.line.differs() {
            let at = judged.at.unwrap_or(pair.first);
            let cell =
                Cell { at, shape: &shape, values: pair.at(at), odd: difference::oddities(&pair), print };
            self.differs(&cell, &judged);
        }
        self.judged(judged, print);
        Ok(())
    }

    /// Records a stage that was compared part by part.
    fn streamed(&mut self, site: Site, shape: &[usize], seen: &Streamed) -> Result<()> {
        if site.stage == Stage::Logits {
            self.same_logits = seen.same_last;
        }
        if site.stage == Stage::Logits || site.stage.info().section == Section::Sampler {
            let last = streamed::last_row(&*self.b, site, shape);
            self.own.take(site.stage, || last.as_ref().map(|last| floats(last).to_vec()));
            if last.is_some_and(|last| self.drew_right(site, &last, || seen.apart)) {
                return Ok(());
            }
        }
        let Some(judged) = self.judge.see_streamed(site, seen) else { return Ok(()) };
        let is_print = !site.stage.is_ids() && !site.stage.is_int8() && shape.iter().product::<usize>() > 1;
        let print = self.b.print(site).filter(|_| is_print);
        if judged.line.differs() {
            let at = judged.at.unwrap_or(0);
            let values =
                [streamed::number(&*self.a, site, shape, at), streamed::number(&*self.b, site, shape, at)];
            // This reads all values of both runs once more.
            let odd = match self.report.first {
                None => streamed::oddities(&*self.a, &*self.b, site, shape)?,
                Some(_) => None,
            };
            self.differs(&Cell { at, shape, values, odd, print }, &judged);
        }
        self.judged(judged, print);
        Ok(())
    }

    /// B's sampler settings, or A's if B states none.
    fn sampling(&self) -> Option<Sampling> {
        self.b.about().sampling.or(self.a.about().sampling)
    }

    /// Returns whether `drawn`, B's values at `site`, need not be compared with A's: they follow from B's own logits
    /// and probabilities, or cannot be judged. If the logits have the same bits, A's values are compared.
    fn drew_right(&mut self, site: Site, drawn: &Frame, apart: impl FnOnce() -> Apart) -> bool {
        if !matches!(site.stage, Stage::MinP | Stage::TypicalP | Stage::Nucleus | Stage::Sampled) {
            return false;
        }
        let sampling = self.sampling();
        // Each of several equal logits may be the argmax.
        let greedy = sampling.is_some_and(|sampling| sampling.temperature == 0.0);
        if self.same_logits && !greedy {
            return false;
        }
        match sampling.and_then(|sampling| self.own.leads_to(drawn, sampling)) {
            Some(true) => {
                let (error, tolerance) = (0.0, 0.0);
                self.report.lines.push(Line {
                    site,
                    apart: apart().error(),
                    error,
                    tolerance,
                    inherited: None,
                });
                true
            }
            Some(false) => false,
            None if self.same_logits => false,
            None => {
                self.not_told.insert(site.pass);
                true
            }
        }
    }

    fn judged(&mut self, judged: Judged, print: Option<u64>) {
        if let Some(print) = print {
            self.seen.entry(print).or_insert(judged.line.site);
        }
        // While all stages are equal, only the first note is kept.
        if !judged.line.differs() && self.report.first.is_none() && self.report.notes.is_empty() {
            self.report.notes.extend(judged.note);
        }
        self.report.lines.push(judged.line);
    }

    /// Records a stage that differs.
    fn differs(&mut self, cell: &Cell<'_>, judged: &Judged) {
        let site = judged.line.site;
        let [ours, theirs] = cell.values;
        let index = llama_trace_core::trace::block::index_of(cell.shape, cell.at);
        let kind = if site.stage == Stage::Tokens { Kind::Tokens } else { Kind::Stage };
        let told =
            |value: f64| if site.stage.is_ids() { serde_json::json!(value as i64) } else { number(value) };
        let difference = First {
            kind,
            address: Address::of(site, Step::Stage(site.stage), &index).to_string(),
            ours: told(ours),
            theirs: told(theirs),
            error: Some(judged.line.error),
            tolerance: Some(judged.line.tolerance),
            site: Some(site),
        };
        self.report.differences.push(difference.clone());
        if self.report.first.is_some() {
            return;
        }
        self.report.first = Some(difference);
        let unseen = self.unseen(site);
        let notes = &mut self.report.notes;
        notes.extend(unseen);
        notes.extend(cell.odd.iter().map(|what| format!("B's {site}: {what}")));
        if let Some(other) = cell.print.and_then(|print| self.seen.get(&print)) {
            notes.push(format!("B's {site} has the same values as B's {other}"));
        }
        notes.extend(judged.note.clone());
        self.waits = (kind == Kind::Stage).then_some(site);
    }

    /// A note about earlier stages that were not compared: the mistake that shows at `site` may be in them.
    fn unseen(&self, site: Site) -> Option<String> {
        let compared: HashSet<Site> = self.report.lines.iter().map(|line| line.site).collect();
        let (mut unseen, mut open) = (BTreeSet::new(), vec![site]);
        while let Some(of) = open.pop() {
            let is_unseen = |source: &Site| source.stage != Stage::Tokens && !compared.contains(source);
            for source in self.sources(of).into_iter().filter(is_unseen) {
                let order = (source.pass, source.stage.info().section, source.layer, source.stage as usize);
                if unseen.insert((order, source)) {
                    open.push(source);
                }
            }
        }
        let name = |(_, other): &(_, Site)| match (other.pass, other.layer) == (site.pass, site.layer) {
            true => other.stage.to_string(),
            false => other.to_string(),
        };
        let names: Vec<_> = unseen.iter().map(name).collect();
        let which = match &names[..] {
            [] => return None,
            [first, .., last] if names.len() > NAMED => {
                format!("{} stages, from {first} to {last}", names.len())
            }
            few => few.join(", "),
        };
        Some(format!(
            "the mistake is in this stage, or in an earlier stage that was not compared: {which} (write more stages)"
        ))
    }

    /// A note that B continued with other values than those in the file of the first difference: a stage that reads
    /// them is equal in both runs. Stages whose output may be equal for different inputs prove nothing: a norm,
    /// softmax, a draw.
    fn went_on_otherwise(&self) -> Option<String> {
        let first = self.report.first.as_ref()?.site?;
        let apart = self.report.lines.iter().find(|line| line.site == first)?.apart;
        let tells = |stage: Stage| {
            let info = stage.info();
            info.op != Op::RmsNorm && info.unit != Unit::Share && info.section != Section::Sampler
        };
        let same = |line: &&Line| line.apart <= line.tolerance && line.tolerance * CLEAR <= apart;
        let readers =
            self.report.lines.iter().filter(|line| tells(line.site.stage) && line.site.pass == first.pass);
        let reader = readers
            .filter(same)
            .find(|line| line.site != first && self.sources(line.site).contains(&first))?;
        let named = if self.report.diagnosis.is_empty() {
            ""
        } else {
            ". The named mistake describes that file only"
        };
        Some(format!(
            "{} reads this stage, and is the same in both runs. So the values in B's file are not those that B used. \
             Perhaps the file has another stage, or another order of axes or pairs{named}",
            reader.site
        ))
    }

    /// The stages that `site` is computed from. A cache also depends on earlier passes.
    fn sources(&self, site: Site) -> Vec<Site> {
        let dims =
            |number: usize| self.a.about().passes.iter().map(|pass| pass.dims).find(|it| it.pass == number);
        let Some(own) = dims(site.pass) else { return Vec::new() };
        let inputs = site.inputs(&self.sizes, own).into_iter();
        let mut sources: Vec<Site> = inputs.filter_map(|input| site.input(input, &self.sizes)).collect();
        let before = site.pass.checked_sub(1).and_then(dims);
        if let (Some(before), Stage::CacheK | Stage::CacheV) = (before, site.stage) {
            sources.push(Site { pass: before.pass, ..site });
        }
        sources
    }

    /// Records a stage with another shape. There is no cell to name, and later stages are compared as if B lacked this
    /// stage.
    fn differs_in_shape(&mut self, site: Site, shape: &[usize], [a, b]: [Arc<Frame>; 2], why: String) {
        let shapes = [&a, &b].map(|frame| difference::listed(frame.shape()));
        let fits = |frame: &Frame| difference::fitted(site, shape, frame);
        let key = if fits(&b).is_ok() { None } else { difference::key(site.stage, shape, b.shape()) };
        let misshapen = Misshapen { site, shapes, why, key };
        self.report.differences.push(misshapen.difference());
        self.report.misshapen.push(misshapen);
        if let Ok((a, 0)) = fits(&a) {
            self.judge.only_a(a);
        }
    }

    fn part_done(&mut self, last: Site, progress: Progress<'_>) -> Result<()> {
        if let Some(site) = self.waits.take() {
            let tried = |tried, of| progress(Doing::Mistakes { tried, of });
            self.report.diagnosis = self.judge.diagnose(site, &tried)?;
        }
        self.judge.part_done(last)
    }
}

/// Returns whether the run has the tokens of a pass.
fn says_ids(about: &About, pass: usize) -> bool {
    about.passes.get(pass).is_some_and(|pass| !pass.tokens.is_empty())
}

/// A hash of values. Different values have different hashes, except for one case in 2⁶⁴.
fn print(values: &[f32]) -> u64 {
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    values.iter().fold(MIX, |print, x| (print.rotate_left(23) ^ u64::from(x.to_bits())).wrapping_mul(MIX))
}
