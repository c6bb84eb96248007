//! Finds the known mistakes that explain a run's values at a stage. Each form is tried on a few tokens first, which
//! rules out most of them.

use super::bench::{Exactly, of_the_run};
use super::difference::{Apart, number, value};
use super::given::Given;
use super::injection::{Bad, Injection, apart};
use super::judge::Tried;
use super::mistakes::{Mistake, mistakes};
use super::report::Diagnosis;
use llama_trace_core::error::Result;
use llama_trace_core::trace::Site;

/// Numbers of tokens for which a stage is computed before it is computed for all.
const FEW: [usize; 2] = [8, 64];

/// A stage that differs, and the inputs to explain it.
struct Case<'a> {
    site: Site,
    bad: &'a Bad,
    /// The stage's error.
    before: f64,
    /// ‖found‖² over the computed cells.
    norm: f64,
    /// The stage's inputs: for few tokens, for more tokens, and for all tokens.
    given: Vec<Given>,
}

impl Injection<'_> {
    /// The mistakes that would give the run's values at `site`, most likely first.
    pub(super) fn search_mistakes(&self, site: Site, bad: &Bad, tried: Tried<'_>) -> Result<Vec<Diagnosis>> {
        let mut bench = self.bench(&self.rules, bad.of_a);
        let all = Given::all(&bench, &self.begun);
        let Some(frame) = all.found(site) else { return Ok(Vec::new()) };
        let Some(right) = of_the_run(bench.fold_rows(site, &bad.rows))? else { return Ok(Vec::new()) };
        // Values that were filled in are left out.
        let right: Exactly = right.into_iter().filter(|(at, _)| *at >= bad.first).collect();
        let squares = right.iter().map(|&(at, _)| value(site.stage, number(frame, at)).powi(2));
        let norm = squares.filter(|square| square.is_finite()).sum();
        let before = apart(frame, &right, bad.first).error();
        let mistakes = mistakes(&self.card, &self.begun, &bench.chain(site), frame, &right);
        let few = FEW.into_iter().filter(|_| bad.first == 0);
        let mut given: Vec<_> =
            few.filter_map(|tokens| all.first(tokens, site, self.rules.sizes())).collect();
        given.push(all);
        let case = Case { site, bad, before, norm, given };
        let (mut found, of): (Vec<Diagnosis>, _) = (Vec::new(), mistakes.len());
        for (i, mistake) in mistakes.into_iter().enumerate() {
            tried(i, of);
            // A mistake of a port explains a stage better than one of a single stage that gives the same values: two
            // stages that both read wrong angles may hide it. The mistakes of whole tensors are last.
            if mistake.whole.is_some() && !found.is_empty() {
                continue;
            }
            let Some(after) = self.after(&case, &mistake)? else { continue };
            let Mistake { name, form, .. } = mistake;
            match found.iter_mut().find(|one| one.name == name) {
                Some(one) if one.after <= after => {}
                Some(one) => (one.after, one.form) = (after, form),
                None => found.push(Diagnosis { name, form, before, after }),
            }
        }
        found.sort_by(|a, b| a.after.total_cmp(&b.after));
        Ok(found)
    }

    /// The error of the stage relative to the result with this mistake; `None` if the mistake does not explain it.
    fn after(&self, case: &Case<'_>, mistake: &Mistake) -> Result<Option<f64>> {
        let (site, bad, before) = (case.site, case.bad, case.before);
        let most = if mistake.rounds { bad.tolerance.max(before / 8.0) } else { bad.explained };
        let card = mistake.card.as_ref().unwrap_or(&self.card);
        let mut off = Apart::default();
        for given in case.given.iter().skip(if mistake.looks_ahead { case.given.len() - 1 } else { 0 }) {
            let rules = given.rules(card, self.sampling);
            let mut bench = given.bench(self.model, &rules);
            (bench.change, bench.otherwise) = (&*mistake.change, mistake.otherwise);
            if !bench.chain(site).iter().any(|site| mistake.touches.contains(&site.stage)) {
                return Ok(None);
            }
            let Some(frame) = given.found(site) else { return Ok(None) };
            let wrong = match mistake.whole {
                Some(_) => bench.fold_whole(site, &bad.rows, mistake),
                None => bench.fold_rows(site, &bad.rows),
            };
            let Some(wrong) = of_the_run(wrong)? else { return Ok(None) };
            off = apart(frame, &wrong, bad.first);
            if off.is_above(most, case.norm) {
                return Ok(None);
            }
        }
        let after = off.error();
        // If `before` is infinite, so is its half, and an infinite `after` would pass: it must be finite. Under a large
        // tolerance, a mistake that hardly changes the error explains nothing.
        let explains = after.is_finite() && after <= most && (after <= before / 2.0 || before.is_nan());
        Ok(explains.then_some(after))
    }
}
