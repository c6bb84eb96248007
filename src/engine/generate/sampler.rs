//! Drawing the next token: temperature, top-k, top-p (nucleus sampling, Holtzman et al., 2020).

use std::mem;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::backend::{Draw as Drawing, Host};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::{Probe, Sampling, Site, Stage, Values};

/// Draws token after token.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    random: ChaCha8Rng,
    /// Tokens that others had drawn of the stream before this one's first.
    earlier: u64,
    /// What computes softmax. Every kernel gives the same bits, so the fastest does for all.
    kernel: Host,
    probs: Vec<f32>,
    /// The candidates are the tokens of this [`rank`] and above.
    cut: u64,
    sums: Vec<f64>,
    near: Vec<u64>,
}

/// The lowest temperature but 0: logits divided by it are still float32 numbers.
const COLDEST: f32 = 1e-30;

impl Sampler {
    /// A sampler at the start of its random numbers.
    ///
    /// # Errors
    /// [`Error::Usage`] where the temperature is negative or so small that logits have no float32 once they are divided by it, top-p is not in 0 … 1, or one is not a number.
    pub fn new(sampling: Sampling) -> Result<Self> {
        let wrong = |option: &str, expected: &str, found: f32| {
            Error::usage(format!("{option} is out of range"))
                .expected(expected)
                .found(found)
                .next(format!("give another {option}, or leave it out"))
        };
        let Sampling { temperature, .. } = sampling;
        if !(temperature.is_finite() && (temperature == 0.0 || temperature >= COLDEST)) {
            let expected = "0 (always the most likely token), or 1e-30 or more; 1 draws from the model's own probabilities";
            return Err(wrong("--temperature", expected, sampling.temperature));
        }
        if !(sampling.top_p > 0.0 && sampling.top_p <= 1.0) {
            return Err(wrong("--top-p", "a number over 0 and up to 1", sampling.top_p));
        }
        let random = ChaCha8Rng::seed_from_u64(sampling.seed);
        Ok(Self {
            sampling,
            random,
            earlier: 0,
            kernel: Host::default(),
            probs: Vec::new(),
            cut: 0,
            sums: Vec::new(),
            near: Vec::new(),
        })
    }

    /// How it draws.
    pub fn sampling(&self) -> Sampling {
        self.sampling
    }

    /// The same at the start of the random numbers of another stream of the same seed: the first is 0.
    #[must_use]
    pub fn with_stream(mut self, stream: u64) -> Self {
        self.random = ChaCha8Rng::seed_from_u64(self.sampling.seed);
        self.random.set_stream(stream);
        self.earlier = 0;
        self
    }

    /// The same before the last token that it has drawn: its draw number 0 is that once more. Where it has drawn none, the
    /// same.
    #[must_use]
    pub fn before_the_last(&self) -> Self {
        let drawn = u64::try_from(self.random.get_word_pos() / look::WORDS).unwrap_or(u64::MAX);
        let mut sampler = self.clone();
        sampler.earlier = drawn.saturating_sub(1);
        sampler.random.set_word_pos(sampler.word(0));
        sampler
    }

    /// Where the random number of draw number `draw` lies in the stream.
    fn word(&self, draw: u64) -> u128 {
        (u128::from(self.earlier) + u128::from(draw)) * look::WORDS
    }

    /// The same at the start of the stream that is `count` after its own.
    #[must_use]
    pub fn after(&self, count: u64) -> Self {
        self.clone().with_stream(self.random.get_stream().wrapping_add(count))
    }

    /// The random number, from 0 to 1, that draw number `draw` of this stream draws by, where the temperature is not 0.
    pub fn random(&self, draw: u64) -> f64 {
        let mut random = self.random.clone();
        random.set_word_pos(self.word(draw));
        random.random()
    }

    /// What the token is drawn by that comes after `others` more, for a device that draws by itself ([`Sampler::skip`] then
    /// goes on).
    pub fn coming_draw(&self, others: usize) -> Drawing {
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
        Drawing { temperature, top_k, top_p, random }
    }

    /// Goes on as if a token had been drawn.
    pub fn skip(&mut self) {
        if self.sampling.temperature != 0.0 {
            let _: f64 = self.random.random();
        }
    }

    /// Whether `probe` wants to see how the token of `pass` over `sequence` is drawn.
    pub fn is_watched(probe: &dyn Probe, sequence: usize, pass: usize) -> bool {
        let stages = [Stage::Probs, Stage::Nucleus, Stage::Sampled];
        let wants = |stage| probe.wants(Site { sequence, ..Site::once(pass, stage) });
        probe.enabled() && stages.into_iter().any(wants)
    }

    /// Draws a token from `logits` (V), and shows the probe `probs`, `nucleus` and `sampled` of `pass` over `sequence`.
    ///
    /// Logits that are not a number are never drawn; where all are, the answer is token 0.
    pub fn sample(&mut self, logits: &[f32], sequence: usize, pass: usize, probe: &mut dyn Probe) -> u32 {
        let site = |stage| Site { sequence, ..Site::once(pass, stage) };
        let wants = |probe: &dyn Probe, stage| probe.enabled() && probe.wants(site(stage));
        let (see_probs, see_nucleus) = (wants(probe, Stage::Probs), wants(probe, Stage::Nucleus));
        let greedy = self.sampling.temperature == 0.0;
        if !greedy || see_probs {
            self.set_probs(logits);
        }
        if see_probs {
            probe.record(site(Stage::Probs), 0..1, Values::F32(&self.probs));
        }
        let id = if greedy { argmax(logits) } else { self.draw() };
        if see_nucleus {
            // At temperature 0 all of it is the argmax's.
            let only = |i| if i == id as usize { 1.0 } else { 0.0 };
            let nucleus = if greedy { (0..logits.len()).map(only).collect() } else { self.nucleus() };
            probe.record(site(Stage::Nucleus), 0..1, Values::F32(&nucleus));
        }
        if wants(probe, Stage::Sampled) {
            probe.record(site(Stage::Sampled), 0..1, Values::I64(&[i64::from(id)]));
        }
        id
    }

    /// probs = softmax(logits / temperature), at temperature 0 softmax(logits).
    fn set_probs(&mut self, logits: &[f32]) {
        let temperature = if self.sampling.temperature == 0.0 { 1.0 } else { self.sampling.temperature };
        self.probs.clear();
        self.probs.extend(logits.iter().map(|logit| logit / temperature));
        self.kernel.softmax(&mut self.probs);
    }

    /// One of the candidates, each with its share of their probability: the one at which the sum of those that are
    /// at least as likely passes a random part of the whole.
    fn draw(&mut self) -> u32 {
        let target = self.set_cut() * self.random.random::<f64>();
        let drawn = self.reach(f64::from, |sum| sum > target);
        drawn.map_or(0, |(rank, _)| !(rank as u32))
    }

    /// Finds the least likely candidate: [`Self::cut`]. The answer is the candidates' probability. As in transformers
    /// top-k comes first, and top-p is a share of what it left; but exactly k stay, where there it is all that are as
    /// likely as the k-th.
    fn set_cut(&mut self) -> f64 {
        let Sampling { top_k, top_p, .. } = self.sampling;
        // Every probability that is more than 0.
        self.cut = rank(u32::MAX, f32::from_bits(1));
        if top_k > 0 {
            self.add_up(|_| 1.0);
            let reached = self.reach(|_| 1.0, |count| count >= top_k as f64);
            self.cut = reached.map_or(self.cut, |(cut, _)| cut);
        }
        self.add_up(f64::from);
        let mut total = self.sums.iter().sum();
        if top_p < 1.0 {
            // Where top-p is nearly 1 the same sum in another order may stay below; then all of them are left.
            let enough = f64::from(top_p) * total;
            let reached = self.reach(f64::from, |sum| sum >= enough);
            (self.cut, total) = reached.unwrap_or((self.cut, total));
        }
        total
    }

    /// The candidates and their probabilities.
    fn candidates(&self) -> impl Iterator<Item = (u32, f32)> {
        let cut = self.cut;
        let all = (0_u32..).zip(self.probs.iter().copied());
        all.filter(move |(id, prob)| *prob > 0.0 && rank(*id, *prob) >= cut)
    }

    /// Adds up a weight of each candidate, by the [`leading`] bits of its probability.
    fn add_up(&mut self, weight: impl Fn(f32) -> f64) {
        let mut sums = mem::take(&mut self.sums);
        sums.clear();
        sums.resize(LEADING, 0.0);
        for (_, prob) in self.candidates() {
            sums[leading(prob)] += weight(prob);
        }
        self.sums = sums;
    }

    /// The candidate at which the sum of its `weight` and of all likelier ones' has `reached` what it should, or else
    /// the least likely one: its rank and that sum; none where there are no candidates. The weights were added up
    /// before ([`Self::add_up`]). Nothing is sorted: the bits of its probability are found one part after the other,
    /// each time only among the candidates that share those before.
    fn reach(&mut self, weight: impl Fn(f32) -> f64, reached: impl Fn(f64) -> bool) -> Option<(u64, f64)> {
        let mut sum = 0.0;
        let found = walk(&self.sums, &mut sum, &reached)?;
        let mut near = mem::take(&mut self.near);
        near.resize(near.len().max(self.probs.len()), 0);
        // Every rank is written, and stays where it belongs there: which one does, no branch can foresee. Those leading bits
        // are of positive numbers, but for 0 itself.
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
        // These are equally likely, and the lower ids come first.
        let last = near[..count].iter().position(|&rank| {
            sum += weight(rank);
            reached(sum)
        });
        let last = last.map_or(near[..count].last(), |last| near.get(last)).copied();
        self.near = near;
        last.map(|last| (last, sum))
    }

    /// The candidates' shares over the whole vocabulary.
    fn nucleus(&self) -> Vec<f32> {
        let mut nucleus = vec![0.0; self.probs.len()];
        let total: f64 = self.candidates().map(|(_, prob)| f64::from(prob)).sum();
        for (id, prob) in self.candidates() {
            nucleus[id as usize] = (f64::from(prob) / total) as f32;
        }
        nucleus
    }
}

/// A number that is larger for the likelier token and, of equals, for the lower id: the bits of a positive float
/// are in the order of its value.
fn rank(id: u32, prob: f32) -> u64 {
    u64::from(prob.to_bits()) << 32 | u64::from(!id)
}

/// Moves the ranks that stay to the front, in their order, without a branch that none can foresee. The answer is how many
/// they are.
fn keep(ranks: &mut [u64], stays: impl Fn(u64) -> bool) -> usize {
    let mut count = 0;
    for at in 0..ranks.len() {
        let rank = ranks[at];
        ranks[count] = rank;
        count += usize::from(stays(rank));
    }
    count
}

/// Where the sum of `sums`, from the last to the first, has `reached` what it should, or else the first that is not 0:
/// `sum`, where it begins, has all before that one then.
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

/// Leading bits of a positive probability: its exponent and the first 3 bits of its mantissa.
const fn leading(prob: f32) -> usize {
    (prob.to_bits() >> MANTISSA) as usize
}

/// The bits below them.
const MANTISSA: u32 = 20;

/// How many [`leading`] bits there are: no probability is more than 1.
const LEADING: usize = leading(1.0) + 1;

/// The id of the largest logit, the lowest of equals; 0 where none is a number.
fn argmax(logits: &[f32]) -> u32 {
    let better = |best: usize, id: usize| logits[best].is_nan() || logits[id] > logits[best];
    (0..logits.len()).fold(0, |best, id| if better(best, id) && !logits[id].is_nan() { id } else { best })
        as u32
}

mod look;
#[cfg(test)]
mod tests;
