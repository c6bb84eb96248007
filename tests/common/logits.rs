//! Runs a checkpoint and compares the logits.

use llama_trace::backend::cpu::Cpu;
use llama_trace::checkpoint::Checkpoint;
use llama_trace::generate::{Sampler, Sampling, Session};
use llama_trace::model::Model;
use llama_trace::trace::{Frame, FrameData, Recorder, Select, Stage};

/// Returns the logits of every token of `prompt`, and of the token sampled after it.
pub(crate) fn logits(checkpoint: &Checkpoint, prompt: &[u32]) -> Vec<f32> {
    logits_on(Cpu::default(), checkpoint, prompt)
}

/// Returns the same logits as [`logits`], computed by `cpu`.
pub(crate) fn logits_on(cpu: Cpu, checkpoint: &Checkpoint, prompt: &[u32]) -> Vec<f32> {
    let model = Model::load(checkpoint, cpu).unwrap();
    let mut session = Session::new(&model, Sampler::new(Sampling::default()).unwrap()).unwrap();
    let (select, mut logits) = (Select::all(), Vec::<f32>::new());
    let mut ids = prompt.to_vec();
    for _ in 0..2 {
        let dims = session.next_pass(ids.len());
        let mut take = |frame: Frame| {
            if let (Stage::Logits, FrameData::F32(values)) = (frame.site.stage, &frame.data) {
                logits.extend(values.iter());
            }
        };
        ids = vec![session.run(&ids, &mut Recorder::new(model.sizes(), dims, &select, &mut take)).unwrap()];
    }
    assert_eq!(logits.len(), (prompt.len() + 1) * checkpoint.config.vocab);
    assert!(logits.iter().all(|logit| logit.is_finite()));
    logits
}

/// Bits of the values, for an exact comparison.
pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// ‖a − b‖ / ‖b‖
pub(crate) fn distance(a: &[f32], b: &[impl Into<f64> + Copy]) -> f64 {
    assert_eq!(a.len(), b.len());
    let error: f64 = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - (*b).into()).powi(2)).sum();
    (error / b.iter().map(|b| (*b).into().powi(2)).sum::<f64>()).sqrt()
}
