mod families;

use super::*;
use llama_trace_core::config::{LayerSet, RopeScaling};
use proptest::prelude::*;
use serde_json::json;

fn small() -> Value {
    json!({
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 96, "vocab_size": 100,
    })
}

fn with(changes: &Value) -> Result<ModelConfig> {
    let mut config = small();
    for (name, value) in changes.as_object().unwrap() {
        config[name] = value.clone();
    }
    model_config(&config.to_string(), "config.json", &[]).map(|described| described.config)
}

fn message(changes: &Value) -> String {
    with(changes).unwrap_err().to_string()
}

#[test]
fn defaults_are_those_of_transformers() {
    let config = with(&json!({})).unwrap();
    let expected =
        ModelConfig { layers: 2, ffn_dim: 96, vocab: 100, norm_eps: 1e-6, ..ModelConfig::of_heads(4, 4, 16) };
    assert_eq!(config, expected);
}

#[test]
fn null_counts_as_absent_where_transformers_takes_it_so() {
    let nulls = json!({
        "head_dim": null, "num_key_value_heads": null, "rope_scaling": null, "rope_parameters": null,
        "partial_rotary_factor": null, "attention_dropout": null, "sliding_window": null, "layer_types": null,
        "eos_token_id": null, "something_else": null, "quantization_config": null,
    });
    assert_eq!(with(&nulls).unwrap(), with(&json!({})).unwrap());
    // transformers fails on null here, or does not use the default.
    for name in [
        "model_type",
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "hidden_act",
        "max_position_embeddings",
        "rms_norm_eps",
        "tie_word_embeddings",
        "attention_bias",
        "mlp_bias",
        "initializer_range",
        "use_cache",
        "rope_theta",
        "is_causal",
    ] {
        let text = message(&json!({name: null}));
        assert!(text.contains(&format!("`{name}`")) && text.contains("found: null"), "{name}: {text}");
    }
}

#[test]
fn attention_bias_is_on_all_four_projections() {
    let config = with(&json!({"attention_bias": true})).unwrap();
    assert!(config.qkv_bias && config.output_bias && !config.mlp_bias);
}

#[test]
fn head_dim_may_differ_from_the_quotient() {
    assert_eq!(with(&json!({"head_dim": 32})).unwrap().q_dim(), 128);
    assert!(message(&json!({"hidden_size": 65})).contains("head_dim"));
    assert!(message(&json!({"num_attention_heads": 0})).contains("head_dim"));
}

/// A configuration of `family` with `changes`.
fn of(family: &str, changes: &Value) -> Result<ModelConfig> {
    let mut all = json!({"model_type": family, "num_key_value_heads": 2});
    for (name, value) in changes.as_object().unwrap() {
        all[name] = value.clone();
    }
    with(&all)
}

#[test]
fn a_family_is_its_switches() {
    let config = of("mistral", &json!({"attention_bias": true, "mlp_bias": true})).unwrap();
    assert!(!config.qkv_bias && !config.output_bias && !config.mlp_bias && !config.qk_norm);
    assert_eq!((config.window, config.window_layers, config.context), (Some(4096), LayerSet::ALL, 131_072));
    assert_eq!(of("mistral", &json!({"sliding_window": null})).unwrap().window, None);
    assert_eq!(of("mistral", &json!({"sliding_window": 7})).unwrap().window, Some(7));
    of("mistral", &json!({"sliding_window": 0})).unwrap_err();

    let config = of("qwen2", &json!({"sliding_window": 7})).unwrap();
    assert!(config.qkv_bias && !config.output_bias && !config.mlp_bias && !config.qk_norm);
    assert_eq!((config.window, config.head_dim), (None, 16));

    let config = of("qwen3", &json!({})).unwrap();
    assert!(config.qk_norm && !config.qkv_bias && !config.output_bias);
    assert_eq!((config.window, config.head_dim), (None, 128));
    let config = of("qwen3", &json!({"attention_bias": true, "head_dim": 8})).unwrap();
    assert!(config.qkv_bias && config.output_bias && !config.mlp_bias && config.head_dim == 8);

    let mut named = small();
    named.as_object_mut().unwrap().remove("model_type");
    named["architectures"] = json!(["Qwen3ForCausalLM"]);
    named["num_key_value_heads"] = json!(2);
    assert!(model_config(&named.to_string(), "config.json", &[]).unwrap().config.qk_norm);
    assert!(message(&json!({"model_type": "qwen2"})).contains("num_key_value_heads"));
    assert_eq!(of("qwen2", &json!({"num_key_value_heads": null})).unwrap().kv_heads, 4);
    // The masks have no window here, but transformers' cache drops the keys outside it.
    assert!(message(&json!({"sliding_window": 7})).contains("`sliding_window`"));
}

#[test]
fn the_layers_with_a_window_are_counted_or_listed() {
    for family in ["qwen2", "qwen3"] {
        let windows = |changes: Value| {
            let mut all = json!({"use_sliding_window": true, "sliding_window": 7});
            for (name, value) in changes.as_object().unwrap() {
                all[name] = value.clone();
            }
            of(family, &all).map(|config| (config.window, config.window_layers))
        };
        let (full, sliding) = ("full_attention", "sliding_attention");
        assert_eq!(windows(json!({})).unwrap(), (None, LayerSet::ALL), "28 layers without one");
        assert_eq!(windows(json!({"max_window_layers": 1})).unwrap(), (Some(7), LayerSet::From(1)));
        assert_eq!(windows(json!({"max_window_layers": 0})).unwrap(), (Some(7), LayerSet::ALL));
        assert_eq!(windows(json!({"layer_types": [full, sliding]})).unwrap(), (Some(7), LayerSet::From(1)));
        assert_eq!(windows(json!({"layer_types": [full, full]})).unwrap(), (None, LayerSet::ALL));
        let listed = LayerSet::of(&[true, false]).unwrap();
        assert_eq!(windows(json!({"layer_types": [sliding, full]})).unwrap(), (Some(7), listed));
        for wrong in [json!([full]), json!([full, "chunked_attention"]), json!("x")] {
            windows(json!({"layer_types": wrong})).unwrap_err();
        }
        let off = json!({"use_sliding_window": false, "layer_types": [full, sliding]});
        assert!(windows(off).unwrap_err().to_string().contains("layer_types"));
    }
    let mixed = json!({"layer_types": ["full_attention", "sliding_attention"]});
    assert!(of("mistral", &mixed).unwrap_err().to_string().contains("layer_types"));
}

#[test]
fn rope_in_both_spellings() {
    let llama3 = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    });
    let scaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: 8192,
    };
    let old = with(&json!({"rope_theta": 500000, "rope_scaling": llama3})).unwrap();
    assert_eq!((old.rope_theta, old.rope_scaling.clone()), (500000.0, scaling));

    let mut parameters = llama3;
    parameters["rope_theta"] = json!(500000.0);
    assert_eq!(with(&json!({"rope_parameters": parameters})).unwrap(), old);

    let linear = with(&json!({"rope_scaling": {"type": "linear", "factor": 2}})).unwrap();
    assert_eq!(linear.rope_scaling, RopeScaling::Linear { factor: 2.0 });
    let default = with(&json!({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}})).unwrap();
    assert_eq!((default.rope_theta, default.rope_scaling), (1e6, RopeScaling::None));
}

#[test]
fn what_is_not_computed_is_named() {
    for (other, part) in [
        ("deepseek_v3", "multi-head latent attention"),
        ("qwen3_next", "gated DeltaNet"),
        ("mamba2", "Mamba"),
        ("qwen3_moe", "experts"),
        ("gemma3n_text", "shared by layers"),
        ("gpt2", "found: \"gpt2\""),
        ("", "found: \"\""),
    ] {
        let text = message(&json!({"model_type": other}));
        let works = ["\"llama\"", "\"mistral\"", "\"qwen2\"", "\"gemma3_text\" (Gemma 3)", "SmolLM2"];
        assert!(text.contains(&format!("\"{other}\"")) && text.contains(part), "{text}");
        assert!(text.contains("next: use a model of one of these families"), "{text}");
        assert!(works.iter().all(|name| text.contains(name)), "{text}");
    }
    let mut nameless = small();
    nameless.as_object_mut().unwrap().remove("model_type");
    let text = model_config(&nameless.to_string(), "config.json", &[]).unwrap_err().to_string();
    assert!(text.contains("no model_type"), "{text}");
    assert!(message(&json!({"rope_scaling": {"type": "spiral", "factor": 2}})).contains("\"spiral\""));
    assert!(message(&json!({"rope_scaling": {"type": "llama3", "factor": 2}})).contains("low_freq_factor"));
    assert!(message(&json!({"quantization_config": {"quant_method": "awq"}})).contains("\"awq\""));
    assert!(message(&json!({"hidden_act": "relu"})).contains("\"relu\""));
    assert!(message(&json!({"hidden_act": "xielu"})).contains("\"xielu\""));
    assert!(
        message(&json!({"kv_lora_rank": 512})).contains("multi-head latent attention (MLA) is not supported")
    );
    assert!(message(&json!({"rope_parameters": {"partial_rotary_factor": 0.5}})).contains("0.5"));
}

#[test]
fn wrong_types_and_absurd_numbers_are_errors() {
    let text = message(&json!({"num_hidden_layers": "two"}));
    assert!(text.contains("`num_hidden_layers`") && text.contains("\"two\""), "{text}");
    for wrong in [json!(-1), json!(1.5), json!(1e300), json!([]), json!({}), json!(true), json!(u64::MAX)] {
        for name in ["hidden_size", "num_key_value_heads", "vocab_size", "max_position_embeddings"] {
            with(&json!({name: wrong.clone()})).unwrap_err();
        }
    }
    with(&json!({"rms_norm_eps": "small"})).unwrap_err();
    with(&json!({"tie_word_embeddings": 1})).unwrap_err();
    with(&json!({"rope_scaling": "linear"})).unwrap_err();
    assert!(model_config(&"[".repeat(10_000), "config.json", &[]).is_err());
    assert!(model_config("[]", "config.json", &[]).is_err());
}

#[test]
fn eos_is_a_number_or_a_list() {
    assert_eq!(eos("{}", "").unwrap(), None);
    assert_eq!(eos(r#"{"eos_token_id": null}"#, "").unwrap(), None);
    assert_eq!(eos(r#"{"eos_token_id": 2}"#, "").unwrap(), Some(vec![2]));
    assert_eq!(eos(r#"{"eos_token_id": [128001, 128009]}"#, "").unwrap(), Some(vec![128001, 128009]));
    for wrong in ["-1", "1.5", "\"</s>\"", "[[1]]", "4294967296"] {
        eos(&format!(r#"{{"eos_token_id": {wrong}}}"#), "").unwrap_err();
    }
}

proptest! {
    #[test]
    fn mutated_text_never_panics(at: prop::sample::Index, byte in 0x20_u8..0x7f) {
        let mut text = small().to_string().into_bytes();
        let at = at.index(text.len());
        text[at] = byte;
        let text = String::from_utf8(text).unwrap();
        let _ = model_config(&text, "config.json", &[]);
        let _ = eos(&text, "config.json");
    }
}
