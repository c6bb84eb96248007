//! Previews of a draw. A preview runs a copy of the sampler on the same logits, with a probe.

use std::collections::HashMap;
use std::ops::Range;

use super::Sampler;
use llama_trace_core::error::Result;
use llama_trace_core::trace::draw::{Draw, Filter, Kept, Sampling, Weighed};
use llama_trace_core::trace::{Probe, Site, Stage, Values};

/// A probe that stores the values of a draw.
#[derive(Default)]
struct Seen {
    penalized: Option<Vec<f32>>,
    probs: Vec<f32>,
    min_p: Option<Vec<f32>>,
    nucleus: Vec<f32>,
}

impl Probe for Seen {
    fn enabled(&self) -> bool {
        true
    }

    fn wants(&self, site: Site) -> bool {
        !matches!(site.stage, Stage::TypicalP | Stage::Sampled)
    }

    fn record(&mut self, site: Site, _: Range<usize>, values: Values<'_>) {
        let Values::F32(values) = values else { return };
        match site.stage {
            Stage::PenalizedLogits => self.penalized = Some(values.to_vec()),
            Stage::Probs => self.probs = values.to_vec(),
            Stage::MinP => self.min_p = Some(values.to_vec()),
            _ => self.nucleus = values.to_vec(),
        }
    }
}

impl Sampler {
    /// Returns a sampler with the options `sampling` and this sampler's stream, at the state before draw number `draw`.
    ///
    /// # Errors
    /// The errors of [`Sampler::new`].
    pub fn before(&self, draw: u64, sampling: Sampling) -> Result<Self> {
        let mut sampler = Self::new(sampling)?.with_stream(self.random.get_stream());
        sampler.earlier = self.earlier;
        sampler.random.set_word_pos(sampler.word(draw));
        Ok(sampler)
    }

    /// Previews draw number `draw` from `logits` (V) after `text`, and counts `times` draws from it on. It uses this
    /// sampler's options, or those of `setting` with the same stream.
    ///
    /// # Errors
    /// The errors of [`Sampler::new`].
    pub fn look(
        &self,
        (logits, text): (&[f32], &[u32]),
        draw: u64,
        setting: Option<Sampling>,
        times: usize,
    ) -> Result<Draw> {
        let sampling = setting.unwrap_or(self.sampling);
        let watched = |sampling| -> Result<_> {
            let (mut sampler, mut seen) = (self.before(draw, sampling)?, Seen::default());
            let drawn = sampler.sample(logits, text, (0, 0), &mut seen);
            Ok((drawn, seen, sampler))
        };
        let (drawn, Seen { penalized, probs, min_p, nucleus }, sampler) = watched(sampling)?;
        let counts = sampler.counts(drawn, times);
        let random = (sampling.temperature > 0.0)
            .then(|| self.before(draw, sampling).map(|sampler| sampler.random(draw)));
        // The shares without the later filters. They are above 0 for the tokens that the filters keep.
        let shares = |sampling| watched(sampling).map(|(_, seen, _)| seen.nucleus);
        let to_p = Sampling { min_p: 0.0, typical_p: 1.0, ..sampling };
        let top_k = shares(Sampling { top_p: 1.0, ..to_p })?;
        let top_p = if to_p == sampling { nucleus.clone() } else { shares(to_p)? };
        let min_p = min_p.unwrap_or_else(|| top_p.clone());
        let kept = |shares: &[f32]| {
            let stay = probs.iter().zip(shares).filter(|(_, share)| **share > 0.0);
            let (count, sum) = stay.fold((0, 0.0), |(n, sum), (prob, _)| (n + 1, sum + f64::from(*prob)));
            Kept { count, sum }
        };
        let filters = [
            (Filter::TopK, &top_k),
            (Filter::TopP, &top_p),
            (Filter::MinP, &min_p),
            (Filter::TypicalP, &nucleus),
        ];
        let logits = penalized.as_deref().unwrap_or(logits);
        let weighed = |id: usize| Weighed {
            id: id as u32,
            logit: logits[id],
            prob: probs[id],
            removed_by: filters.iter().find(|(_, shares)| shares[id] == 0.0).map(|(filter, _)| *filter),
            share: nucleus[id],
            count: counts.get(&(id as u32)).copied().unwrap_or(0),
        };
        let mut tokens: Vec<Weighed> = (0..logits.len()).map(weighed).collect();
        // Sorts first by the filter, so that each cut is a boundary in the list. The later a filter, the earlier the
        // tokens that it removes; the tokens that stay are first.
        let cut = |token: &Weighed| (token.removed_by.is_none(), token.removed_by);
        let order = |a: &Weighed, b: &Weighed| {
            let by_size =
                cut(b).cmp(&cut(a)).then(b.prob.total_cmp(&a.prob)).then(b.logit.total_cmp(&a.logit));
            by_size.then(a.id.cmp(&b.id))
        };
        if tokens.len() > Draw::MOST {
            tokens.select_nth_unstable_by(Draw::MOST - 1, order);
            tokens.truncate(Draw::MOST);
        }
        tokens.sort_unstable_by(order);
        Ok(Draw {
            setting: sampling,
            vocab: logits.len(),
            tokens,
            after_k: kept(&top_k),
            after_p: kept(&top_p),
            after_min_p: kept(&min_p),
            after_typical_p: kept(&nucleus),
            drawn,
            random: random.transpose()?,
            times,
        })
    }

    /// Counts `times` draws from the same candidates: the draw of `first`, which was just made, and the next ones.
    fn counts(mut self, first: u32, times: usize) -> HashMap<u32, u32> {
        let mut counts = HashMap::new();
        for number in 0..times {
            let is_drawn = number > 0 && self.sampling.temperature > 0.0;
            let id = if is_drawn { self.draw() } else { first };
            *counts.entry(id).or_default() += 1;
        }
        counts
    }
}

/// The number of 32-bit random words that a draw uses.
pub(super) const WORDS: u128 = 2;
