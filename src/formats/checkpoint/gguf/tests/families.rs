//! The architectures other than Llama: their keys, and their tensors.

use super::*;
use crate::checkpoint::family::ARCHITECTURES;
use llama_trace_core::config::{Activation, LayerSet, ModelConfig, Placement, QkWidth, QueryScale, Rope};

/// The keys of a model of `architecture` with six layers, width 8, two query heads and one kv head.
fn keys(architecture: &str) -> Build {
    let key = |name: &str| format!("{architecture}.{name}");
    Build::new()
        .text("general.architecture", architecture)
        .u32(&key("block_count"), 6)
        .u32(&key("context_length"), 64)
        .u32(&key("embedding_length"), 8)
        .u32(&key("feed_forward_length"), 6)
        .u32(&key("attention.head_count"), 2)
        .u32(&key("attention.head_count_kv"), 1)
        .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5)
}

/// These keys with the epsilon of a LayerNorm too.
fn all_keys(architecture: &str) -> Build {
    match ["command-r", "cohere2", "stablelm"].contains(&architecture) {
        true => keys(architecture).f32(&format!("{architecture}.attention.layer_norm_epsilon"), 1e-5),
        false => keys(architecture),
    }
}

/// A file with `keys` and the tensors `names` in each layer, each with the shape beside it.
fn with_tensors(keys: Build, names: &[(&str, &[u64])]) -> Build {
    let build = keys.tensor("token_embd.weight", &[3, 8], 1.0).tensor("output_norm.weight", &[8], 1.0);
    (0..6).fold(build, |build, layer| {
        names
            .iter()
            .fold(build, |build, (name, shape)| build.tensor(&format!("blk.{layer}.{name}"), shape, 2.0))
    })
}

const ATTENTION: [(&str, &[u64]); 4] = [
    ("attn_q.weight", &[8, 8]),
    ("attn_k.weight", &[4, 8]),
    ("attn_v.weight", &[4, 8]),
    ("attn_output.weight", &[8, 8]),
];
const FFN: [(&str, &[u64]); 3] =
    [("ffn_gate.weight", &[6, 8]), ("ffn_up.weight", &[6, 8]), ("ffn_down.weight", &[8, 6])];

fn config(keys: Build) -> ModelConfig {
    model(&with_tensors(keys, &ATTENTION)).config
}

fn set(layers: [u8; 6]) -> LayerSet {
    LayerSet::of(&layers.map(|has| has == 1)).unwrap()
}

#[test]
fn every_architecture_opens() {
    for architecture in ARCHITECTURES.iter().filter(|architecture| architecture.name != "apertus") {
        let config = config(all_keys(architecture.name));
        assert_eq!(config.pairing, architecture.pairing, "{}", architecture.name);
        assert!(!config.norm.one_plus && config.activation == architecture.family.default_activation());
    }
}

#[test]
fn gemma_has_the_window_of_its_architecture() {
    let gemma2 = config(keys("gemma2"));
    assert_eq!((gemma2.window, gemma2.window_layers), (Some(4096), set([1, 0, 1, 0, 1, 0])));
    assert_eq!(
        (gemma2.score_cap, gemma2.logit_cap, gemma2.placement),
        (Some(50.0), Some(30.0), Placement::Both)
    );
    assert_eq!(gemma2.multipliers.embedding, 8_f32.sqrt());
    let gemma3 =
        config(keys("gemma3").u32("gemma3.attention.sliding_window", 5).f32("gemma3.rope.freq_base", 1e6));
    assert_eq!((gemma3.window, gemma3.window_layers), (Some(5), set([1, 1, 1, 1, 1, 0])));
    assert_eq!(gemma3.local_rope, Some(Rope { theta: 10_000.0, scaling: RopeScaling::None }));
    assert_eq!((gemma3.qk_norm, gemma3.logit_cap), (true, None));
    let full = config(keys("gemma3"));
    assert_eq!((full.window, full.local_rope), (None, None));
    let listed = keys("olmo2")
        .u32("olmo2.attention.sliding_window", 3)
        .wholes("olmo2.attention.sliding_window_pattern", &[1, 0, 0, 1, 1, 0]);
    let olmo = config(listed);
    assert_eq!((olmo.window_layers, olmo.placement), (set([1, 0, 0, 1, 1, 0]), Placement::After));
    assert_eq!((olmo.qk_norm_form.width, olmo.local_rope), (QkWidth::Whole, None));
    let wrong = keys("olmo2")
        .u32("olmo2.attention.sliding_window", 3)
        .wholes("olmo2.attention.sliding_window_pattern", &[1, 0]);
    refused(&with_tensors(wrong, &ATTENTION), "true or false for each of 6 layers");
    refused(
        &with_tensors(keys("llama").u32("llama.attention.sliding_window", 3), &ATTENTION),
        "sliding_window",
    );
}

#[test]
fn keys_of_single_architectures_are_read_only_there() {
    let granite = config(
        keys("granite")
            .f32("granite.logit_scale", 8.0)
            .f32("granite.residual_scale", 0.25)
            .f32("granite.embedding_scale", 12.0)
            .f32("granite.attention.scale", 0.5),
    );
    let multipliers = granite.multipliers;
    assert_eq!((multipliers.logits, multipliers.residual, multipliers.embedding), (0.125, 0.25, 12.0));
    assert_eq!(granite.score_scale, Some(0.5));
    let command = config(all_keys("command-r").f32("command-r.logit_scale", 0.0625));
    assert_eq!((command.multipliers.logits, command.placement), (0.0625, Placement::Parallel));
    assert!(!command.qk_norm);
    refused(&with_tensors(keys("smollm3").f32("smollm3.logit_scale", 0.5), &ATTENTION), "logit_scale");
    assert_eq!(config(keys("smollm3")).rope_layers, set([1, 1, 1, 0, 1, 1]));
    let mistral = config(
        keys("mistral3")
            .f32("mistral3.attention.temperature_scale", 0.1)
            .u32("mistral3.rope.scaling.original_context_length", 16),
    );
    assert_eq!(mistral.query_scale, Some(QueryScale { beta: 0.1, original_context: 16 }));
    let glm = config(keys("glm4").u32("glm4.rope.dimension_count", 2));
    assert_eq!((glm.rope_dim, glm.placement), (Some(2), Placement::Both));
    refused(&with_tensors(keys("qwen3").u32("qwen3.rope.dimension_count", 2), &ATTENTION), "dimension_count");
    let arcee = config(keys("arcee"));
    assert_eq!((arcee.activation, arcee.ungated), (Activation::Relu2, true));
}

#[test]
fn fused_tensors_are_split_where_they_lie() {
    let phi = with_tensors(
        keys("phi3"),
        &[
            ("attn_norm.weight", &[8]),
            ("attn_qkv.weight", &[16, 8]),
            ("attn_output.weight", &[8, 8]),
            ("ffn_norm.weight", &[8]),
            ("ffn_up.weight", &[12, 8]),
            ("ffn_down.weight", &[8, 6]),
        ],
    )
    .tensor("rope_factors_long.weight", &[2], 3.0)
    .tensor("rope_factors_short.weight", &[2], 1.5)
    .u32("phi3.rope.scaling.original_context_length", 16)
    .f32("phi3.rope.scaling.attn_factor", 1.25);
    let model = model(&phi);
    model.check_weights().unwrap();
    let [q, k, up] = [(L::Wq, [8, 8]), (L::Wk, [4, 8]), (L::W3, [6, 8])]
        .map(|(weight, shape)| model.tensor(Weight::Layer(5, weight), &shape).unwrap().bytes().place());
    assert_eq!(q.0 + q.1.end, k.0 + k.1.start, "one after the other in the file");
    assert!(up.0 + up.1.start > k.0 + k.1.end);
    let expected = RopeScaling::LongRope {
        short: vec![1.5; 2],
        long: vec![3.0; 2],
        original_context: 16,
        attention_factor: 1.25,
    };
    assert_eq!(model.config.rope_scaling, expected);
    refused(&with_tensors(keys("phi3"), &[("attn_qkv.weight", &[15, 8])]), "`blk.0.attn_qkv.weight`");
    let twice = [("attn_qkv.weight", &[16_u64, 8][..]), ("attn_q.weight", &[8, 8])];
    refused(&with_tensors(keys("phi3"), &twice), "twice");
}

#[test]
fn xielu_comes_from_keys() {
    let numbers = |alpha: f32, beta: f32| {
        keys("apertus")
            .floats("xielu.alpha_p", &[alpha; 6])
            .floats("xielu.alpha_n", &[2.0; 6])
            .floats("xielu.beta", &[beta; 6])
            .floats("xielu.eps", &[-1e-6; 6])
    };
    let names =
        [&ATTENTION[..], &FFN[1..], &[("attn_norm.weight", &[8]), ("ffn_norm.weight", &[8])]].concat();
    let names = [&names[..], &[("attn_q_norm.weight", &[4]), ("attn_k_norm.weight", &[4])]].concat();
    let model = model(&with_tensors(numbers(1.5, 0.5), &names));
    model.check_weights().unwrap();
    let pair = model.tensor(Weight::Layer(3, L::Xielu), &[2]).unwrap();
    assert_eq!(&**pair.bytes(), bytemuck::cast_slice::<f32, u8>(&[1.5, 2.0]));
    refused(&with_tensors(numbers(1.5, 0.75), &names), "xielu.beta");
    refused(&with_tensors(keys("apertus"), &names), "xielu.beta");
}

#[test]
fn stablelm_is_parallel_without_a_second_norm() {
    let parallel = config(all_keys("stablelm").u32("stablelm.rope.dimension_count", 2));
    assert_eq!(
        (parallel.placement, parallel.rope_dim, parallel.qk_norm),
        (Placement::Parallel, Some(2), false)
    );
    let norms: &[(&str, &[u64])] = &[("ffn_norm.weight", &[8]), ("attn_q_norm.weight", &[2, 4])];
    let model = model(&with_tensors(all_keys("stablelm"), norms));
    assert_eq!((model.config.placement, model.config.qk_norm), (Placement::Before, true));
    model.tensor(Weight::Layer(0, L::QNorm), &[8]).unwrap();
}
