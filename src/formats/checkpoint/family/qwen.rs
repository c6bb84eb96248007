//! Qwen2 and Qwen3, and Hunyuan, whose norms of queries and keys come after RoPE.

use super::super::fields::ONE;
use super::Fallback::{self, Flag, Number, Required, Size};
use super::{
    ALPHA_KINDS, BASE, Family, LayerWeight as L, Means as M, QK_NORM, QkNormForm, Windows, field, idle,
    nullable, refused,
};

/// Llama with biases of queries, keys and values. With `use_sliding_window`, its upper layers have a window (Yang et
/// al., 2024). The biases are in transformers' code, not in the configuration.
pub(super) const QWEN2: Family = Family {
    model_type: "qwen2",
    class: "Qwen2ForCausalLM",
    models: "Qwen2, Qwen2.5",
    fields: &[
        field(M::Context, "max_position_embeddings", Size(32_768)),
        nullable(M::KvHeads, "num_key_value_heads", Required),
        field(M::HeadDim, "head_dim", Fallback::None),
        field(M::UseWindow, "use_sliding_window", Flag(false)),
        nullable(M::Window, "sliding_window", Size(4096)),
        field(M::FirstWindow, "max_window_layers", Size(28)),
        nullable(M::LayerTypes, "layer_types", Fallback::None),
        field(M::Nothing, "attention_dropout", Fallback::None),
        // CodeQwen1.5 has this field beside rope_theta, but only rope_theta is read.
        idle("rotary_emb_base"),
        // Qwen2.5-1M: vLLM's method for texts longer than the training context. transformers does not have it.
        idle("dual_chunk_attention_config"),
    ],
    windows: Windows::From,
    qkv_bias: true,
    ..BASE
};

/// Qwen2 with norms of queries and keys, and without its biases (Yang et al., 2025).
pub(super) const QWEN3: Family = Family {
    model_type: "qwen3",
    class: "Qwen3ForCausalLM",
    models: "Qwen3",
    fields: &[
        field(M::Context, "max_position_embeddings", Size(32_768)),
        nullable(M::KvHeads, "num_key_value_heads", Required),
        field(M::HeadDim, "head_dim", Size(128)),
        field(M::AttentionBias, "attention_bias", Flag(false)),
        field(M::UseWindow, "use_sliding_window", Flag(false)),
        nullable(M::Window, "sliding_window", Size(4096)),
        field(M::FirstWindow, "max_window_layers", Size(28)),
        nullable(M::LayerTypes, "layer_types", Fallback::None),
        field(M::Nothing, "attention_dropout", Fallback::None),
    ],
    windows: Windows::From,
    qk_norm: Some(QK_NORM),
    ..BASE
};

/// Llama with norms of queries and keys after RoPE (Tencent, 2025).
pub(super) const HUNYUAN: Family = Family {
    model_type: "hunyuan_v1_dense",
    class: "HunYuanDenseV1ForCausalLM",
    models: "Hunyuan, dense",
    fields: &[
        field(M::Epsilon, "rms_norm_eps", Number(1e-5)),
        field(M::AttentionBias, "attention_bias", Flag(false)),
        field(M::Nothing, "pretraining_tp", Fallback::None),
        // Of Tencent's own code.
        idle("use_qk_norm"),
        idle("cla_share_factor"),
        idle("norm_type"),
        idle("attention_head_dim"),
        idle("use_rotary_pos_emb"),
        refused("num_experts", ONE),
    ],
    rope_kinds: ALPHA_KINDS,
    qk_norm: Some(QkNormForm { after_rope: true, ..QK_NORM }),
    names: &[(L::QNorm, "self_attn.query_layernorm.weight"), (L::KNorm, "self_attn.key_layernorm.weight")],
    ..BASE
};
