//! Judges a draw by the run's own logits and probabilities. The drawn id may depend on the last bit of a logit. If the
//! logits are not equal to the bit, the reference's draw proves nothing.

use llama_trace_core::ops::typical::Typical;
use llama_trace_core::trace::{Frame, Sampling, Stage};

/// Tolerance of a sum of probabilities at the cut of top-p, and of the probabilities themselves.
const SUM: f64 = 1e-6;
const SHARES: f64 = 1e-5;

/// B's own values from which the token of a pass is drawn.
#[derive(Default)]
pub(super) struct Own {
    logits: Option<Vec<f32>>,
    penalized: Option<Vec<f32>>,
    probs: Option<Vec<f32>>,
    nucleus: Option<Vec<f32>>,
}

impl Own {
    /// Stores the last row of a stage that tokens are drawn from.
    pub(super) fn take(&mut self, stage: Stage, last: impl FnOnce() -> Option<Vec<f32>>) {
        match stage {
            Stage::Logits => self.logits = last(),
            Stage::PenalizedLogits => self.penalized = last(),
            Stage::Probs => self.probs = last(),
            Stage::Nucleus => self.nucleus = last(),
            _ => {}
        }
    }

    /// The logits that the draw uses.
    fn logits(&self, sampling: Sampling) -> &Option<Vec<f32>> {
        if sampling.filters().penalty { &self.penalized } else { &self.logits }
    }

    /// Returns whether a stage of the filters or `sampled` follows from these values; `None` if that cannot be decided.
    pub(super) fn leads_to(&self, drawn: &Frame, sampling: Sampling) -> Option<bool> {
        let greedy = sampling.temperature == 0.0;
        match drawn.site.stage {
            Stage::Sampled => {
                let id = usize::try_from(drawn.values().numbers().next()? as i64).unwrap_or(usize::MAX);
                let of = |values: &Option<Vec<f32>>| values.as_ref().map(|values| values.get(id).copied());
                match greedy {
                    // Each of several equal logits may be the argmax.
                    true => {
                        let logits = self.logits(sampling);
                        of(logits).map(|found| found.is_some() && found == largest(logits))
                    }
                    false => match &self.nucleus {
                        Some(_) => of(&self.nucleus).map(|found| found > Some(0.0)),
                        None => self
                            .probs
                            .as_ref()
                            .map(|probs| cuts(probs, sampling).any(|kept| kept.contains(&id))),
                    },
                }
            }
            Stage::MinP | Stage::TypicalP | Stage::Nucleus => {
                let shares: Vec<f64> = drawn.values().numbers().collect();
                if greedy {
                    let logits = self.logits(sampling);
                    let largest = largest(logits)?;
                    let logits = logits.as_ref()?;
                    let all = shares.iter().zip(logits).filter(|(share, _)| **share != 0.0);
                    return Some(all.map(|(share, logit)| (*share, *logit)).eq([(1.0, largest)]));
                }
                let probs = self.probs.as_ref().filter(|probs| probs.len() == shares.len())?;
                let sampling = match drawn.site.stage {
                    Stage::MinP => Sampling { typical_p: 1.0, ..sampling },
                    _ => sampling,
                };
                Some(cuts(probs, sampling).any(|kept| apart(probs, &kept, &shares) <= SHARES))
            }
            _ => None,
        }
    }
}

fn largest(logits: &Option<Vec<f32>>) -> Option<f32> {
    let numbers = logits.iter().flatten().copied().filter(|logit| !logit.is_nan());
    numbers.max_by(f32::total_cmp)
}

/// The sets of ids that the filters may keep. Equally likely ids are in ascending order. Where a sum or a probability is
/// within [`SUM`] of a limit, more than one set is possible.
fn cuts(probs: &[f32], sampling: Sampling) -> impl Iterator<Item = Vec<usize>> {
    let mut ids: Vec<usize> = (0..probs.len()).filter(|&id| probs[id] > 0.0).collect();
    ids.sort_by(|&a, &b| probs[b].total_cmp(&probs[a]).then(a.cmp(&b)));
    if sampling.top_k > 0 {
        ids.truncate(sampling.top_k);
    }
    let total: f64 = ids.iter().map(|&id| f64::from(probs[id])).sum();
    let (least, most) = (f64::from(sampling.top_p) - SUM, f64::from(sampling.top_p) + SUM);
    let mut sum = 0.0;
    let sums: Vec<f64> = ids
        .iter()
        .map(|&id| {
            sum += f64::from(probs[id]) / total;
            sum
        })
        .collect();
    let count = |enough: f64| sums.iter().position(|sum| *sum >= enough).map_or(ids.len(), |last| last + 1);
    let counts = if sampling.top_p < 1.0 { count(least)..=count(most) } else { ids.len()..=ids.len() };
    counts.flat_map(move |count| later_cuts(probs, &ids[..count], sampling))
}

/// The sets of `ids`, the most likely first, that min-p and typical-p may keep.
fn later_cuts(probs: &[f32], ids: &[usize], sampling: Sampling) -> Vec<Vec<usize>> {
    let (filters, prob) = (sampling.filters(), |id: &usize| f64::from(probs[*id]));
    let near = [1.0 - SUM, 1.0 + SUM];
    let mut sets = vec![ids.to_vec()];
    if filters.min_p {
        let least = f64::from(sampling.min_p) * ids.first().map_or(0.0, prob);
        sets = near
            .map(|near| ids.iter().copied().filter(|id| prob(id) >= least * near).collect::<Vec<usize>>())
            .to_vec();
    }
    if filters.typical_p {
        let typical = |ids: &Vec<usize>, near: f64| {
            let mass = (f64::from(sampling.typical_p) * near) as f32;
            let typical = Typical::new(ids.iter().map(prob), mass);
            ids.iter().copied().filter(|id| typical.keeps(prob(id))).collect::<Vec<usize>>()
        };
        sets = sets.iter().flat_map(|ids| near.map(|near| typical(ids, near))).collect();
    }
    sets
}

/// ‖found − expected‖ / ‖expected‖ of probabilities, for the ids that were kept.
fn apart(probs: &[f32], kept: &[usize], shares: &[f64]) -> f64 {
    let total: f64 = kept.iter().map(|&id| f64::from(probs[id])).sum();
    let mut expected = vec![0.0; shares.len()];
    kept.iter().for_each(|&id| expected[id] = f64::from(probs[id]) / total);
    let norm: f64 = expected.iter().map(|x| x * x).sum();
    let error: f64 = expected.iter().zip(shares).map(|(a, b)| (a - b).powi(2)).sum();
    (error / norm).sqrt()
}

#[cfg(test)]
mod tests {
    use super::super::difference::frame;
    use super::*;
    use llama_trace_core::trace::{FrameData, Site};

    fn own(logits: &[f32], probs: &[f32]) -> Own {
        let mut own = Own::default();
        own.take(Stage::Logits, || Some(logits.to_vec()));
        own.take(Stage::Probs, || Some(probs.to_vec()));
        own
    }

    fn sampled(id: i64) -> Frame {
        let site = Site::once(0, Stage::Sampled);
        let data = FrameData::I64(ndarray::Array1::from(vec![id]).into_dyn());
        Frame { site, axes: site.stage.axes(), data }
    }

    fn nucleus(shares: &[f32]) -> Frame {
        frame(Site::once(0, Stage::Nucleus), &[shares.len()], shares.to_vec()).unwrap()
    }

    #[test]
    fn at_temperature_0_each_of_the_largest_logits_may_be_drawn_and_nothing_else() {
        let sampling = Sampling::default();
        let own = own(&[1.0, 3.0, f32::NAN, 3.0], &[0.0; 4]);
        for (id, expected) in [(0, false), (1, true), (2, false), (3, true), (4, false), (-1, false)] {
            assert_eq!(own.leads_to(&sampled(id), sampling), Some(expected), "{id}");
        }
        for (shares, expected) in [
            ([0.0, 1.0, 0.0, 0.0], true),
            ([0.0, 0.0, 0.0, 1.0], true),
            ([1.0, 0.0, 0.0, 0.0], false),
            ([0.0, 0.5, 0.0, 0.5], false),
            ([0.0; 4], false),
        ] {
            assert_eq!(own.leads_to(&nucleus(&shares), sampling), Some(expected), "{shares:?}");
        }
        assert_eq!(Own::default().leads_to(&sampled(0), sampling), None);
        assert_eq!(Own::default().leads_to(&nucleus(&[1.0]), sampling), None);
    }

    #[test]
    fn with_a_temperature_the_nucleus_follows_from_the_probabilities_and_what_is_drawn_is_in_it() {
        let probs = [0.1, 0.4, 0.2, 0.3];
        let mut own = own(&[0.0; 4], &probs);
        let of = |top_k, top_p| Sampling { temperature: 0.7, top_k, top_p, seed: 0, ..Sampling::default() };
        let told = |shares: [f32; 4], sampling| own.leads_to(&nucleus(&shares), sampling);
        assert_eq!(told(probs, of(0, 1.0)), Some(true));
        assert_eq!(told([0.4, 0.1, 0.2, 0.3], of(0, 1.0)), Some(false));
        let two = [0.0, 0.4 / 0.7, 0.0, 0.3 / 0.7];
        assert_eq!(
            (told(two, of(2, 1.0)), told(two, of(0, 0.6)), told(two, of(0, 0.9))),
            (Some(true), Some(true), Some(false))
        );
        // Top-p applies to the tokens that top-k kept. At top-p's limit, both results are accepted.
        let three = [0.0, 0.4 / 0.9, 0.2 / 0.9, 0.3 / 0.9];
        assert_eq!((told(two, of(3, 0.75)), told(three, of(3, 0.79))), (Some(true), Some(true)));
        assert_eq!((told(two, of(0, 0.7)), told(three, of(0, 0.7))), (Some(true), Some(true)));
        // Without a nucleus, the drawn token follows from the probabilities.
        assert_eq!(
            [0, 1, 2, 3].map(|id| own.leads_to(&sampled(id), of(2, 1.0)).unwrap()),
            [false, true, false, true]
        );
        own.take(Stage::Nucleus, || Some(two.to_vec()));
        for (id, expected) in [(0, false), (1, true), (2, false), (3, true)] {
            assert_eq!(own.leads_to(&sampled(id), of(2, 1.0)), Some(expected), "{id}");
        }
    }
}
