//! How far a patched run moves from the corrupted run to the clean run.

use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::patch::Metric;

/// A metric with its values in the clean and in the corrupted run.
#[derive(Clone, Debug)]
pub struct Measure {
    metric: Metric,
    answer: usize,
    wrong: usize,
    /// The log probabilities of the clean run.
    clean: Vec<f64>,
    /// The values of the corrupted run and of the clean run.
    ends: (f64, f64),
}

impl Measure {
    /// The measure between two runs, from their last logits. `ids` are the answer and the wrong token. They must be in
    /// the vocabulary.
    ///
    /// # Errors
    /// [`Error::Prompt`] if the two runs have the same value.
    pub fn new(metric: Metric, ids: (u32, u32), clean: &[f32], corrupted: &[f32]) -> Result<Self> {
        let (answer, wrong) = (ids.0 as usize, ids.1 as usize);
        let mut measure = Self { metric, answer, wrong, clean: log_probs(clean), ends: (0.0, 0.0) };
        measure.ends = (measure.value(corrupted), measure.value(clean));
        if measure.ends.0 == measure.ends.1 {
            return Err(Error::prompt(
                "the metric has the same value in both runs, so there is nothing to explain",
            )
            .expected("two prompts after which the model answers differently")
            .found(format!("{} for both", measure.ends.0))
            .next("give other prompts, or the tokens to compare: --answer ID --wrong ID"));
        }
        Ok(measure)
    }

    /// The value of a run with these last logits.
    pub fn value(&self, logits: &[f32]) -> f64 {
        match self.metric {
            Metric::LogitDiff => f64::from(logits[self.answer]) - f64::from(logits[self.wrong]),
            Metric::Prob => log_probs(logits)[self.answer].exp(),
            Metric::Kl => {
                let each = self.clean.iter().zip(log_probs(logits));
                // A token of probability 0 adds nothing.
                each.filter(|(p, _)| **p != f64::NEG_INFINITY).map(|(p, q)| p.exp() * (p - q)).sum()
            }
        }
    }

    /// The values of the corrupted run and of the clean run.
    pub fn ends(&self) -> (f64, f64) {
        self.ends
    }

    /// How far `value` is on the way from the corrupted run (0) to the clean run (1).
    pub fn effect(&self, value: f64) -> f64 {
        (value - self.ends.0) / (self.ends.1 - self.ends.0)
    }
}

/// The id of the most likely token; of equals the first.
pub fn most_likely(logits: &[f32]) -> u32 {
    let best = (0..logits.len()).reduce(|best, id| if logits[id] > logits[best] { id } else { best });
    best.unwrap_or(0) as u32
}

fn log_probs(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let above = |logit: f32| f64::from(logit) - f64::from(largest);
    let sum: f64 = logits.iter().map(|&logit| above(logit).exp()).sum();
    logits.iter().map(|&logit| above(logit) - sum.ln()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_metric_is_0_in_the_corrupted_and_1_in_the_clean_run() {
        let (clean, corrupted) = ([2.0, 0.0, f32::NEG_INFINITY], [0.0, 1.0, 0.5]);
        for metric in [Metric::LogitDiff, Metric::Prob, Metric::Kl] {
            let measure = Measure::new(metric, (0, 1), &clean, &corrupted).unwrap();
            let effect = |logits: &[f32]| measure.effect(measure.value(logits));
            assert_eq!((effect(&corrupted), effect(&clean)), (0.0, 1.0), "{metric:?}");
        }
        let value = |metric| Measure::new(metric, (0, 1), &clean, &corrupted).unwrap().ends();
        assert_eq!(value(Metric::LogitDiff), (-1.0, 2.0));
        let e = std::f64::consts::E;
        let p = e * e / (e * e + 1.0);
        assert!((value(Metric::Prob).1 - p).abs() < 1e-12);
        let all = 1.0 + e + 0.5_f64.exp();
        let kl = p * (p * all).ln() + (1.0 - p) * ((1.0 - p) * all / e).ln();
        assert!((value(Metric::Kl).0 - kl).abs() < 1e-12 && value(Metric::Kl).1 == 0.0);
    }

    #[test]
    fn equal_runs_have_no_measure_and_nan_is_no_panic() {
        let error = Measure::new(Metric::LogitDiff, (0, 0), &[1.0, 2.0], &[3.0, 4.0]).unwrap_err();
        assert!(error.to_string().contains("--answer"), "{error}");
        let measure = Measure::new(Metric::Prob, (0, 1), &[f32::NAN, 0.0], &[1.0, 2.0]).unwrap();
        assert!(measure.effect(1.0).is_nan());
    }
}
