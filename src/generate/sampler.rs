//! Drawing the next token: temperature, top-k, top-p (nucleus sampling, Holtzman et al., 2020).

use std::cmp::Ordering;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::error::{Error, Result};
use crate::ops::softmax::softmax;
use crate::trace::{Probe, Site, Stage, Values};

/// How to draw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Logits are divided by this before softmax; 0 means always the most likely token.
    pub temperature: f32,
    /// Only the `top_k` most likely tokens may be drawn; 0 for no limit.
    pub top_k: usize,
    /// Only the shortest run of most likely tokens whose probabilities sum to this; 1 for no limit.
    pub top_p: f32,
    /// Where the random numbers start. The same seed draws the same text.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 }
    }
}

/// Draws token after token.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    random: ChaCha8Rng,
    probs: Vec<f32>,
    candidates: Vec<u32>,
}

impl Sampler {
    /// A sampler at the start of its random numbers.
    ///
    /// # Errors
    /// [`Error::Usage`] where the temperature is negative, top-p is not in 0 … 1, or one is not a number.
    pub fn new(sampling: Sampling) -> Result<Self> {
        let wrong = |option: &str, expected: &str, found: f32| {
            Error::usage(format!("{option} is out of range"))
                .expected(expected)
                .found(found)
                .next(format!("give another {option}, or leave it out"))
        };
        if !(sampling.temperature.is_finite() && sampling.temperature >= 0.0) {
            let expected =
                "0 (always the most likely token) or more; 1 draws from the model's own probabilities";
            return Err(wrong("--temperature", expected, sampling.temperature));
        }
        if !(sampling.top_p > 0.0 && sampling.top_p <= 1.0) {
            return Err(wrong("--top-p", "a number over 0 and up to 1", sampling.top_p));
        }
        let random = ChaCha8Rng::seed_from_u64(sampling.seed);
        Ok(Self { sampling, random, probs: Vec::new(), candidates: Vec::new() })
    }

    /// Draws a token from `logits` (V), and shows the probe `probs`, `nucleus` and `sampled` of `pass`.
    ///
    /// Logits that are not a number are never drawn; where all are, the answer is token 0.
    pub fn sample<P: Probe>(&mut self, logits: &[f32], pass: usize, probe: &mut P) -> u32 {
        let wants = |probe: &P, stage| P::ENABLED && probe.wants(Site::once(pass, stage));
        let (see_probs, see_nucleus) = (wants(probe, Stage::Probs), wants(probe, Stage::Nucleus));
        let greedy = self.sampling.temperature == 0.0;
        if !greedy || see_probs {
            self.set_probs(logits);
        }
        if see_probs {
            probe.record(Site::once(pass, Stage::Probs), 0..1, Values::F32(&self.probs));
        }
        let id = if greedy {
            let id = argmax(logits);
            self.candidates.clear();
            self.candidates.push(id);
            id
        } else {
            self.set_candidates();
            self.draw()
        };
        if see_nucleus {
            let nucleus = self.nucleus(logits.len(), greedy);
            probe.record(Site::once(pass, Stage::Nucleus), 0..1, Values::F32(&nucleus));
        }
        if wants(probe, Stage::Sampled) {
            probe.record(Site::once(pass, Stage::Sampled), 0..1, Values::I64(&[i64::from(id)]));
        }
        id
    }

    /// probs = softmax(logits / temperature), at temperature 0 softmax(logits).
    fn set_probs(&mut self, logits: &[f32]) {
        let temperature = if self.sampling.temperature == 0.0 { 1.0 } else { self.sampling.temperature };
        self.probs.clear();
        self.probs.extend(logits.iter().map(|logit| logit / temperature));
        softmax(&mut self.probs);
    }

    /// The tokens that may be drawn, in no particular order.
    fn set_candidates(&mut self) {
        let Sampling { top_k, top_p, .. } = self.sampling;
        let probs = &self.probs;
        let ids = 0..probs.len() as u32;
        self.candidates.clear();
        // A token this unlikely is never in the shortest run that reaches top_p: were it in, the run would
        // be everything at least as likely, and all that is left out would sum to less than 1 − top_p.
        let floor = if top_p < 1.0 { (1.0 - top_p) / probs.len() as f32 } else { 0.0 };
        self.candidates.extend(ids.filter(|&id| probs[id as usize] > floor));
        if top_k > 0 && top_k < self.candidates.len() {
            self.candidates.select_nth_unstable_by(top_k, order(probs));
            self.candidates.truncate(top_k);
        }
        if top_p < 1.0 {
            let reached = shortest_run(&mut self.candidates, probs, |sum| sum >= f64::from(top_p));
            self.candidates.truncate(reached.unwrap_or(self.candidates.len()));
        }
    }

    /// One of the candidates, each with its share of their probability: the one at which the sum of those that are
    /// at least as likely passes a random part of the whole.
    fn draw(&mut self) -> u32 {
        let total: f64 = self.candidates.iter().map(|id| f64::from(self.probs[*id as usize])).sum();
        let target = self.random.random::<f64>() * total;
        let run = shortest_run(&mut self.candidates, &self.probs, |sum| sum > target);
        let last = run.unwrap_or(self.candidates.len());
        self.candidates[..last].last().copied().unwrap_or(0)
    }

    /// The candidates' shares over the whole vocabulary; at temperature 0 all of it at the argmax.
    fn nucleus(&self, vocab: usize, greedy: bool) -> Vec<f32> {
        let mut nucleus = vec![0.0; vocab];
        if greedy {
            for &id in &self.candidates {
                nucleus[id as usize] = 1.0;
            }
            return nucleus;
        }
        let total: f64 = self.candidates.iter().map(|&id| f64::from(self.probs[id as usize])).sum();
        for &id in &self.candidates {
            nucleus[id as usize] = (f64::from(self.probs[id as usize]) / total) as f32;
        }
        nucleus
    }
}

/// Most likely first; of equals, the lower id.
fn order(probs: &[f32]) -> impl Fn(&u32, &u32) -> Ordering {
    |a, b| probs[*b as usize].total_cmp(&probs[*a as usize]).then_with(|| a.cmp(b))
}

/// The length of the shortest run of the most likely candidates whose sum has `reached` what it should, where any has.
/// Its candidates are the first then, the least likely of them last. What is not near its end is not sorted: halves
/// are told apart and added up, and only the half in which the run ends is looked at again.
fn shortest_run(candidates: &mut [u32], probs: &[f32], reached: impl Fn(f64) -> bool) -> Option<usize> {
    /// So few are sorted.
    const FEW: usize = 64;
    let prob = |id: &u32| f64::from(probs[*id as usize]);
    // The run ends in `start..end`, if anywhere; `before` is the sum of what comes before.
    let (mut start, mut end, mut before) = (0, candidates.len(), 0.0);
    while end - start > FEW {
        let middle = start + (end - start) / 2;
        candidates[start..end].select_nth_unstable_by(middle - start, order(probs));
        let half: f64 = candidates[start..middle].iter().map(prob).sum();
        if reached(before + half) {
            end = middle;
        } else {
            (start, before) = (middle, before + half);
        }
    }
    candidates[start..end].sort_unstable_by(order(probs));
    let run = candidates[start..end].iter().position(|id| {
        before += prob(id);
        reached(before)
    });
    run.map(|last| start + last + 1)
}

/// The id of the largest logit, the lowest of equals; 0 where none is a number.
fn argmax(logits: &[f32]) -> u32 {
    let better = |best: usize, id: usize| logits[best].is_nan() || logits[id] > logits[best];
    (0..logits.len()).fold(0, |best, id| if better(best, id) && !logits[id].is_nan() { id } else { best })
        as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::NoProbe;

    /// Logits whose softmax is 0.5, 0.25, 0.125, 0.125.
    fn halves() -> Vec<f32> {
        [0.5_f32, 0.25, 0.125, 0.125].iter().map(|p| p.ln()).collect()
    }

    fn drawn(sampling: Sampling, logits: &[f32]) -> [usize; 4] {
        let mut sampler = Sampler::new(sampling).unwrap();
        let mut counts = [0; 4];
        for _ in 0..4000 {
            counts[sampler.sample(logits, 0, &mut NoProbe) as usize] += 1;
        }
        counts
    }

    #[test]
    fn the_shortest_run_is_the_beginning_of_the_sorted_candidates() {
        // Many equals among them, and more than are sorted at once.
        let probs: Vec<f32> = (0..1000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 25) as f32).collect();
        let mut sorted: Vec<u32> = (0..1000).collect();
        sorted.sort_unstable_by(order(&probs));
        let all: f64 = probs.iter().map(|p| f64::from(*p)).sum();
        for mass in [0.0, 1.0, 500.0, 0.1 * all, 0.5 * all, 0.999 * all, all] {
            let mut sum = 0.0;
            let expected = sorted.iter().take_while(|id| {
                let before = sum;
                sum += f64::from(probs[**id as usize]);
                before == 0.0 || before < mass
            });
            let expected = expected.count();
            let mut candidates: Vec<u32> = (0..1000).rev().collect();
            assert_eq!(shortest_run(&mut candidates, &probs, |sum| sum >= mass), Some(expected), "{mass}");
            assert_eq!(candidates[expected - 1], sorted[expected - 1], "{mass}");
            candidates[..expected].sort_unstable_by(order(&probs));
            assert_eq!(candidates[..expected], sorted[..expected], "{mass}");
        }
        assert_eq!(shortest_run(&mut sorted, &probs, |sum| sum > all), None);
        assert_eq!(shortest_run(&mut [], &probs, |sum| sum > all), None);
    }

    #[test]
    fn temperature_one_draws_by_probability() {
        let counts = drawn(Sampling { temperature: 1.0, ..Sampling::default() }, &halves());
        for (count, expected) in counts.into_iter().zip([2000.0, 1000.0, 500.0, 500.0]) {
            assert!((count as f64 - expected).abs() < 150.0, "{counts:?}");
        }
    }

    #[test]
    fn limits_leave_only_the_most_likely() {
        let one = Sampling { temperature: 1.0, ..Sampling::default() };
        assert_eq!(drawn(Sampling { top_k: 1, ..one }, &halves()), [4000, 0, 0, 0]);
        let counts = drawn(Sampling { top_p: 0.7, ..one }, &halves());
        assert!(counts[1] > 1000 && counts[2] + counts[3] == 0, "{counts:?}");
        let counts = drawn(Sampling { top_k: 3, ..one }, &halves());
        assert!(counts[2] > 300 && counts[3] == 0, "of equals the lower id stays: {counts:?}");
    }

    #[test]
    fn top_p_is_reached_exactly_by_the_shortest_run() {
        let mut sampler =
            Sampler::new(Sampling { temperature: 1.0, top_p: 0.5, ..Sampling::default() }).unwrap();
        sampler.set_probs(&halves());
        sampler.probs = vec![0.5, 0.25, 0.125, 0.125];
        sampler.set_candidates();
        assert_eq!(sampler.candidates, [0]);
        sampler.sampling.top_p = 0.875;
        sampler.set_candidates();
        assert_eq!(sampler.candidates, [0, 1, 2]);
        assert!((sampler.nucleus(4, false).iter().sum::<f32>() - 1.0).abs() < 1e-6);
    }

    #[test]
    fn greedy_takes_the_first_of_the_largest_and_never_what_is_no_number() {
        assert_eq!(argmax(&[1.0, 3.0, 3.0]), 1);
        assert_eq!(argmax(&[f32::NAN, 1.0, f32::NAN, 2.0]), 3);
        assert_eq!(argmax(&[f32::NAN, f32::NAN]), 0);
        assert_eq!(argmax(&[f32::NEG_INFINITY, f32::NEG_INFINITY]), 0);
    }

    #[test]
    fn a_seed_draws_the_same_again_and_another_draws_another() {
        let text = |seed| {
            let mut sampler =
                Sampler::new(Sampling { temperature: 1.0, seed, ..Sampling::default() }).unwrap();
            (0..50).map(|_| sampler.sample(&halves(), 0, &mut NoProbe)).collect::<Vec<_>>()
        };
        assert_eq!(text(7), text(7));
        assert_ne!(text(7), text(8));
    }

    #[test]
    fn logits_without_numbers_are_survived() {
        let sampling = Sampling { temperature: 1.0, top_k: 2, top_p: 0.9, seed: 0 };
        let mut sampler = Sampler::new(sampling).unwrap();
        assert_eq!(sampler.sample(&[f32::NAN; 4], 0, &mut NoProbe), 0);
    }
}
