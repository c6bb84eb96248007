//! Command R: one LayerNorm before attention and the feed-forward network, which are side by side.

use super::Fallback::{self, Flag, Number, Size};
use super::{
    BASE, Family, Means as M, Norm, NormKind, Pairing, Placement, QkNormForm, QkWidth, ROUNDED_ONCE,
    RopeRounding, Roped, Windows, field, idle, nullable, refused,
};

/// Command R and R+ (Cohere, 2024).
pub(super) const COHERE: Family = Family {
    model_type: "cohere",
    class: "CohereForCausalLM",
    models: "Command R, R+",
    fields: &[
        field(M::Context, "max_position_embeddings", Size(8192)),
        field(M::Epsilon, "layer_norm_eps", Number(1e-5)),
        field(M::Tied, "tie_word_embeddings", Flag(true)),
        field(M::AttentionBias, "attention_bias", Flag(false)),
        field(M::LogitScale, "logit_scale", Number(0.0625)),
        nullable(M::QkNorm, "use_qk_norm", Flag(false)),
    ],
    theta: 500_000.0,
    pairing: Pairing::Neighbours,
    rope_rounding: RopeRounding::Sum,
    norm: Norm { kind: NormKind::Layer, ..ROUNDED_ONCE },
    placement: Placement::Parallel,
    qk_norm: Some(QkNormForm {
        width: QkWidth::EachHead,
        kind: NormKind::Layer,
        weight: true,
        after_rope: false,
    }),
    ..BASE
};

/// Command R7B and A: three layers with a window and RoPE, then one with neither (Cohere, 2025).
pub(super) const COHERE2: Family = Family {
    model_type: "cohere2",
    class: "Cohere2ForCausalLM",
    models: "Command R7B, Command A",
    fields: &[
        field(M::Context, "max_position_embeddings", Size(8192)),
        field(M::Epsilon, "layer_norm_eps", Number(1e-5)),
        field(M::Tied, "tie_word_embeddings", Flag(true)),
        field(M::AttentionBias, "attention_bias", Flag(false)),
        field(M::LogitScale, "logit_scale", Number(0.0625)),
        nullable(M::Window, "sliding_window", Size(4096)),
        field(M::WindowPattern, "sliding_window_pattern", Size(4)),
        nullable(M::LayerTypes, "layer_types", Fallback::None),
        refused("use_qk_norm", &[]),
        idle("position_embedding_type"),
    ],
    windows: Windows::Except(4),
    roped: Roped::Windowed,
    theta: 10_000.0,
    qk_norm: None,
    ..COHERE
};
