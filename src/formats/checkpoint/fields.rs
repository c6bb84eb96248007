//! The treatment of every configuration field in one table: fields that are obeyed, fields that do not affect the
//! numbers, and unsupported fields that would change them. Also the rule for fields that are not in the table.
//!
//! The fields that a family reads are in its table ([`super::family`]). This table has the fields of all families: those
//! that no family reads, and those that only some read.
//!
//! The reference is transformers 5.24 for config.json, llama.cpp for GGUF files and Meta's code for params.json.
//! `fixtures/configuration` records what they do with each field that is obeyed or refused.

use serde_json::Value;

use super::family::{Architecture, Family, Field, Means};

/// The location of a field. The fields of one family take precedence over rows for every config.json.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Source {
    /// config.json of any family.
    HuggingFace,
    /// config.json of this family.
    Family(&'static Family),
    /// config.json of a model of several kinds of input, which contains that of its text model.
    Wrapper,
    /// The object `rope_parameters` or `rope_scaling` of a config.json.
    Rope,
    /// Meta's params.json.
    Meta,
    /// A GGUF file's keys, without the prefix of the architecture.
    Gguf,
    /// The keys that this architecture reads.
    Architecture(&'static Architecture),
}

/// The treatment of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// The model is computed with it. Unsupported values are refused.
    Obeyed,
    /// No number that the model computes depends on it.
    Harmless,
    /// An unsupported field that would change the computation. It is refused unless it is null, false, empty, one of
    /// these values, or a list of only such values.
    Refused(&'static [Neutral]),
    /// The field describes an unsupported storage of the weights. It is refused unless it is null, and it cannot be
    /// ignored.
    Storage,
}

/// A value of a field that changes nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Neutral {
    /// This number.
    Number(f64),
    /// This text.
    Text(&'static str),
    /// `true`.
    True,
}

/// The meaning of null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Null {
    /// The same as an absent field.
    Absent,
    /// No valid meaning: the reference fails, or does not use the default.
    Fails,
}

/// One row of the table: fields with the same treatment. A name that ends in `*` matches all names with that prefix.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The location of the fields.
    pub source: Source,
    /// Their treatment.
    pub rule: Rule,
    /// The meaning of null.
    pub null: Null,
    /// Their names.
    pub names: &'static [&'static str],
}

const fn row(source: Source, rule: Rule, null: Null, names: &'static [&'static str]) -> Row {
    Row { source, rule, null, names }
}

pub(super) const ONE: &[Neutral] = &[Neutral::Number(1.0)];
const ZERO: &[Neutral] = &[Neutral::Number(0.0)];
/// In llama.cpp a factor of 0 means no factor.
const ONE_OR_ZERO: &[Neutral] = &[Neutral::Number(1.0), Neutral::Number(0.0)];
/// −1 means that no value is set.
const NEGATIVE: &[Neutral] = &[Neutral::Number(-1.0), Neutral::Number(0.0)];
const SILU: &[Neutral] = &[Neutral::Text("silu"), Neutral::Text("swish"), Neutral::Text("swiglu")];
/// The file name that changes nothing: model.safetensors takes precedence over all other files anyway.
const WEIGHTS: &[Neutral] = &[Neutral::Text("model.safetensors")];
const FULL: &[Neutral] = &[Neutral::Text("full_attention")];

use Null::{Absent, Fails};
use Rule::{Harmless, Obeyed, Refused, Storage};
use Source::{Gguf, HuggingFace, Meta, Rope, Wrapper};

/// The table.
#[rustfmt::skip]
pub const TABLE: &[Row] = &[
    // config.json, every family.
    row(HuggingFace, Obeyed, Fails, &["model_type"]),
    row(HuggingFace, Obeyed, Absent, &["architectures"]),
    // config.json of a model of several kinds of input. Only its text model is opened.
    row(Wrapper, Obeyed, Fails, &["model_type", "text_config", "tie_word_embeddings"]),
    row(Wrapper, Harmless, Absent, &[
        "vision_config", "mm_tokens_per_image", "boi_token_index", "eoi_token_index", "boi_token_id", "eoi_token_id",
        "image_token_id", "projector_hidden_act", "vision_feature_layer", "vision_feature_select_strategy",
        "multimodal_projector_bias", "spatial_merge_size", "image_seq_length",
    ]),
    // config.json: fields that do not affect any family.
    row(HuggingFace, Harmless, Fails, &["initializer_range", "use_cache"]),
    row(HuggingFace, Harmless, Absent, &[
        // Training.
        "attention_dropout", "attn_dropout", "attention_probs_dropout_prob", "hidden_dropout", "hidden_dropout_prob",
        "dropout", "embd_pdrop", "attn_pdrop", "resid_pdrop", "residual_dropout", "embedding_dropout",
        "ffn_dropout", "classifier_dropout", "layerdrop", "gradient_checkpointing", "label_smoothing",
        "router_aux_loss_coef", "router_jitter_noise", "output_router_logits", "z_loss_coefficient", "z_loss_weight", "init_std",
        "initializer_factor", "init_method", "weight_init", "neftune_noise_alpha",
        // How the model was split or stored, and how to run it.
        "pretraining_tp", "tensor_parallel", "tensor_parallel_degree", "sequence_parallel", "use_cache_kernel",
        "dtype", "torch_dtype", "use_bfloat16", "fp16", "bf16", "fp32", "torchscript", "chunk_size_feed_forward",
        "low_cpu_mem_usage", "attn_implementation", "_attn_implementation", "_attn_implementation_internal",
        "_attn_implementation_autoset", "_experts_implementation", "_experts_implementation_internal",
        "experts_implementation", "_flash_attn_2_enabled", "use_flash_attn", "use_flash_attention",
        "use_flash_attention_2", "use_flashattn", "flash_attn", "use_flash_rotary", "use_fused_rmsnorm", "use_fused_rope",
        "fused_bias_fc", "use_fused_crossentropy", "cache_implementation", "offline", "use_dynamic_ntk_cache",
        // Name and origin of the checkpoint.
        "transformers_version", "_name_or_path", "name_or_path", "_commit_hash", "auto_map", "tokenizer_class",
        "tokenizer_file", "prefix", "revision", "license", "transformers.js_config", "transformers_js_config",
        "is_llama_config", "is_qwen2_config", "internal_version", "rope_interleaved", "unsloth_*", "_unsloth*", "mergekit*", "max_sequence_length",
        "max_seq_len", "max_seq_length", "max_length_seq", "seq_length", "model_max_length", "user_max_position",
        "full_attn_mod", "interpolate_factor", "layer_switch", "order_of_interleaved_layers", "use_gated_activation",
        "use_parallel_block", "use_parallel_embedding", "use_embedding_sharing", "use_rmsnorm",
        "training_args", "peft_type", "_pre_quantization_dtype", "world_size", "nanotron_version", "language",
        // Tokens.
        "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "cls_token_id",
        "mask_token_id", "eot_token_id", "eod_token_id", "decoder_start_token_id", "bos_token", "eos_token",
        "pad_token", "unk_token", "image_token_index", "additional_special_tokens", "original_vocab_size",
        "ignore_index", "pad_vocab_size_multiple", "make_vocab_size_divisible_by", "type_vocab_size",
        // Additional heads, and what the model returns.
        "id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "task_specific_params",
        "output_attentions", "output_hidden_states", "output_scores", "return_dict", "return_dict_in_generate",
        "use_return_dict", "tie_last_hidden_states", "is_decoder", "is_encoder_decoder", "tie_encoder_decoder",
        "keys_to_ignore_at_inference", "tf_legacy_loss", "value_head_prefix", "normalize_reward",
        // Generation options in older files.
        "max_length", "max_new_tokens", "min_length", "min_new_tokens", "do_sample", "early_stopping", "num_beams",
        "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "min_p", "typical_p",
        "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
        "bad_words_ids", "num_return_sequences", "forced_bos_token_id", "forced_eos_token_id",
        "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens",
        "generation_config", "assistant_early_exit",
    ]),
    // Some families read these. The others have no biases and no windows, whatever the field contains.
    row(HuggingFace, Harmless, Absent, &[
        "attention_bias", "mlp_bias", "use_sliding_window", "max_window_layers", "_sliding_window_pattern",
    ]),
    // In the families that do not read these, the masks do not depend on them. The cache does, and drops keys.
    row(HuggingFace, Refused(&[]), Absent, &["sliding_window"]),
    row(HuggingFace, Refused(FULL), Absent, &["layer_types"]),
    row(HuggingFace, Storage, Absent, &[
        "quantization_config", "quantization", "quant_config", "quantize_config", "compression_config",
        "sparsity_config", "bnb_config", "gptq_config", "awq_config",
    ]),
    // Null is not the default here: with a null is_causal, no key is masked.
    row(HuggingFace, Refused(&[Neutral::True]), Fails, &["is_causal"]),
    row(HuggingFace, Refused(&[Neutral::True]), Absent, &["causal", "scale_attn_weights", "rope", "use_rope", "no_bias"]),
    row(HuggingFace, Refused(&[]), Absent, &[
        "text_config", "llm_config", "vision_config", "audio_config", "per_layer_config", "attribute_map",
        "use_bidirectional_attention", "add_cross_attention", "cross_attention_hidden_size", "pruned_heads",
        "rope_local_base_freq", "global_rope_theta", "local_rope_theta", "rope_ratio", "mrope_section", "use_mrope",
        "alibi", "use_alibi", "alibi_bias_max", "position_embedding_type", "learned_position_embeddings",
        "no_rope_layers", "no_rope_layer_interval", "nope_layer_interval", "attention_chunk_size",
        "attn_temperature_tuning", "attention_sink", "attention_sinks", "sinks", "sliding_window_pattern",
        "sliding_window_size", "attn_window", "local_attention", "global_attn_every_n_layers",
        "qk_norm", "use_qk_norm", "qk_layernorm", "query_key_norm", "q_norm", "k_norm", "norm_type",
        "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_eps", "post_norm", "sandwich_norm",
        "use_post_attention_norm", "norm_bias", "qkv_bias", "use_bias", "bias", "attn_bias", "lm_head_bias",
        "clip_qkv", "query_pre_attn_scalar", "attn_scale", "parallel_attn", "use_parallel_residual",
        "num_experts", "num_local_experts", "n_routed_experts", "n_shared_experts", "num_shared_experts",
        "num_experts_per_tok", "moe_*", "expert*", "mup*", "kv_lora_rank", "q_lora_rank", "num_kv_shared_layers", "linear_*", "mamba_*", "ssm_*",
        "cla_share_factor", "layer_skip", "hidden_size_per_layer_input", "altup*", "residual_post_norm",
        "qk_layer_norms", "kv_sharing_modes", "ntk*", "use_dynamic_ntk", "use_logn_attn",
        // BitNet, under Llama's model_type.
        "input_bits", "weight_bits",
    ]),
    row(HuggingFace, Refused(WEIGHTS), Absent, &["transformers_weights"]),
    row(HuggingFace, Refused(SILU), Absent, &["hidden_activation", "activation_function", "activation", "act_fn"]),
    row(HuggingFace, Refused(ONE), Absent, &[
        "partial_rotary_factor", "rotary_pct", "rope_percentage", "rotary_percent", "attention_multiplier",
        "residual_multiplier", "embedding_multiplier", "residual_scale", "embedding_scale", "scale_emb",
        "scale_depth", "logit_scale", "logits_scale", "logits_scaling", "lm_head_multiplier", "attention_factor",
        "rope_scaling_factor", "emb_scale",
    ]),
    row(HuggingFace, Refused(ZERO), Absent, &[
        "attn_logit_softcapping", "final_logit_softcapping", "logits_soft_cap", "attn_logit_softcap",
        "final_logit_softcap", "scale_attn_by_inverse_layer_idx", "first_k_dense_replace", "num_nextn_predict_layers",
    ]),
    // rope_parameters and rope_scaling. rope_type determines which of these fields are needed.
    row(Rope, Obeyed, Fails, &["rope_type", "type", "rope_theta"]),
    row(Rope, Obeyed, Absent, &[
        "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
    ]),
    // max_position_embeddings repeats the field of the file. Other programs read attn_factor, but transformers does not.
    row(Rope, Harmless, Absent, &["finetuned", "max_position_embeddings", "attn_factor"]),
    // Refused only if the kind of RoPE or the family does not read them.
    row(Rope, Refused(ONE), Absent, &["partial_rotary_factor", "attention_factor", "mscale", "mscale_all_dim"]),
    row(Rope, Refused(&[]), Absent, &[
        "beta_fast", "beta_slow", "short_factor", "long_factor", "truncate", "alpha", "llama_4_scaling_beta",
        // RoPEs of kinds of layers.
        "full_attention", "sliding_attention",
    ]),
    row(Rope, Refused(&[]), Absent, &["chunked_attention", "linear_attention", "mrope_section"]),
    // params.json.
    row(Meta, Obeyed, Fails, &[
        "dim", "n_layers", "n_heads", "norm_eps", "rope_theta", "multiple_of",
    ]),
    row(Meta, Obeyed, Absent, &[
        "n_kv_heads", "vocab_size", "ffn_dim_multiplier", "head_dim", "hidden_dim", "max_seq_len", "use_scaled_rope",
        "rope_scaling_factor", "rope_high_freq_factor",
    ]),
    row(Meta, Harmless, Absent, &[
        "max_batch_size", "model_parallel_size", "seed", "dtype", "dropout", "bos_id", "eos_id", "pad_id",
        "bos_token_id", "eos_token_id", "pad_token_id", "use_cache", "flash", "checkpoint_activations",
        "vision_max_num_chunks",
        // The width of the experts, in a file with moe_args.
        "ffn_exp",
    ]),
    row(Meta, Storage, Absent, &["quantization_args", "quantization", "quantization_config"]),
    row(Meta, Refused(&[]), Absent, &[
        "moe", "moe_args", "vision_args", "lora_args", "sliding_window", "use_qk_norm", "qk_norm", "yarn",
        "use_yarn", "attn_temperature_tuning", "use_biases", "attn_bias", "attention_bias", "rope_scaling",
        "vision_model", "vision_encoder",
    ]),
    row(Meta, Refused(NEGATIVE), Absent, &[
        "vision_chunk_size", "vision_num_cross_attention_layers", "nope_layer_interval", "attention_chunk_size",
        "num_experts", "n_experts", "num_experts_per_tok", "interleave_moe_layer_step",
    ]),
    row(Meta, Refused(ONE), Absent, &["partial_rotary_factor"]),
    // Parameters of attn_temperature_tuning, with their values in Llama 4's code.
    row(Meta, Refused(&[Neutral::Number(1.0), Neutral::Number(0.1)]), Absent, &["attn_scale"]),
    row(Meta, Refused(&[Neutral::Number(8192.0)]), Absent, &["floor_scale"]),
    row(Meta, Refused(&[Neutral::True]), Fails, &["causal"]),
    row(Meta, Refused(SILU), Absent, &["activation", "hidden_act", "act_fn"]),
    // GGUF.
    row(Gguf, Obeyed, Absent, &[
        "vocab_size", "context_length", "embedding_length", "block_count", "feed_forward_length",
        "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length",
        "attention.layer_norm_rms_epsilon", "rope.dimension_count", "rope.freq_base", "rope.scaling.type",
        "rope.scaling.factor", "rope.scale_linear",
    ]),
    row(Gguf, Harmless, Absent, &[
        "tensor_data_layout", "pooling_type", "rope.scaling.original_context_length", "rope.scaling.finetuned",
        // Only some architectures read these.
        "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
        "classifier.output_labels",
    ]),
    row(Gguf, Refused(&[Neutral::True]), Fails, &["attention.causal"]),
    // Read if rope.scaling.type is yarn or longrope.
    row(Gguf, Refused(ONE), Absent, &["rope.scaling.attn_factor"]),
    row(Gguf, Refused(NEGATIVE), Absent, &["rope.scaling.yarn_ext_factor"]),
    row(Gguf, Refused(ONE_OR_ZERO), Absent, &[
        "logit_scale", "embedding_scale", "residual_scale", "expert_weights_scale",
    ]),
    row(Gguf, Refused(ZERO), Absent, &[
        "expert_count", "expert_used_count", "expert_shared_count", "expert_group_count", "expert_group_used_count",
        "expert_feed_forward_length", "expert_shared_feed_forward_length", "expert_gating_func",
        "expert_weights_norm", "interleave_moe_layer_step", "moe_every_n_layers", "leading_dense_block_count",
        "nextn_predict_layers", "attention.scale", "attention.sliding_window", "attention.sliding_window_pattern",
        "attention.max_alibi_bias", "attention.clamp_kqv", "attention.temperature_length",
        "attention.temperature_scale", "attention.q_lora_rank", "attention.kv_lora_rank",
        "attention.shared_kv_layers", "attn_logit_softcapping", "final_logit_softcapping", "rope.dimension_sections",
        "rope.scaling.yarn_log_multiplier", "use_parallel_residual", "rescale_every_n_layers", "rope.scaling.alpha",
        // Fields of llama.cpp's other architectures, and names without a clear meaning.
        "swiglu_clamp_*", "hyper_connection.*", "hrm.*", "ple.*", "altup.*", "adapters.*", "ssm.*", "wkv.*", "kda.*",
        "shortconv.*", "posnet.*", "convnext.*", "attn_res.*", "token_shift_count", "deepstack_mapping",
        "decoder_block_count", "embedding_length_out", "features_length",
    ]),
    row(Gguf, Refused(ONE_OR_ZERO), Absent, &["num_loops"]),
    row(Gguf, Refused(SILU), Absent, &["hidden_activation"]),
];

/// The treatment of one field, and the meaning of null in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Treatment {
    /// The treatment.
    pub rule: Rule,
    /// The meaning of null.
    pub null: Null,
}

impl From<&Field> for Treatment {
    fn from(field: &Field) -> Self {
        let rule = match field.means {
            Means::Nothing => Harmless,
            Means::Refused(neutral) => Refused(neutral),
            _ => Obeyed,
        };
        Self { rule, null: field.null }
    }
}

/// The treatment of the field `name`, looked up in each of `sources` in order.
pub(super) fn find(sources: &[Source], name: &str) -> Option<Treatment> {
    let is = |pattern: &&str| match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => *pattern == name,
    };
    sources.iter().find_map(|&source| match source {
        Source::Family(family) => family.named(name).map(Treatment::from),
        Source::Architecture(architecture) => {
            let reads = architecture.keys.contains(&name);
            reads.then_some(Treatment { rule: Obeyed, null: Absent })
        }
        _ => {
            let row = TABLE.iter().find(|row| row.source == source && row.names.iter().any(is))?;
            Some(Treatment { rule: row.rule, null: row.null })
        }
    })
}

/// Returns whether a field with this value changes nothing: it is null, false, empty, one of `neutral`, or a list of
/// only such values.
pub(super) fn is_neutral(value: &Value, neutral: &[Neutral]) -> bool {
    let named = |wanted: &Neutral| match (wanted, value) {
        (Neutral::Number(number), value) => value.as_f64() == Some(*number),
        (Neutral::Text(text), value) => value.as_str() == Some(*text),
        (Neutral::True, value) => *value == Value::Bool(true),
    };
    match value {
        Value::Null => true,
        // If true is neutral, false is not.
        Value::Bool(false) => !neutral.contains(&Neutral::True),
        Value::Array(list) => list.iter().all(|value| is_neutral(value, neutral)),
        Value::Object(object) => object.is_empty(),
        Value::String(text) => text.is_empty() || neutral.iter().any(named),
        _ => neutral.iter().any(named),
    }
}

/// The expected value of the field `name` of the table, for messages.
pub(super) fn expected(treatment: Treatment, name: &str) -> String {
    let Refused(neutral) = treatment.rule else { return "absent".into() };
    let named = neutral.iter().map(|neutral| match neutral {
        Neutral::Number(number) => number.to_string(),
        Neutral::Text(text) => format!("\"{text}\""),
        Neutral::True => "true".into(),
    });
    let mut all: Vec<String> = ["absent".into()].into_iter().chain(named).collect();
    if !neutral.contains(&Neutral::True) {
        all.push("false".into());
    }
    if treatment.null == Absent {
        all.push("null".into());
    }
    const PARTS: &[(&str, &str)] = &[
        ("expert", "mixtures of experts are"),
        ("moe", "mixtures of experts are"),
        ("lora_rank", "multi-head latent attention (MLA) is"),
        ("kv_shared", "keys and values shared by layers are"),
        ("shared_kv", "keys and values shared by layers are"),
        ("ssm", "Mamba layers are"),
        ("mamba", "Mamba layers are"),
        ("linear_", "gated DeltaNet layers are"),
    ];
    let part = PARTS.iter().find(|(part, _)| name.contains(part));
    let what = part.map_or("this feature is", |(_, what)| what);
    format!("{}: {what} not supported", listed(&all))
}

/// `a`; `a or b`; `a, b or c`.
fn listed(words: &[String]) -> String {
    match words {
        [words @ .., last] if !words.is_empty() => format!("{} or {last}", words.join(", ")),
        words => words.concat(),
    }
}

/// Returns whether the name of an unknown field suggests that it could change the numbers.
pub(super) fn speaks_of_numbers(name: &str) -> bool {
    /// Parts that count anywhere in the name.
    const PARTS: &[&str] = &[
        "rope",
        "rotary",
        "position",
        "attention",
        "attn",
        "mask",
        "window",
        "norm",
        "scale",
        "scaling",
        "softcap",
        "capping",
        "bias",
        "activation",
        "expert",
        "head",
        "layer",
    ];
    /// These count only as whole words, because other words contain them: `factor` contains `act`, `escape` contains
    /// `cap`.
    const WORDS: &[&str] = &["cap", "caps", "act", "acts", "moe"];
    let name = name.to_lowercase();
    PARTS.iter().any(|part| name.contains(part))
        || name.split(|c: char| !c.is_alphanumeric()).any(|word| WORDS.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::collections::BTreeSet;

    #[test]
    fn every_field_has_one_row_for_each_source() {
        let mut seen = BTreeSet::new();
        for row in TABLE {
            for name in row.names {
                assert!(seen.insert((format!("{:?}", row.source), name)), "{:?} {name} twice", row.source);
            }
        }
    }

    #[test]
    fn a_family_goes_before_all() {
        let rule = |family, name| {
            let sources = [Source::Family(Family::of_type(family).unwrap()), HuggingFace];
            find(&sources, name).map(|treatment| treatment.rule)
        };
        assert_eq!(rule("llama", "sliding_window"), Some(Refused(&[])));
        assert_eq!(rule("mistral", "sliding_window"), Some(Obeyed));
        assert_eq!(rule("mistral", "attention_chunk_size"), Some(Refused(&[])));
        assert_eq!(rule("llama", "unsloth_version"), Some(Harmless));
        assert_eq!(rule("llama", "something_else"), None);
        // A family may have another name for the field.
        assert_eq!(rule("cohere", "layer_norm_eps"), Some(Obeyed));
        assert_eq!(rule("cohere", "rms_norm_eps"), None);
    }

    #[test]
    fn neutral_values_change_nothing() {
        for value in [
            json!(null),
            json!(false),
            json!([]),
            json!({}),
            json!(""),
            json!(1),
            json!(1.0),
            json!([1, null]),
        ] {
            assert!(is_neutral(&value, ONE), "{value}");
        }
        for value in [json!(true), json!(2), json!([1, 2]), json!({"a": 1}), json!("x"), json!(0)] {
            assert!(!is_neutral(&value, ONE), "{value}");
        }
        assert!(is_neutral(&json!(true), &[Neutral::True]) && !is_neutral(&json!(false), &[Neutral::True]));
        assert!(is_neutral(&json!(["full_attention", "full_attention"]), FULL));
    }

    #[test]
    fn names_that_speak_of_numbers() {
        let words = "rope rotary position attention mask window norm scale cap bias act expert head layer";
        for word in words.split(' ') {
            assert!(speaks_of_numbers(word) && speaks_of_numbers(&format!("my_{word}_x")), "{word}");
        }
        for name in ["RopeKind", "logitSoftcap", "layernorm_kind", "attn_x", "gate_activation", "lm_heads"] {
            assert!(speaks_of_numbers(name), "{name}");
        }
        for name in ["author", "training_factor", "captions", "exact_version", "dataset", "hf_hub"] {
            assert!(!speaks_of_numbers(name), "{name}");
        }
    }
}
