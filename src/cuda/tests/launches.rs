//! The kernels that a pass launches, in order. This test notices a change of the engine that fuses less or launches
//! more.

use std::fmt::Write;

use super::*;
use llama_trace_core::config::ModelConfig;
use llama_trace_core::trace::{NoProbe, Probe, Site, Values};
use llama_trace_emulator::Emulated;
use llama_trace_engine::generate::{Sampler, Sampling, Session};
use llama_trace_engine::model::Model;
use llama_trace_formats::checkpoint::random;

/// The expected list.
const EXPECTED: &str = include_str!("launches.txt");

/// Tokens of the prompt, which is multiplied in tiles.
const PROMPT: usize = 20;

/// A probe that records everything.
struct Everything;

impl Probe for Everything {
    fn enabled(&self) -> bool {
        true
    }

    fn wants(&self, _: Site) -> bool {
        true
    }

    fn record(&mut self, _: Site, _: Range<usize>, _: Values<'_>) {}
}

/// A model of two layers whose widths suit the fast kernels.
fn config() -> ModelConfig {
    ModelConfig {
        dim: 64,
        layers: 2,
        ffn_dim: 128,
        vocab: 96,
        context: 64,
        norm_eps: 1e-5,
        rope_theta: 10_000.0,
        tied: true,
        ..ModelConfig::of_heads(8, 4, 8)
    }
}

#[test]
fn a_prefill_and_a_decode_step_launch_the_listed_kernels() {
    let mut found = String::new();
    for (name, precision, dtype) in [
        ("float32", Precision::F32, Dtype::F32),
        ("bfloat16", Precision::Bf16, Dtype::BF16),
        ("int8", Precision::Q8 { group: 32 }, Dtype::Q8_0),
    ] {
        let Some(device) = Emulated::new(ROOM, usize::MAX) else { return };
        let launched = device.launched();
        let cuda = Cuda::over(Box::new(device)).with_precision(precision);
        cuda.warpgroups.store(true, Relaxed);
        cuda.streams.store(true, Relaxed);
        let model = Model::load(&random::of_config("random", config(), dtype), cuda).unwrap();
        let sampler = Sampler::new(Sampling::default()).unwrap();
        let mut session = Session::with_capacity(&model, sampler, PROMPT + 2).unwrap();
        let passes: [(&str, Vec<u32>, &mut dyn Probe); 3] = [
            ("a prefill", (0..PROMPT as u32).collect(), &mut NoProbe),
            ("a decode step", vec![7], &mut NoProbe),
            ("a recorded decode step", vec![9], &mut Everything),
        ];
        for (what, ids, probe) in passes {
            launched.lock().unwrap().clear();
            session.read(&ids, probe).unwrap();
            model.backend.sync().unwrap();
            writeln!(found, "{what} in {name}: {}", launched.lock().unwrap().join(" ")).unwrap();
        }
    }
    assert!(found == EXPECTED, "other launches than in launches.txt:\n{found}");
}
