//! Llama, and the families that differ from it by biases, multipliers or the layers with RoPE.

use super::Fallback::{self, Flag, Number, Required, Size, Text};
use super::{BASE, Family, Means as M, Pairing, RopeRounding, Roped, Windows, field, nullable};

/// Llama 1 to 3.3 (Touvron et al., 2023; Grattafiori et al., 2024).
pub(super) const LLAMA: Family = Family {
    model_type: "llama",
    class: "LlamaForCausalLM",
    models: "Llama 1 to 3.3, TinyLlama, SmolLM, SmolLM2",
    fields: &[
        field(M::AttentionBias, "attention_bias", Flag(false)),
        field(M::MlpBias, "mlp_bias", Flag(false)),
    ],
    ..BASE
};

/// Llama in which each fourth layer has no RoPE (Yang et al., 2025, "RoPE to NoPE and back again").
pub(super) const SMOLLM3: Family = Family {
    model_type: "smollm3",
    class: "SmolLM3ForCausalLM",
    models: "SmolLM3",
    fields: &[
        field(M::Context, "max_position_embeddings", Size(32_768)),
        nullable(M::KvHeads, "num_key_value_heads", Required),
        field(M::Tied, "tie_word_embeddings", Flag(true)),
        field(M::AttentionBias, "attention_bias", Flag(false)),
        field(M::MlpBias, "mlp_bias", Flag(false)),
        field(M::UseWindow, "use_sliding_window", Flag(false)),
        nullable(M::Window, "sliding_window", Fallback::None),
        nullable(M::LayerTypes, "layer_types", Fallback::None),
        nullable(M::NoRopeLayers, "no_rope_layers", Fallback::None),
        field(M::NoRopeInterval, "no_rope_layer_interval", Size(4)),
    ],
    windows: Windows::WithoutRope,
    roped: Roped::Listed,
    theta: 2_000_000.0,
    ..BASE
};

/// Llama with multipliers of the embeddings, scores, residual stream and logits (IBM, 2024).
pub(super) const GRANITE: Family = Family {
    model_type: "granite",
    class: "GraniteForCausalLM",
    models: "Granite 3, dense",
    fields: &[
        field(M::AttentionBias, "attention_bias", Flag(false)),
        field(M::MlpBias, "mlp_bias", Flag(false)),
        field(M::EmbeddingScale, "embedding_multiplier", Number(1.0)),
        field(M::ResidualScale, "residual_multiplier", Number(1.0)),
        field(M::ScoreScale, "attention_multiplier", Number(1.0)),
        field(M::LogitDivisor, "logits_scaling", Number(1.0)),
    ],
    ..BASE
};

/// Llama whose RoPE rotates neighbours (Baidu, 2025).
pub(super) const ERNIE4_5: Family = Family {
    model_type: "ernie4_5",
    class: "Ernie4_5ForCausalLM",
    models: "ERNIE 4.5, dense",
    fields: &[
        field(M::Context, "max_position_embeddings", Size(131_072)),
        nullable(M::KvHeads, "num_key_value_heads", Required),
        nullable(M::HeadDim, "head_dim", Size(128)),
        field(M::Epsilon, "rms_norm_eps", Number(1e-5)),
        field(M::Tied, "tie_word_embeddings", Flag(true)),
        nullable(M::AllBiases, "use_bias", Flag(false)),
    ],
    theta: 500_000.0,
    pairing: Pairing::Neighbours,
    rope_rounding: RopeRounding::SumOfFloat32,
    ..BASE
};

/// Llama with separate switches for the biases of attention (ByteDance, 2025).
pub(super) const SEED_OSS: Family = Family {
    model_type: "seed_oss",
    class: "SeedOssForCausalLM",
    models: "Seed-OSS",
    fields: &[
        field(M::Context, "max_position_embeddings", Size(524_288)),
        nullable(M::KvHeads, "num_key_value_heads", Required),
        nullable(M::HeadDim, "head_dim", Size(128)),
        field(M::QkvBias, "attention_bias", Flag(true)),
        field(M::OutputBias, "attention_out_bias", Flag(false)),
        field(M::MlpBias, "mlp_bias", Flag(false)),
        field(M::Nothing, "residual_dropout", Fallback::None),
        field(M::Nothing, "pretraining_tp", Fallback::None),
    ],
    ..BASE
};

/// Llama without a gate, with relu² (Arcee, 2025).
pub(super) const ARCEE: Family = Family {
    model_type: "arcee",
    class: "ArceeForCausalLM",
    models: "AFM",
    fields: &[
        field(M::Context, "max_position_embeddings", Size(4096)),
        field(M::Epsilon, "rms_norm_eps", Number(1e-5)),
        field(M::Activation, "hidden_act", Text("relu2")),
        field(M::AttentionBias, "attention_bias", Flag(false)),
        field(M::MlpBias, "mlp_bias", Flag(false)),
    ],
    ungated: true,
    ..BASE
};

/// Llama whose RoPE rotates neighbours (Kyutai, 2025).
pub(super) const HELIUM: Family = Family {
    model_type: "helium",
    class: "HeliumForCausalLM",
    models: "Helium 1",
    fields: &[
        field(M::Context, "max_position_embeddings", Size(4096)),
        field(M::KvHeads, "num_key_value_heads", Required),
        field(M::HeadDim, "head_dim", Size(128)),
        field(M::Epsilon, "rms_norm_eps", Number(1e-8)),
        field(M::QkvBias, "attention_bias", Flag(false)),
        field(M::MlpBias, "mlp_bias", Flag(false)),
    ],
    theta: 100_000.0,
    pairing: Pairing::Neighbours,
    norm: super::ROUNDED_ONCE,
    ..BASE
};
