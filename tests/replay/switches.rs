//! The checks on random models, one for each switch of the families.

use llama_trace::backend::cpu::Cpu;
use llama_trace::check::{Plan, Sample, run, seeded_ids};
use llama_trace::checkpoint::random;
use llama_trace::config::{
    Activation, LayerSet, ModelConfig, Multipliers, Norm, NormKind, Pairing, Placement, Precision,
    QkNormForm, QkWidth, QueryScale, Rope, RopeScaling,
};
use llama_trace::model::Model;
use llama_trace::tensor::Dtype;

/// Checks a model of three layers whose configuration `change` adapts, in every precision.
fn passes(name: &str, change: impl FnOnce(&mut ModelConfig)) {
    let mut config = ModelConfig {
        layers: 3,
        dim: 36,
        ffn_dim: 44,
        vocab: 60,
        context: 32,
        ..ModelConfig::of_heads(6, 2, 8)
    };
    change(&mut config);
    config.check().unwrap();
    let ids = seeded_ids(config.vocab, 7, 1);
    let checkpoint = random::of_config(name, config, Dtype::F32);
    for precision in [Precision::F32, Precision::Bf16, Precision::Q8 { group: 16 }] {
        let model = Model::load(&checkpoint, Cpu::default().with_precision(precision)).unwrap();
        let plan = Plan { ids: ids.clone(), split: None, tokenizer: None, sample: Sample::Seeded(1) };
        let report = run(&model, None, &plan, &|_, _| {}).unwrap();
        let failed: Vec<_> = report.checks.iter().filter(|check| !check.ok).collect();
        assert!(failed.is_empty(), "{name}, {precision:?}: {failed:#?}");
    }
}

#[test]
fn layers_may_differ_in_rope_and_window() {
    passes("no RoPE", |c| c.rope_layers = LayerSet::of(&[true, false, true]).unwrap());
    passes("windows in any order", |c| {
        (c.window, c.window_layers) = (Some(3), LayerSet::of(&[true, false, true]).unwrap());
        c.local_rope = Some(Rope { theta: 100.0, scaling: RopeScaling::None });
    });
    passes("chunks, no RoPE", |c| {
        (c.window, c.chunked, c.window_layers) = (Some(3), true, LayerSet::of(&[true, true, false]).unwrap());
        (c.rope_layers, c.qk_norm) = (c.window_layers, true);
    });
}

#[test]
fn norms_may_have_other_places_and_forms() {
    let once = Norm { rounded_once: true, ..Norm::default() };
    passes("after", |c| {
        (c.placement, c.norm, c.qk_norm) = (Placement::After, once, true);
        c.qk_norm_form.width = QkWidth::Whole;
    });
    passes("both, 1 + w", |c| {
        (c.placement, c.norm, c.qk_norm) = (Placement::Both, Norm { one_plus: true, ..once }, true);
    });
    passes("parallel LayerNorm", |c| {
        (c.placement, c.norm) = (Placement::Parallel, Norm { kind: NormKind::Layer, ..Norm::default() });
        (c.qk_norm, c.qk_norm_form) =
            (true, QkNormForm { width: QkWidth::EachHead, kind: NormKind::Layer, ..QkNormForm::default() });
    });
    passes("LayerNorm with a bias", |c| {
        c.norm = Norm { kind: NormKind::Layer, bias: true, ..Norm::default() }
    });
    passes("no weights, after RoPE", |c| {
        (c.norm, c.qk_norm) = (Norm { weight: false, ..once }, true);
        c.qk_norm_form = QkNormForm { weight: false, after_rope: true, ..QkNormForm::default() };
    });
    passes("after RoPE", |c| (c.qk_norm, c.qk_norm_form.after_rope) = (true, true));
}

#[test]
fn stages_may_have_factors_and_caps() {
    passes("multipliers", |c| {
        c.multipliers = Multipliers { embedding: 6.0, residual: 0.22, logits: 0.0625 };
        c.score_scale = Some(0.3);
    });
    passes("caps", |c| (c.score_cap, c.logit_cap) = (Some(0.01), Some(0.02)));
    passes("query scale", |c| c.query_scale = Some(QueryScale { beta: 0.1, original_context: 3 }));
}

#[test]
fn rope_may_be_partial_and_scaled() {
    for pairing in [Pairing::Halves, Pairing::Neighbours] {
        passes("partial", |c| (c.rope_dim, c.pairing) = (Some(4), pairing));
    }
    let yarn = RopeScaling::Yarn {
        factor: 4.0,
        beta_fast: 4.0,
        beta_slow: 1.0,
        original_context: 64,
        attention_factor: 1.138,
        truncate: true,
    };
    let longrope = RopeScaling::LongRope {
        short: vec![1.0, 1.1, 1.2, 1.3],
        long: vec![1.0, 2.0, 3.0, 4.0],
        original_context: 8,
        attention_factor: 1.19,
    };
    let dynamic = RopeScaling::Dynamic { factor: 2.0, original_context: 8 };
    for scaling in [yarn, longrope, dynamic] {
        passes("scaled", |c| c.rope_scaling = scaling);
    }
}

#[test]
fn the_feed_forward_network_may_have_another_activation_and_no_gate() {
    use Activation::{Gelu, GeluTanh, Relu2, Xielu};
    for activation in [GeluTanh, Gelu, Relu2, Xielu] {
        for ungated in [false, true] {
            passes("activation", |c| (c.activation, c.ungated, c.mlp_bias) = (activation, ungated, true));
        }
    }
    passes("no gate", |c| c.ungated = true);
}
