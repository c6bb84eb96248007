//! The families other than Llama, Mistral and Qwen: their defaults and the meaning of their fields.

use super::*;
use llama_trace_core::config::{Activation, Pairing, QkNormForm, QkWidth, QueryScale, Rope};

/// A configuration of `family` with six layers and with `changes`.
fn six(family: &str, changes: &Value) -> Result<ModelConfig> {
    let mut all = json!({"num_hidden_layers": 6});
    all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    of(family, &all)
}

fn set(layers: [u8; 6]) -> LayerSet {
    LayerSet::of(&layers.map(|has| has == 1)).unwrap()
}

#[test]
fn every_family_opens_by_its_name_and_by_its_class() {
    for family in crate::checkpoint::family::FAMILIES {
        let config = six(family.model_type, &json!({})).unwrap_or_else(|error| panic!("{error}"));
        let mut named = small();
        named.as_object_mut().unwrap().remove("model_type");
        named["architectures"] = json!([family.class]);
        named["num_key_value_heads"] = json!(2);
        named["num_hidden_layers"] = json!(6);
        let described = model_config(&named.to_string(), "config.json", &[]).unwrap();
        assert_eq!((described.config, described.family), (config, *family));
        // The text of messages names it.
        assert!(Family::listed().contains(&format!("\"{}\" ({})", family.model_type, family.models)));
    }
}

#[test]
fn gemma_scales_embeddings_and_adds_one_to_its_weights() {
    let config = six("gemma", &json!({"hidden_act": "gelu", "hidden_activation": null})).unwrap();
    assert_eq!((config.multipliers.embedding, config.head_dim, config.tied), (8.0, 256, true));
    assert_eq!((config.activation, config.norm.one_plus), (Activation::GeluTanh, true));
    assert_eq!((config.window, config.score_scale, config.placement), (None, None, Placement::Before));

    let config = six("gemma2", &json!({"head_dim": 16, "hidden_act": "relu"})).unwrap();
    assert_eq!((config.window, config.window_layers), (Some(4096), set([1, 0, 1, 0, 1, 0])));
    assert_eq!(
        (config.score_cap, config.logit_cap, config.score_scale),
        (Some(50.0), Some(30.0), Some(0.0625))
    );
    assert_eq!(
        (config.activation, config.placement, config.qk_norm),
        (Activation::GeluTanh, Placement::Both, false)
    );
    assert_eq!(six("gemma2", &json!({"query_pre_attn_scalar": 256})).unwrap().score_scale, None);
    let uncapped =
        six("gemma2", &json!({"attn_logit_softcapping": null, "final_logit_softcapping": null})).unwrap();
    assert_eq!((uncapped.score_cap, uncapped.logit_cap), (None, None));
    assert!(
        six("gemma2", &json!({"sliding_window": null})).unwrap_err().to_string().contains("`layer_types`")
    );
    assert!(six("gemma2", &json!({"use_bidirectional_attention": true})).is_err());
}

#[test]
fn gemma_3_has_two_ropes_and_a_pattern_of_layers() {
    let config = six("gemma3_text", &json!({"sliding_window": 5})).unwrap();
    assert_eq!((config.window, config.window_layers), (Some(5), set([1, 1, 1, 1, 1, 0])));
    assert_eq!((config.rope_theta, config.rope_scaling.clone()), (1e6, RopeScaling::None));
    assert_eq!(config.local_rope, Some(Rope { theta: 1e4, scaling: RopeScaling::None }));
    assert!(config.qk_norm && config.score_cap.is_none() && config.logit_cap.is_none());
    let pattern = six("gemma3_text", &json!({"sliding_window_pattern": 2})).unwrap();
    assert_eq!(pattern.window_layers, set([1, 0, 1, 0, 1, 0]));
    // The old and the new spelling of the two RoPEs.
    let linear = json!({"rope_type": "linear", "factor": 8.0});
    let old = json!({"rope_theta": 1e5, "rope_local_base_freq": 2e4, "rope_scaling": linear});
    let new = json!({"rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    }});
    let (old, new) = (six("gemma3_text", &old).unwrap(), six("gemma3_text", &new).unwrap());
    assert_eq!(old, new);
    assert_eq!(old.rope_scaling, RopeScaling::Linear { factor: 8.0 });
    let flat = six("gemma3_text", &json!({"rope_parameters": {"rope_theta": 1e5}})).unwrap_err().to_string();
    assert!(flat.contains("`rope_parameters.rope_theta`"), "{flat}");
}

#[test]
fn a_model_that_reads_images_opens_as_its_text_model() {
    let text = json!({
        "model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "image_token_index": 7,
        "boi_token_index": 5, "eoi_token_index": 6, "mm_tokens_per_image": 4, "vision_config": {"hidden_size": 8},
        "text_config": {
            "model_type": "gemma3_text", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6,
            "sliding_window": 5, "final_logit_softcapping": 30.0, "eos_token_id": 3,
        },
    });
    let described = model_config(&text.to_string(), "config.json", &[]).unwrap();
    assert_eq!(described.family.model_type, "gemma3_text");
    let config = described.config;
    assert_eq!((config.heads, config.kv_heads, config.head_dim, config.vocab), (8, 4, 256, 262_208));
    assert_eq!((config.logit_cap, config.tied), (None, true));
    assert_eq!(
        described.notes.lines(),
        ["the model also reads images (gemma3); only its text model is opened"]
    );
    assert_eq!(eos(&text.to_string(), "").unwrap(), Some(vec![3]));

    let mut unknown = text.clone();
    unknown["text_config"]["head_bias"] = json!(true);
    let error = model_config(&unknown.to_string(), "config.json", &[]).unwrap_err().to_string();
    assert!(error.contains("--ignore-config text_config.head_bias"), "{error}");
    let ignore = ["text_config.head_bias".to_owned()];
    assert_eq!(model_config(&unknown.to_string(), "config.json", &ignore).unwrap().config, config);
    unknown["text_config"] = Value::Null;
    assert!(model_config(&unknown.to_string(), "config.json", &[]).is_err());

    let mut inner = small();
    inner["model_type"] = json!("ministral3");
    inner["num_key_value_heads"] = json!(2);
    let mistral = json!({"model_type": "mistral3", "tie_word_embeddings": false, "text_config": inner});
    let described = model_config(&mistral.to_string(), "config.json", &[]).unwrap();
    assert!(described.family.model_type == "ministral3" && !described.config.tied);
}

#[test]
fn smollm3_has_layers_without_rope() {
    let config = six("smollm3", &json!({})).unwrap();
    assert_eq!((config.rope_layers, config.rope_theta, config.window), (set([1, 1, 1, 0, 1, 1]), 2e6, None));
    let windows = json!({"use_sliding_window": true, "sliding_window": 3, "no_rope_layer_interval": 2});
    let config = six("smollm3", &windows).unwrap();
    assert_eq!(
        (config.rope_layers, config.window_layers),
        (set([1, 0, 1, 0, 1, 0]), set([0, 1, 0, 1, 0, 1]))
    );
    let listed = six("smollm3", &json!({"no_rope_layers": [0, 1, 1, 0, 1, 0, 1]})).unwrap();
    assert_eq!(listed.rope_layers, set([0, 1, 1, 0, 1, 0]));
    for wrong in [json!([1, 1]), json!([2, 1, 1, 1, 1, 1]), json!("x"), json!([1, 1, 1, 1, 1, null])] {
        assert!(six("smollm3", &json!({"no_rope_layers": wrong})).is_err());
    }
    assert!(six("smollm3", &json!({"no_rope_layer_interval": 0})).is_err());
}

#[test]
fn norms_have_the_places_and_names_of_the_family() {
    let olmo = six("olmo3", &json!({"rope_theta": 1e6})).unwrap();
    assert_eq!((olmo.placement, olmo.qk_norm_form.width), (Placement::After, QkWidth::Whole));
    assert_eq!(olmo.window_layers, set([1, 1, 1, 0, 1, 1]));
    // As in transformers, the field beside the objects is that of the layers without a window.
    assert_eq!((olmo.rope_theta, olmo.local_rope.map(|rope| rope.theta)), (1e6, Some(500_000.0)));
    assert_eq!(six("olmo3", &json!({})).unwrap().local_rope, None);

    let glm = six("glm4", &json!({"head_dim": 16})).unwrap();
    assert_eq!((glm.placement, glm.pairing, glm.rope_dim), (Placement::Both, Pairing::Neighbours, Some(8)));
    assert!(glm.qkv_bias && !glm.output_bias);
    assert_eq!(six("glm4", &json!({"partial_rotary_factor": 1.0})).unwrap().rope_dim, None);
    assert!(six("glm4", &json!({"partial_rotary_factor": 1.5})).is_err());
    let inner = json!({"rope_parameters": {"partial_rotary_factor": 0.25}, "head_dim": 16});
    assert_eq!(six("glm4", &inner).unwrap().rope_dim, Some(4));

    let cohere = six("cohere", &json!({})).unwrap();
    assert_eq!((cohere.placement, cohere.qk_norm), (Placement::Parallel, false));
    assert_eq!((cohere.multipliers.logits, cohere.norm_eps), (0.0625, 1e-5));
    assert!(six("cohere", &json!({"use_qk_norm": true})).unwrap().qk_norm);
    let cohere = six("cohere2", &json!({})).unwrap();
    assert_eq!(
        (cohere.window_layers, cohere.rope_layers),
        (set([1, 1, 1, 0, 1, 1]), set([1, 1, 1, 0, 1, 1]))
    );

    let exaone = six("exaone4", &json!({"sliding_window_pattern": 3})).unwrap();
    assert_eq!(
        (exaone.window_layers, exaone.rope_layers),
        (set([1, 1, 0, 1, 1, 0]), set([1, 1, 0, 1, 1, 0]))
    );
    let full = json!({
        "sliding_window": null, "sliding_window_pattern": "LLLG", "layer_types": vec!["full_attention"; 6],
    });
    let exaone = six("exaone4", &full).unwrap();
    assert_eq!((exaone.window, exaone.rope_layers), (None, LayerSet::ALL));

    let stable = six("stablelm", &json!({"qk_layernorm": true, "use_parallel_residual": true})).unwrap();
    assert!(stable.norm.bias && stable.qk_norm && stable.placement == Placement::Parallel);
    assert_eq!((stable.rope_dim, stable.qk_norm_form.width), (Some(4), QkWidth::EachHead));
    let hunyuan = six("hunyuan_v1_dense", &json!({})).unwrap();
    assert_eq!(hunyuan.qk_norm_form, QkNormForm { after_rope: true, ..QkNormForm::default() });
}

#[test]
fn multipliers_and_activations_are_those_of_the_file() {
    let granite = six(
        "granite",
        &json!({
            "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.0078125,
            "logits_scaling": 8.0,
        }),
    )
    .unwrap();
    assert_eq!(granite.multipliers, Multipliers { embedding: 12.0, residual: 0.22, logits: 0.125 });
    assert_eq!(granite.score_scale, Some(0.0078125));
    assert_eq!(six("granite", &json!({})).unwrap().score_scale, Some(1.0));
    let arcee = six("arcee", &json!({})).unwrap();
    assert!(arcee.ungated && arcee.activation == Activation::Relu2);
    let apertus = six("apertus", &json!({})).unwrap();
    assert!(apertus.ungated && apertus.activation == Activation::Xielu);
    assert!(matches!(apertus.rope_scaling, RopeScaling::Llama3 { original_context: 8192, .. }));
    assert_eq!(six("apertus", &json!({"rope_parameters": {}})).unwrap().rope_scaling, RopeScaling::None);
}

#[test]
fn yarn_longrope_and_dynamic_are_read_as_by_transformers() {
    let yarn = |changes: Value| {
        let mut inner = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32});
        inner.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        with(&json!({"rope_scaling": inner, "max_position_embeddings": 256}))
    };
    let plain = RopeScaling::Yarn {
        factor: 4.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        original_context: 32,
        attention_factor: (0.1 * 4_f64.ln() + 1.0) as f32,
        truncate: true,
    };
    assert_eq!(yarn(json!({})).unwrap().rope_scaling, plain);
    assert_eq!(yarn(json!({"beta_fast": null, "beta_slow": 0})).unwrap().rope_scaling, plain);
    let attention = |changes| match yarn(changes).unwrap().rope_scaling {
        RopeScaling::Yarn { attention_factor, .. } => attention_factor,
        other => panic!("{other:?}"),
    };
    assert_eq!(attention(json!({"mscale": 1.0, "mscale_all_dim": 1.0})), 1.0);
    assert_eq!(attention(json!({"attention_factor": 1.5, "mscale": 1.0})), 1.5);
    assert_eq!(attention(json!({"factor": 0.5})), 1.0);
    let by_context = yarn(json!({"factor": null})).unwrap().rope_scaling;
    assert!(matches!(by_context, RopeScaling::Yarn { factor: 8.0, .. }), "{by_context:?}");
    assert!(yarn(json!({"short_factor": [1.0]})).is_err());

    let long = json!({
        "rope_scaling": {"type": "su", "short_factor": vec![1.0; 6], "long_factor": vec![2.0; 6]},
        "partial_rotary_factor": 0.75, "max_position_embeddings": 64, "original_max_position_embeddings": 16,
    });
    let phi = six("phi3", &long).unwrap();
    let attention_factor = (1.0 + 4_f64.ln() / 16_f64.ln()).sqrt() as f32;
    let expected = RopeScaling::LongRope {
        short: vec![1.0; 6],
        long: vec![2.0; 6],
        original_context: 16,
        attention_factor,
    };
    assert_eq!((phi.rope_scaling, phi.rope_dim), (expected, Some(12)));
    assert!(six("phi3", &json!({"rope_scaling": {"type": "linear", "factor": 2.0}})).is_err());

    let dynamic = json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}});
    let expected = RopeScaling::Dynamic { factor: 2.0, original_context: 2048 };
    assert_eq!(with(&dynamic).unwrap().rope_scaling, expected);
    assert_eq!(with(&dynamic).unwrap().context, 4096, "the scaling is for texts of this length");
    assert_eq!(six("hunyuan_v1_dense", &dynamic).unwrap().rope_scaling, expected);
    // Hunyuan's alpha is another θ, whatever the length of the text.
    let alpha = json!({"rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 1000.0}});
    let config = six("hunyuan_v1_dense", &alpha).unwrap();
    let theta = (1e4 * 1000_f64.powf(16.0 / 14.0)) as f32;
    assert_eq!((config.rope_theta, config.rope_scaling), (theta, RopeScaling::None));

    let ministral = six("ministral3", &json!({})).unwrap();
    assert_eq!(ministral.query_scale, Some(QueryScale { beta: 0.1, original_context: 16_384 }));
    let plain = json!({"rope_type": "default", "rope_theta": 1e6, "original_max_position_embeddings": 8});
    let mut scaled = plain.clone();
    scaled["llama_4_scaling_beta"] = json!(0.5);
    let config = six("ministral3", &json!({"rope_parameters": scaled})).unwrap();
    assert_eq!(config.query_scale, Some(QueryScale { beta: 0.5, original_context: 8 }));
    let error = six("ministral3", &json!({"rope_parameters": plain})).unwrap_err().to_string();
    assert!(error.contains("llama_4_scaling_beta"), "{error}");
    assert!(with(&json!({"rope_parameters": {"llama_4_scaling_beta": 0.1}})).is_err());
}

#[test]
fn every_field_of_transformers_classes_is_in_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/configuration/classes.json");
    let classes: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let classes = classes.as_object().unwrap();
    for (kind, names) in classes {
        let own = Family::of_type(kind).map_or(Source::Wrapper, Source::Family);
        for name in names.as_array().unwrap().iter().filter_map(Value::as_str) {
            let found = crate::checkpoint::fields::find(&[own, Source::HuggingFace], name);
            assert!(found.is_some(), "{kind} has {name}");
        }
    }
    let all = crate::checkpoint::family::FAMILIES.iter().map(|family| family.model_type);
    for kind in all.chain(WRAPPERS.iter().map(|(kind, _)| *kind)) {
        assert!(classes.contains_key(kind), "{kind}");
    }
}
