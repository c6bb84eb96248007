//! Mistral: Llama with a window.

use super::Fallback::{self, Number, Required, Size};
use super::{BASE, Family, Means as M, Windows, field, nullable};

/// Llama in which every layer has a window (Jiang et al., 2023). Later models have none.
pub(super) const MISTRAL: Family = Family {
    model_type: "mistral",
    class: "MistralForCausalLM",
    models: "Mistral",
    fields: &[
        field(M::Context, "max_position_embeddings", Size(131_072)),
        field(M::KvHeads, "num_key_value_heads", Required),
        nullable(M::Window, "sliding_window", Size(4096)),
        nullable(M::LayerTypes, "layer_types", Fallback::None),
        field(M::Nothing, "attention_dropout", Fallback::None),
    ],
    windows: Windows::All,
    ..BASE
};

/// Mistral in which only listed layers have the window (Ministral 8B, 2024).
pub(super) const MINISTRAL: Family = Family {
    model_type: "ministral",
    class: "MinistralForCausalLM",
    models: "Ministral",
    windows: Windows::AllOrListed,
    ..MISTRAL
};

/// Mistral whose queries have a factor that depends on the position (Ministral 3, 2025).
pub(super) const MINISTRAL3: Family = Family {
    model_type: "ministral3",
    class: "Ministral3ForCausalLM",
    models: "Ministral 3",
    fields: &[
        field(M::Context, "max_position_embeddings", Size(262_144)),
        field(M::KvHeads, "num_key_value_heads", Required),
        field(M::HeadDim, "head_dim", Size(128)),
        field(M::Epsilon, "rms_norm_eps", Number(1e-5)),
        nullable(M::Window, "sliding_window", Fallback::None),
        nullable(M::LayerTypes, "layer_types", Fallback::None),
        field(M::Nothing, "attention_dropout", Fallback::None),
    ],
    rope: r#"{"type": "yarn", "rope_theta": 1000000.0, "factor": 16.0, "original_max_position_embeddings": 16384,
        "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}"#,
    query_scale: true,
    ..MISTRAL
};
