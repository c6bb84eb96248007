//! Compares every stage of tiny Llamas, and of tiny models of each Llama-like family, with a float64 reference
//! (`fixtures/golden`, made with transformers). Also checks that the comparison detects every mistake that it should
//! detect.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "golden/bf16.rs"]
mod bf16;
mod common;
#[path = "golden/edits.rs"]
mod edits;
#[path = "golden/families.rs"]
mod families;
#[path = "golden/families_bf16.rs"]
mod families_bf16;
#[path = "golden/q8.rs"]
mod q8;
#[path = "golden/reference.rs"]
mod reference;

use std::collections::BTreeMap;

use common::fixture;
use common::models::{self, Tensors, tensors};
use llama_trace::backend::cpu::{Cpu, Kernel};
use llama_trace::checkpoint::{self, Checkpoint};
use llama_trace::config::{LayerSet, Pairing, Precision, RopeScaling};
use llama_trace::generate::{Sampler, Sampling, Session};
use llama_trace::model::Model;
use llama_trace::trace::{NoProbe, Site, Stage};
use reference::{MODELS, Tensor, difference, ids, name, open, record_on, reference};

/// Every stage on the CPU.
fn record(checkpoint: &Checkpoint, prompt: &[u32]) -> BTreeMap<String, Tensor> {
    record_on(Cpu::default(), checkpoint, prompt)
}

#[test]
fn every_stage_of_every_model_agrees_with_the_reference() {
    for model in MODELS {
        for kernel in [Kernel::default(), Kernel::wasm()] {
            let ours = record_on(Cpu::with_kernel(kernel), &open(model), &ids(model, "prompt_ids"));
            assert_eq!(difference(&ours, &reference(model)), None, "{model}, {}", kernel.name());
        }
    }
}

#[test]
fn greedy_tokens_are_those_of_the_reference() {
    for name in MODELS {
        let (prompt, expected) = (ids(name, "prompt_ids"), ids(name, "greedy_ids"));
        let model = Model::load(&open(name), Cpu::default()).unwrap();
        let mut session = Session::new(&model, Sampler::new(Sampling::default()).unwrap()).unwrap();
        let mut next = session.run(&prompt, &mut NoProbe).unwrap();
        for &id in &expected {
            assert_eq!(next, id, "{name}");
            next = session.run(&[next], &mut NoProbe).unwrap();
        }
    }
}

/// Asserts that the comparison detects `mistake`.
fn noticed(model: &str, mistake: &str, checkpoint: &Checkpoint) {
    let ours = record(checkpoint, &ids(model, "prompt_ids"));
    assert!(difference(&ours, &reference(model)).is_some(), "{model}: not noticed: {mistake}");
}

#[test]
fn the_comparison_detects_a_wrong_hyperparameter() {
    for model in MODELS {
        let wrong = |mistake: &str, change: &dyn Fn(&mut Checkpoint)| {
            let mut checkpoint = open(model);
            change(&mut checkpoint);
            noticed(model, mistake, &checkpoint);
        };
        wrong("theta 10000", &|c| c.config.rope_theta = 10_000.0);
        wrong("epsilon 1e-5", &|c| c.config.norm_eps = 1e-5);
        wrong("no epsilon", &|c| c.config.norm_eps = 0.0);
        wrong("the other pairing", &|c| c.config.pairing = Pairing::Neighbours);
    }
    let mut checkpoint = open("tied_llama3");
    checkpoint.config.rope_scaling = RopeScaling::None;
    noticed("tied_llama3", "no RoPE scaling", &checkpoint);
}

#[test]
fn the_comparison_detects_a_wrong_window() {
    for (model, window, from) in [("mistral", 4, 0), ("qwen2", 5, 1)] {
        let right = open(model).config;
        assert_eq!((right.window, right.window_layers), (Some(window), LayerSet::From(from)), "{model}");
        let prompt = ids(model, "prompt_ids").len();
        assert!(prompt > window, "{model}: the window is shorter than the prompt");
        let wrong = [Some(window - 1), Some(window + 1), Some(prompt), None].map(|window| (window, from));
        // The window begins one layer later, or in the first layer.
        let layers = [from + 1, 0].map(|from| (Some(window), from));
        for (window, from) in wrong.into_iter().chain(layers) {
            let mut checkpoint = open(model);
            (checkpoint.config.window, checkpoint.config.window_layers) = (window, LayerSet::From(from));
            if checkpoint.config != right {
                noticed(model, &format!("window {window:?} from layer {from}"), &checkpoint);
            }
        }
    }
    // The configuration has a window, but does not use it.
    let mut checkpoint = open("qwen3");
    assert_eq!(checkpoint.config.window, None);
    checkpoint.config.window = Some(3);
    noticed("qwen3", "an unused window used", &checkpoint);
}

#[test]
fn the_comparison_detects_a_missing_query_and_key_norm() {
    let mut checkpoint = open("qwen3");
    checkpoint.config.qk_norm = false;
    noticed("qwen3", "no query and key norm", &checkpoint);
}

/// The model with its tensors changed by `change`.
fn with_tensors(model: &str, change: impl FnOnce(&mut Tensors)) -> Checkpoint {
    checkpoint::open(models::golden(model, change).path()).unwrap()
}

#[test]
fn the_comparison_detects_each_missing_or_swapped_bias_and_norm_weight() {
    for model in MODELS {
        let all = tensors(&fixture(&format!("golden/{model}")));
        let vectors: Vec<_> =
            all.iter().filter(|(_, (shape, _))| shape.len() == 1).map(|(name, _)| name).collect();
        let biases = vectors.iter().filter(|name| name.ends_with("bias")).count();
        let layers = open(model).config.layers;
        let (norms, expected) = match model {
            "mha_bias" => (2, 7),
            "qwen2" => (2, 3),
            "qwen3" => (4, 0),
            _ => (2, 0),
        };
        assert_eq!(vectors.len() - biases, norms * layers + 1, "{model}: norm weights");
        assert_eq!(biases, expected * layers, "{model}: biases");
        for (i, name) in vectors.iter().enumerate() {
            let neutral: f32 = if name.ends_with("bias") { 0.0 } else { 1.0 };
            let dropped = with_tensors(model, |tensors| {
                let bytes = &mut tensors.get_mut(*name).unwrap().1;
                *bytes = neutral.to_le_bytes().repeat(bytes.len() / 4);
            });
            noticed(model, &format!("{name} dropped"), &dropped);

            let same = |other: &&&String| all[**other].0 == all[*name].0 && other != &name;
            let Some(other) = vectors[i..].iter().find(same) else { continue };
            let swapped = with_tensors(model, |tensors| {
                let (a, b) = (tensors[*name].clone(), tensors[*other].clone());
                tensors.insert((*name).clone(), b);
                tensors.insert((*other).clone(), a);
            });
            noticed(model, &format!("{name} and {other} swapped"), &swapped);
        }
    }
}

#[test]
fn the_comparison_detects_a_missing_scale_and_a_wrong_kv_head() {
    for model in MODELS {
        let reference = reference(model);
        let sizes = llama_trace::trace::Sizes::new(&open(model).config, Precision::F32);
        let (heads, groups, c) = (sizes.heads, sizes.kv_heads, sizes.head_dim);
        let right = record(&open(model), &ids(model, "prompt_ids"));
        assert_eq!(difference(&right, &reference), None);
        for layer in 0..sizes.layers {
            let at = |stage| name(Site::layer(0, layer, stage));
            let mut no_root = right.clone();
            no_root.insert(at(Stage::Scores), right[&at(Stage::Qk)].clone());
            assert!(difference(&no_root, &reference).is_some(), "{model}: √C dropped");

            // Query head h reads kv head h mod G instead of h / (H/G). If G = H, the two are the same, so the order is
            // reversed.
            let wrong_head = |head: usize| if groups == heads { heads - 1 - head } else { head % groups };
            for (repeated, cache) in [(Stage::Keys, Stage::CacheK), (Stage::Values, Stage::CacheV)] {
                let (shape, cache) = (&right[&at(repeated)].0, &right[&at(cache)].1);
                let wrong = (0..shape[0] * heads).flat_map(|i| {
                    cache[(i / heads * groups + wrong_head(i % heads)) * c..][..c].iter().copied()
                });
                let mut other = right.clone();
                other.insert(at(repeated), (shape.clone(), wrong.collect()));
                assert!(difference(&other, &reference).is_some(), "{model}: wrong kv head");
            }
        }
    }
}
