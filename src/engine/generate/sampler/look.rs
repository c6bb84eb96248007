//! Previews of a draw. A preview runs a copy of the sampler on the same logits, with a probe.

use std::ops::Range;

use super::Sampler;
use llama_trace_core::error::Result;
use llama_trace_core::trace::draw::{Draw, Kept, Sampling, Weighed};
use llama_trace_core::trace::{Probe, Site, Stage, Values};

/// A probe that stores the values of a draw.
#[derive(Default)]
struct Seen {
    probs: Vec<f32>,
    nucleus: Vec<f32>,
}

impl Probe for Seen {
    fn enabled(&self) -> bool {
        true
    }

    fn wants(&self, site: Site) -> bool {
        matches!(site.stage, Stage::Probs | Stage::Nucleus)
    }

    fn record(&mut self, site: Site, _: Range<usize>, values: Values<'_>) {
        let Values::F32(values) = values else { return };
        let seen = if site.stage == Stage::Probs { &mut self.probs } else { &mut self.nucleus };
        *seen = values.to_vec();
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

    /// Previews draw number `draw` from `logits` (V). It uses this sampler's options, or those of `setting` with the
    /// same stream.
    ///
    /// # Errors
    /// The errors of [`Sampler::new`].
    pub fn look(&self, logits: &[f32], draw: u64, setting: Option<Sampling>) -> Result<Draw> {
        let sampling = setting.unwrap_or(self.sampling);
        let watched = |sampling| -> Result<_> {
            let (mut sampler, mut seen) = (self.before(draw, sampling)?, Seen::default());
            let drawn = sampler.sample(logits, 0, 0, &mut seen);
            Ok((drawn, seen))
        };
        let (drawn, Seen { probs, nucleus }) = watched(sampling)?;
        // The shares with top-k alone. They are above 0 for the tokens that top-k keeps.
        let left = watched(Sampling { top_p: 1.0, ..sampling })?.1.nucleus;
        let kept = |shares: &[f32]| {
            let stay = probs.iter().zip(shares).filter(|(_, share)| **share > 0.0);
            let (count, sum) = stay.fold((0, 0.0), |(n, sum), (prob, _)| (n + 1, sum + f64::from(*prob)));
            Kept { count, sum }
        };
        let weighed = |id: usize| Weighed {
            id: id as u32,
            logit: logits[id],
            prob: probs[id],
            in_k: left[id] > 0.0,
            share: nucleus[id],
        };
        let mut tokens: Vec<Weighed> = (0..logits.len()).map(weighed).collect();
        // Sorts first by top-p and top-k, so that each of the two cuts is a boundary in the list.
        let cut = |token: &Weighed| (token.share > 0.0, token.in_k);
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
        let random = (sampling.temperature > 0.0)
            .then(|| self.before(draw, sampling).map(|sampler| sampler.random(draw)));
        Ok(Draw {
            setting: sampling,
            vocab: logits.len(),
            tokens,
            after_k: kept(&left),
            after_p: kept(&nucleus),
            drawn,
            random: random.transpose()?,
        })
    }
}

/// The number of 32-bit random words that a draw uses.
pub(super) const WORDS: u128 = 2;
