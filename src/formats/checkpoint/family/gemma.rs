//! Gemma 1, 2 and 3: embeddings multiplied by √D, norms with 1 + w, GELU.

use super::Fallback::{self, Flag, Number, Required, Size, Text};
use super::{
    BASE, Family, LayerWeight as L, Means as M, Norm, Placement, QK_NORM, RMS, Renames, Windows, field, idle,
    nullable,
};

const NORM: Norm = Norm { one_plus: true, rounded_once: true, ..RMS };
/// The norms around the feed-forward network have names of their own.
const NAMES: Renames = &[
    (L::PostAttnNorm, "post_attention_layernorm.weight"),
    (L::FfnNorm, "pre_feedforward_layernorm.weight"),
    (L::PostFfnNorm, "post_feedforward_layernorm.weight"),
];

/// Gemma Team, 2024, "Gemma: Open Models Based on Gemini Research and Technology".
pub(super) const GEMMA: Family = Family {
    model_type: "gemma",
    class: "GemmaForCausalLM",
    models: "Gemma 1",
    fields: &[
        field(M::Context, "max_position_embeddings", Size(8192)),
        field(M::KvHeads, "num_key_value_heads", Required),
        field(M::HeadDim, "head_dim", Size(256)),
        // The first files say "gelu", which transformers reads as the approximation with tanh.
        field(M::TanhActivation, "hidden_act", Text("gelu_pytorch_tanh")),
        field(M::Tied, "tie_word_embeddings", Flag(true)),
        field(M::AttentionBias, "attention_bias", Flag(false)),
        idle("hidden_activation"),
    ],
    norm: NORM,
    root_of_dim: true,
    ..BASE
};

/// Norms before and after, soft caps, a window in every other layer (Gemma Team, 2024, "Gemma 2").
pub(super) const GEMMA2: Family = Family {
    model_type: "gemma2",
    class: "Gemma2ForCausalLM",
    models: "Gemma 2",
    fields: &[
        field(M::Context, "max_position_embeddings", Size(8192)),
        field(M::KvHeads, "num_key_value_heads", Required),
        field(M::HeadDim, "head_dim", Size(256)),
        field(M::Activation, "hidden_activation", Text("gelu_pytorch_tanh")),
        field(M::Tied, "tie_word_embeddings", Flag(true)),
        field(M::AttentionBias, "attention_bias", Flag(false)),
        field(M::ScoreRoot, "query_pre_attn_scalar", Size(256)),
        nullable(M::Window, "sliding_window", Size(4096)),
        nullable(M::LayerTypes, "layer_types", Fallback::None),
        nullable(M::LogitCap, "final_logit_softcapping", Number(30.0)),
        nullable(M::ScoreCap, "attn_logit_softcapping", Number(50.0)),
        idle("hidden_act"),
        // The type of transformers' cache in older files.
        idle("cache_implementation"),
    ],
    windows: Windows::Except(2),
    placement: Placement::Both,
    names: NAMES,
    ..GEMMA
};

/// Norms of queries and keys in place of the caps, and five layers with a window and their own θ for one without
/// (Gemma Team, 2025, "Gemma 3 Technical Report"). The configurations of the models that also read images leave many
/// sizes out. transformers reads `attn_logit_softcapping`, but no score depends on it.
#[rustfmt::skip]
pub(super) const GEMMA3: Family = Family {
    model_type: "gemma3_text",
    class: "Gemma3ForCausalLM",
    models: "Gemma 3",
    fields: &[
        field(M::Vocab, "vocab_size", Size(262_208)),
        field(M::Heads, "num_attention_heads", Size(8)), field(M::KvHeads, "num_key_value_heads", Size(4)),
        field(M::Context, "max_position_embeddings", Size(131_072)),
        field(M::HeadDim, "head_dim", Size(256)),
        field(M::Activation, "hidden_activation", Text("gelu_pytorch_tanh")),
        field(M::Tied, "tie_word_embeddings", Flag(true)), field(M::AttentionBias, "attention_bias", Flag(false)),
        field(M::ScoreRoot, "query_pre_attn_scalar", Size(256)),
        nullable(M::Window, "sliding_window", Size(4096)),
        field(M::WindowPattern, "sliding_window_pattern", Size(6)),
        nullable(M::LayerTypes, "layer_types", Fallback::None),
        field(M::LocalTheta, "rope_local_base_freq", Number(10_000.0)),
        nullable(M::LogitCap, "final_logit_softcapping", Fallback::None),
        idle("attn_logit_softcapping"),
    ],
    windows: Windows::Except(6),
    theta: 1_000_000.0,
    local_theta: Some(10_000.0),
    qk_norm: Some(QK_NORM),
    ..GEMMA2
};
