//! Sampling of the next token, in the order of transformers: repetition penalty (Keskar et al., 2019), temperature,
//! top-k, top-p (nucleus sampling, Holtzman et al., 2020), min-p (Nguyen et al., 2024), typical-p (Meister et al., 2023).

use std::mem;
use std::ops::RangeInclusive;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::backend::{Draw as Drawing, Host};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::ops::typical::Typical;
use llama_trace_core::trace::{Filters, Probe, Sampling, Site, Stage, Values};

/// A sampler that draws one token after another.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    random: ChaCha8Rng,
    /// The number of draws in the stream before this sampler's draw number 0.
    earlier: u64,
    /// The kernel that computes softmax. Every kernel gives the same bits, so the fastest one is used.
    kernel: Host,
    /// The logits after the repetition penalty, if there is one.
    penalized: Vec<f32>,
    probs: Vec<f32>,
    /// The rank of the last candidate: all tokens with this [`rank`] or a higher one are candidates.
    cut: u64,
    /// The sum of the probabilities of the candidates.
    total: f64,
    sums: Vec<f64>,
    near: Vec<u64>,
}

/// The lowest temperature except 0. Logits that are divided by it are still finite in float32.
const COLDEST: f32 = 1e-30;

/// The range of the repetition penalty.
const PENALTIES: RangeInclusive<f32> = 0.01..=100.0;

/// The stages of a draw.
const STAGES: [Stage; 6] =
    [Stage::PenalizedLogits, Stage::Probs, Stage::MinP, Stage::TypicalP, Stage::Nucleus, Stage::Sampled];

impl Sampler {
    /// Creates a sampler at the start of its random numbers.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] if an option is out of range. A temperature must not be so small that divided logits
    /// overflow float32.
    pub fn new(sampling: Sampling) -> Result<Self> {
        let wrong = |option: &str, expected: &str, found: f32| {
            Error::usage(format!("{option} is out of range"))
                .expected(expected)
                .found(found)
                .next(format!("give another {option}, or leave it out"))
        };
        let Sampling { temperature, .. } = sampling;
        if !(temperature.is_finite() && (temperature == 0.0 || temperature >= COLDEST)) {
            let expected = "0 (always the most likely token), or 1e-30 or more; 1 samples from the model's own probabilities";
            return Err(wrong("--temperature", expected, sampling.temperature));
        }
        if !(sampling.top_p > 0.0 && sampling.top_p <= 1.0) {
            return Err(wrong("--top-p", "a number over 0 and up to 1", sampling.top_p));
        }
        if !(0.0..=1.0).contains(&sampling.min_p) {
            let expected = "a number from 0 to 1; 0 removes no token";
            return Err(wrong("--min-p", expected, sampling.min_p));
        }
        if !(sampling.typical_p > 0.0 && sampling.typical_p <= 1.0) {
            let expected = "a number over 0 and up to 1; 1 removes no token";
            return Err(wrong("--typical-p", expected, sampling.typical_p));
        }
        if !PENALTIES.contains(&sampling.repetition_penalty) {
            let expected =
                "a number from 0.01 to 100; 1 changes nothing, more makes repeated tokens less likely";
            return Err(wrong("--repetition-penalty", expected, sampling.repetition_penalty));
        }
        let random = ChaCha8Rng::seed_from_u64(sampling.seed);
        Ok(Self {
            sampling,
            random,
            earlier: 0,
            kernel: Host::default(),
            penalized: Vec::new(),
            probs: Vec::new(),
            cut: 0,
            total: 0.0,
            sums: Vec::new(),
            near: Vec::new(),
        })
    }

    /// Returns the sampling options.
    pub fn sampling(&self) -> Sampling {
        self.sampling
    }

    /// Returns the same sampler at the start of another stream of random numbers, with the same seed. The first stream
    /// is number 0.
    #[must_use]
    pub fn with_stream(mut self, stream: u64) -> Self {
        self.random = ChaCha8Rng::seed_from_u64(self.sampling.seed);
        self.random.set_stream(stream);
        self.earlier = 0;
        self
    }

    /// Returns a copy of the sampler at the state before its last draw. Draw number 0 of the copy repeats this draw. If
    /// the sampler has not drawn yet, the copy is identical.
    #[must_use]
    pub fn before_the_last(&self) -> Self {
        let drawn = u64::try_from(self.random.get_word_pos() / look::WORDS).unwrap_or(u64::MAX);
        let mut sampler = self.clone();
        sampler.earlier = drawn.saturating_sub(1);
        sampler.random.set_word_pos(sampler.word(0));
        sampler
    }

    /// Returns the position of the random number of draw number `draw` in the stream.
    fn word(&self, draw: u64) -> u128 {
        (u128::from(self.earlier) + u128::from(draw)) * look::WORDS
    }

    /// Returns the same sampler at the start of another stream, whose number is higher by `count`.
    #[must_use]
    pub fn after(&self, count: u64) -> Self {
        self.clone().with_stream(self.random.get_stream().wrapping_add(count))
    }

    /// Returns the random number of draw number `draw`, from 0 to 1. A draw uses it only if the temperature is not 0.
    pub fn random(&self, draw: u64) -> f64 {
        let mut random = self.random.clone();
        random.set_word_pos(self.word(draw));
        random.random()
    }

    /// Returns the parameters of the draw after `others` further draws, for a device that samples itself. Call
    /// [`Sampler::skip`] after the device has drawn. `None` if a device cannot draw with these options.
    pub fn next_draw(&self, others: usize) -> Option<Drawing> {
        if self.sampling.filters() != Filters::default() {
            return None;
        }
        let Sampling { temperature, top_k, top_p, .. } = self.sampling;
        let random = if temperature == 0.0 {
            0.0
        } else {
            let mut random = self.random.clone();
            for _ in 0..others {
                let _: f64 = random.random();
            }
            random.random()
        };
        Some(Drawing { temperature, top_k, top_p, random })
    }

    /// Advances the sampler as if a token had been drawn.
    pub fn skip(&mut self) {
        if self.sampling.temperature != 0.0 {
            let _: f64 = self.random.random();
        }
    }

    /// Whether `probe` wants a stage of the draw after `pass` over `sequence`.
    pub fn is_watched(probe: &dyn Probe, sequence: usize, pass: usize) -> bool {
        let wants = |stage| probe.wants(Site { sequence, ..Site::once(pass, stage) });
        probe.enabled() && STAGES.into_iter().any(wants)
    }

    /// Draws a token from `logits` (V), and offers the probe the stages of the draw after `pass` over `sequence`. `text`
    /// has the tokens of the text so far, for the repetition penalty.
    ///
    /// NaN logits are never drawn. If all are NaN, the result is token 0.
    pub fn sample(
        &mut self,
        logits: &[f32],
        text: &[u32],
        (sequence, pass): (usize, usize),
        probe: &mut dyn Probe,
    ) -> u32 {
        let site = |stage| Site { sequence, ..Site::once(pass, stage) };
        let wants = |probe: &dyn Probe, stage| probe.enabled() && probe.wants(site(stage));
        let offer = |probe: &mut dyn Probe, stage, values: &[f32]| {
            if wants(probe, stage) {
                probe.record(site(stage), 0..1, Values::F32(values));
            }
        };
        let filters = self.sampling.filters();
        let mut penalized = mem::take(&mut self.penalized);
        let logits = if filters.penalty {
            self.penalize(logits, text, &mut penalized);
            offer(probe, Stage::PenalizedLogits, &penalized);
            &penalized
        } else {
            logits
        };
        let greedy = self.sampling.temperature == 0.0;
        if !greedy || wants(probe, Stage::Probs) {
            self.set_probs(logits);
            offer(probe, Stage::Probs, &self.probs);
        }
        let id = if greedy {
            argmax(logits)
        } else {
            self.set_cut();
            if filters.min_p {
                self.keep_min_p();
                offer(probe, Stage::MinP, &self.probs);
            }
            if filters.typical_p {
                self.keep_typical();
                offer(probe, Stage::TypicalP, &self.probs);
            }
            self.draw()
        };
        if wants(probe, Stage::Nucleus) {
            // At temperature 0 the argmax has the whole probability.
            let only = |i| if i == id as usize { 1.0 } else { 0.0 };
            let nucleus = match filters {
                _ if greedy => (0..logits.len()).map(only).collect(),
                Filters { min_p: false, typical_p: false, .. } => self.nucleus(),
                _ => self.probs.clone(),
            };
            offer(probe, Stage::Nucleus, &nucleus);
        }
        if wants(probe, Stage::Sampled) {
            probe.record(site(Stage::Sampled), 0..1, Values::I64(&[i64::from(id)]));
        }
        self.penalized = penalized;
        id
    }

    /// Sets `penalized` to the logits, with the repetition penalty for each token that `text` has.
    fn penalize(&self, logits: &[f32], text: &[u32], penalized: &mut Vec<f32>) {
        penalized.clear();
        penalized.extend_from_slice(logits);
        for &id in text {
            if let (Some(logit), Some(penalized)) = (logits.get(id as usize), penalized.get_mut(id as usize))
            {
                *penalized = self.sampling.penalized(*logit);
            }
        }
    }

    /// Sets `probs` to softmax(logits / temperature), or at temperature 0 to softmax(logits).
    fn set_probs(&mut self, logits: &[f32]) {
        let temperature = if self.sampling.temperature == 0.0 { 1.0 } else { self.sampling.temperature };
        self.probs.clear();
        self.probs.extend(logits.iter().map(|logit| logit / temperature));
        self.kernel.softmax(&mut self.probs);
    }

    /// Draws one of the candidates in proportion to their probabilities. Adds up the probabilities from the most likely
    /// candidate on. The drawn token is the first one at which the sum exceeds a random fraction of the total.
    /// [`Self::add_up`] must have added up the probabilities.
    fn draw(&mut self) -> u32 {
        let target = self.total * self.random.random::<f64>();
        let drawn = self.reach(f64::from, |sum| sum > target);
        drawn.map_or(0, |(rank, _)| !(rank as u32))
    }

    /// Finds the least likely candidate, [`Self::cut`], and the total probability of the candidates. As in transformers,
    /// top-k comes first, and top-p is a share of the remaining probability. But here exactly k tokens remain, while
    /// transformers also keeps all tokens that are as likely as the k-th.
    fn set_cut(&mut self) {
        let Sampling { top_k, top_p, .. } = self.sampling;
        // First, all tokens with a probability greater than 0 are candidates.
        self.cut = LEAST;
        if top_k > 0 {
            self.add_up(|_| 1.0);
            let reached = self.reach(|_| 1.0, |count| count >= top_k as f64);
            self.cut = reached.map_or(self.cut, |(cut, _)| cut);
        }
        self.add_up(f64::from);
        self.total = self.sums.iter().sum();
        if top_p < 1.0 {
            // If top-p is nearly 1, the sum may stay below the limit, because it is added in another order than the
            // total. Then all candidates are kept.
            let enough = f64::from(top_p) * self.total;
            let reached = self.reach(f64::from, |sum| sum >= enough);
            (self.cut, self.total) = reached.unwrap_or((self.cut, self.total));
        }
    }

    /// Keeps the candidates whose probability is at least the share min-p of the largest one.
    fn keep_min_p(&mut self) {
        let largest = self.candidates().fold(0.0, |largest: f32, (_, prob)| largest.max(prob));
        let least = f64::from(self.sampling.min_p) * f64::from(largest);
        self.retain(|prob| prob >= least);
    }

    /// Keeps the most typical candidates.
    fn keep_typical(&mut self) {
        let probs = self.candidates().map(|(_, prob)| f64::from(prob));
        let typical = Typical::new(probs, self.sampling.typical_p);
        self.retain(|prob| typical.keeps(prob));
    }

    /// Removes the candidates that `stays` does not accept, by their probability. `probs` are then the shares of the
    /// others.
    fn retain(&mut self, stays: impl Fn(f64) -> bool) {
        let left = self.candidates().filter(|(_, prob)| stays(f64::from(*prob)));
        let total: f64 = left.clone().map(|(_, prob)| f64::from(prob)).sum();
        let mut shares = vec![0.0; self.probs.len()];
        for (id, prob) in left {
            shares[id as usize] = (f64::from(prob) / total) as f32;
        }
        (self.probs, self.cut) = (shares, LEAST);
        self.add_up(f64::from);
        self.total = self.sums.iter().sum();
    }

    /// Returns the candidates and their probabilities.
    fn candidates(&self) -> impl Iterator<Item = (u32, f32)> + Clone {
        let cut = self.cut;
        let all = (0_u32..).zip(self.probs.iter().copied());
        all.filter(move |(id, prob)| *prob > 0.0 && rank(*id, *prob) >= cut)
    }

    /// Adds up the `weight` of each candidate in buckets. The bucket's index is the [`leading`] bits of the candidate's
    /// probability.
    fn add_up(&mut self, weight: impl Fn(f32) -> f64) {
        let mut sums = mem::take(&mut self.sums);
        sums.clear();
        sums.resize(LEADING, 0.0);
        for (_, prob) in self.candidates() {
            sums[leading(prob)] += weight(prob);
        }
        self.sums = sums;
    }

    /// Finds the first candidate, from the most likely on, at which the sum of the `weight`s has `reached` a target.
    /// Returns its rank and the sum. If the sum never reaches the target, this is the least likely candidate. Returns
    /// `None` if there are no candidates.
    ///
    /// [`Self::add_up`] must have added up the same weights. Nothing is sorted: the bits of the probability are found
    /// part by part, and each step looks only at candidates with the same earlier bits.
    fn reach(&mut self, weight: impl Fn(f32) -> f64, reached: impl Fn(f64) -> bool) -> Option<(u64, f64)> {
        let mut sum = 0.0;
        let found = walk(&self.sums, &mut sum, &reached)?;
        let mut near = mem::take(&mut self.near);
        near.resize(near.len().max(self.probs.len()), 0);
        // Writes every rank, but advances `count` only if the rank has these leading bits. A branch would often be
        // mispredicted. The range excludes the probability 0.
        let first = ((found as u32) << MANTISSA).max(1);
        let after = (found as u32 + 1) << MANTISSA;
        let mut count = 0;
        for (id, prob) in (0..).zip(&self.probs) {
            let bits = prob.to_bits();
            near[count] = rank(id, *prob);
            count += usize::from(bits.wrapping_sub(first) < after - first);
        }
        count = keep(&mut near[..count], |rank| rank >= self.cut);
        let weight = |rank: u64| weight(f32::from_bits((rank >> 32) as u32));
        for shift in [10, 0] {
            let part = |rank: u64| (rank >> (32 + shift)) as usize % 1024;
            let mut sums = [0.0; 1024];
            for &rank in &near[..count] {
                sums[part(rank)] += weight(rank);
            }
            let found = walk(&sums, &mut sum, &reached)?;
            count = keep(&mut near[..count], |rank| part(rank) == found);
        }
        // The remaining candidates are equally likely. Lower ids come first.
        let last = near[..count].iter().position(|&rank| {
            sum += weight(rank);
            reached(sum)
        });
        let last = last.map_or(near[..count].last(), |last| near.get(last)).copied();
        self.near = near;
        last.map(|last| (last, sum))
    }

    /// Returns the share of each token of the vocabulary in the total probability of the candidates. It is 0 for a
    /// token that is not a candidate.
    fn nucleus(&self) -> Vec<f32> {
        let mut nucleus = vec![0.0; self.probs.len()];
        let total: f64 = self.candidates().map(|(_, prob)| f64::from(prob)).sum();
        for (id, prob) in self.candidates() {
            nucleus[id as usize] = (f64::from(prob) / total) as f32;
        }
        nucleus
    }
}

/// Returns a number that is larger for a more likely token and, if two are equally likely, for the lower id. It begins
/// with the bits of the probability: the bits of positive floats have the same order as their values.
const fn rank(id: u32, prob: f32) -> u64 {
    (prob.to_bits() as u64) << 32 | !id as u64
}

/// The rank below which no token is a candidate: that of the smallest probability above 0.
const LEAST: u64 = rank(u32::MAX, f32::from_bits(1));

/// Moves the ranks that `stays` accepts to the front, in order. Returns their number. There is no branch that could be
/// mispredicted.
fn keep(ranks: &mut [u64], stays: impl Fn(u64) -> bool) -> usize {
    let mut count = 0;
    for at in 0..ranks.len() {
        let rank = ranks[at];
        ranks[count] = rank;
        count += usize::from(stays(rank));
    }
    count
}

/// Adds up `sums` from the last to the first. Returns the first index at which the sum has `reached` its target; if it
/// never does, the lowest index with a value above 0. `sum` is the start value. Afterwards it includes all values that
/// were added before the returned index.
fn walk(sums: &[f64], sum: &mut f64, reached: impl Fn(f64) -> bool) -> Option<usize> {
    let mut found = None;
    for (at, part) in sums.iter().enumerate().rev().filter(|(_, part)| **part > 0.0) {
        *sum += found.map_or(0.0, |(_, part)| part);
        found = Some((at, *part));
        if reached(*sum + part) {
            break;
        }
    }
    found.map(|(at, _)| at)
}

/// Returns the leading bits of a positive probability: its exponent and the first 3 bits of its mantissa.
const fn leading(prob: f32) -> usize {
    (prob.to_bits() >> MANTISSA) as usize
}

/// The number of bits below the [`leading`] bits.
const MANTISSA: u32 = 20;

/// The number of possible values of the [`leading`] bits. No probability is greater than 1.
const LEADING: usize = leading(1.0) + 1;

/// Returns the id of the largest logit; if several are equal, the lowest id. 0 if all are NaN.
fn argmax(logits: &[f32]) -> u32 {
    let better = |best: usize, id: usize| logits[best].is_nan() || logits[id] > logits[best];
    (0..logits.len()).fold(0, |best, id| if better(best, id) && !logits[id].is_nan() { id } else { best })
        as u32
}

mod look;
#[cfg(test)]
mod tests;
