//! Families with tensors or norms of their own kind.

use super::Fallback::{self, Flag, Number, Required, Size, Text};
use super::{
    BASE, Family, LayerWeight as L, Means as M, Norm, NormKind, Placement, QK_NORM, QkNormForm, QkWidth,
    ROUNDED_ONCE, RopeKind, Roped, Stored, Windows, field, idle, nullable,
};

/// Llama with fused tensors and LongRoPE, which has other names in older files (Abdin et al., 2024, "Phi-3 Technical
/// Report").
pub(super) const PHI3: Family = Family {
    model_type: "phi3",
    class: "Phi3ForCausalLM",
    models: "Phi-3, Phi-3.5, Phi-4",
    fields: &[
        field(M::Context, "max_position_embeddings", Size(4096)),
        field(M::Epsilon, "rms_norm_eps", Number(1e-5)),
        nullable(M::Window, "sliding_window", Fallback::None),
        field(M::OriginalContext, "original_max_position_embeddings", Size(4096)),
        field(M::Partial, "partial_rotary_factor", Fallback::None),
    ],
    windows: Windows::All,
    partial: Some(1.0),
    rope_kinds: &[
        ("default", RopeKind::Default),
        ("longrope", RopeKind::LongRope),
        ("su", RopeKind::LongRope),
        ("yarn", RopeKind::LongRope),
    ],
    stored: &[
        Stored::Fused("self_attn.qkv_proj.weight", &[L::Wq, L::Wk, L::Wv]),
        Stored::Fused("mlp.gate_up_proj.weight", &[L::W1, L::W3]),
    ],
    ..BASE
};

/// Norms only after; in models with a window, RoPE only in the layers with it (LG AI Research, 2025).
pub(super) const EXAONE4: Family = Family {
    model_type: "exaone4",
    class: "Exaone4ForCausalLM",
    models: "EXAONE 4.0",
    fields: &[
        field(M::KvHeads, "num_key_value_heads", Required),
        field(M::Epsilon, "rms_norm_eps", Number(1e-5)),
        nullable(M::Window, "sliding_window", Size(4096)),
        nullable(M::WindowPattern, "sliding_window_pattern", Size(4)),
        nullable(M::LayerTypes, "layer_types", Fallback::None),
    ],
    windows: Windows::Except(4),
    roped: Roped::WindowedIfAny,
    placement: Placement::After,
    qk_norm: Some(QK_NORM),
    names: super::olmo::OLMO2.names,
    ..BASE
};

/// xIELU without a gate, and norms of queries and keys (Apertus Team, 2025).
pub(super) const APERTUS: Family = Family {
    model_type: "apertus",
    class: "ApertusForCausalLM",
    models: "Apertus",
    fields: &[
        field(M::Context, "max_position_embeddings", Size(65_536)),
        field(M::Epsilon, "rms_norm_eps", Number(1e-5)),
        field(M::XieluActivation, "hidden_act", Text("xielu")),
        idle("qk_norm"),
        field(M::AttentionBias, "attention_bias", Flag(false)),
    ],
    theta: 12_000_000.0,
    rope: r#"{"rope_type": "llama3", "rope_theta": 12000000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}"#,
    qk_norm: Some(QK_NORM),
    ungated: true,
    names: &[(L::AttnNorm, "attention_layernorm.weight"), (L::FfnNorm, "feedforward_layernorm.weight")],
    stored: &[
        Stored::Joined(L::Xielu, &["mlp.act_fn.alpha_p", "mlp.act_fn.alpha_n"]),
        Stored::Constant("mlp.act_fn.beta", 0.5),
        Stored::Constant("mlp.act_fn.eps", -1e-6),
    ],
    ..BASE
};

/// LayerNorm with a bias, and RoPE in a quarter of a head (Bellagente et al., 2024, "Stable LM 2 1.6B").
pub(super) const STABLELM: Family = Family {
    model_type: "stablelm",
    class: "StableLmForCausalLM",
    models: "StableLM 2",
    fields: &[
        field(M::KvHeads, "num_key_value_heads", Required),
        field(M::Context, "max_position_embeddings", Size(4096)),
        field(M::Epsilon, "layer_norm_eps", Number(1e-5)),
        field(M::QkvBias, "use_qkv_bias", Flag(false)),
        field(M::QkNorm, "qk_layernorm", Flag(false)),
        field(M::Parallel, "use_parallel_residual", Flag(false)),
        field(M::Partial, "partial_rotary_factor", Fallback::None),
        field(M::Nothing, "hidden_dropout", Fallback::None),
    ],
    partial: Some(0.25),
    norm: Norm { kind: NormKind::Layer, bias: true, ..ROUNDED_ONCE },
    qk_norm: Some(QkNormForm { width: QkWidth::EachHead, kind: NormKind::Layer, ..QK_NORM }),
    stored: &[
        Stored::PerHead(L::QNorm, "self_attn.q_layernorm.norms.{}.weight"),
        Stored::PerHead(L::KNorm, "self_attn.k_layernorm.norms.{}.weight"),
    ],
    ..BASE
};
