//! The logit lens: the logits of an unfinished residual, for a live or a recorded run.

use std::collections::HashMap;
use std::ops::Range;

use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::lens::{Candidate, LensAt, Reading};
use llama_trace_core::trace::{Probe, Site, Stage, Values};
use llama_trace_engine::model::{Activations, Model, pass};

/// The most likely ids after the last layer, by pass and token.
#[derive(Default)]
pub(super) struct Answers(HashMap<(usize, usize), u32>);

impl Answers {
    /// The ids for the tokens of `at`, if all are known.
    pub(super) fn get(&self, at: &LensAt) -> Option<Vec<u32>> {
        at.tokens.clone().map(|token| self.0.get(&(at.site.pass, token)).copied()).collect()
    }

    /// Stores and returns the ids for the tokens of `at`, from the readings of the last layer.
    pub(super) fn keep(&mut self, at: &LensAt, last: &[Reading]) -> Vec<u32> {
        let ids: Vec<u32> = last.iter().map(|reading| reading.answer.id).collect();
        let keys = at.tokens.clone().map(|token| (at.site.pass, token));
        self.0.extend(keys.zip(ids.iter().copied()));
        ids
    }

    /// Removes all ids, before another run is shown.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Applies the head to rows `tokens` of the residual in `work`, with the operations at the end of the pass. Lists the
/// `top` most likely tokens. `answers` has the final prediction for each row; it is empty if this is the last layer.
///
/// # Errors
/// The errors of the backend.
pub(super) fn read_residual(
    model: &Model,
    work: &mut Activations,
    tokens: Range<usize>,
    top: usize,
    answers: &[u32],
) -> Result<Vec<Reading>> {
    let readings = vec![None; tokens.len()];
    let (vocab, logits) = (model.config.vocab, model.sizes().last_logits());
    let mut ranking = Ranking { tokens: tokens.clone(), vocab, logits, top, answers, readings };
    pass::finish_rows(model, work, tokens, &mut ranking)?;
    model.backend.sync()?;
    let read = ranking.readings.into_iter().collect::<Option<Vec<_>>>();
    read.ok_or_else(|| Error::usage("the head has not read all of these rows"))
}

/// Ranks rows of logits as they arrive, without keeping them.
struct Ranking<'a> {
    /// The tokens of the pass whose rows are ranked.
    tokens: Range<usize>,
    /// V.
    vocab: usize,
    /// The stage that the sampler reads.
    logits: Stage,
    /// The number of most likely tokens to list.
    top: usize,
    /// The final prediction for each of the tokens; empty if this is the last layer.
    answers: &'a [u32],
    /// The readings so far, by token.
    readings: Vec<Option<Reading>>,
}

impl Probe for Ranking<'_> {
    fn enabled(&self) -> bool {
        true
    }

    fn wants(&self, site: Site) -> bool {
        site.stage == self.logits
    }

    fn record(&mut self, _: Site, rows: Range<usize>, values: Values<'_>) {
        let Values::F32(logits) = values else { return };
        for (token, row) in rows.zip(logits.chunks_exact(self.vocab)) {
            if let Some(at) = token.checked_sub(self.tokens.start).filter(|_| token < self.tokens.end) {
                self.readings[at] = Some(read(row, self.top, self.answers.get(at).copied()));
            }
        }
    }
}

/// The reading of `logits` (V), with the `top` most likely tokens.
fn read(logits: &[f32], top: usize, answer: Option<u32>) -> Reading {
    let before = |a: u32, b: u32| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b));
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let share = |logit: f32| (f64::from(logit) - f64::from(max)).exp();
    let sum: f64 = logits.iter().map(|&logit| share(logit)).sum();
    let candidate = |id: u32, rank: usize| {
        let logit = logits[id as usize];
        Candidate { id, logit, prob: (share(logit) / sum) as f32, rank }
    };
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    let top = top.clamp(1, ids.len());
    if top < ids.len() {
        ids.select_nth_unstable_by(top - 1, |&a, &b| before(a, b));
        ids.truncate(top);
    }
    ids.sort_unstable_by(|&a, &b| before(a, b));
    let answer = answer.unwrap_or(ids[0]);
    let rank = (0..logits.len() as u32).filter(|&other| before(other, answer).is_lt()).count() + 1;
    let top = ids.iter().zip(1..).map(|(&id, rank)| candidate(id, rank)).collect();
    Reading { top, answer: candidate(answer, rank) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_ranked_and_of_equals_the_lower_id_comes_first() {
        let logits = [1.0, 3.0, -f32::INFINITY, 3.0, 2.0];
        let reading = read(&logits, 3, Some(0));
        let top: Vec<_> = reading.top.iter().map(|one| (one.id, one.rank)).collect();
        assert_eq!(top, [(1, 1), (3, 2), (4, 3)]);
        assert_eq!((reading.answer.id, reading.answer.rank, reading.answer.logit), (0, 4, 1.0));
        let all = read(&logits, 99, None);
        assert_eq!((all.top.len(), all.answer.id), (5, 1));
        assert!((all.top.iter().map(|one| one.prob).sum::<f32>() - 1.0).abs() < 1e-6);
        assert_eq!(all.top[4].prob, 0.0);
    }
}
