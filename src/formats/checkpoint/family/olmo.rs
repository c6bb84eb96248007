//! OLMo 2 and 3: norms only after attention and the feed-forward network, and norms of whole queries and keys.

use super::Fallback::{self, Flag, Number, Size};
use super::{
    BASE, Family, LayerWeight as L, Means as M, Placement, QK_NORM, QkNormForm, QkWidth, ROUNDED_ONCE,
    RopeRounding, Windows, field, nullable,
};

/// OLMo et al., 2024, "2 OLMo 2 Furious".
pub(super) const OLMO2: Family = Family {
    model_type: "olmo2",
    class: "Olmo2ForCausalLM",
    models: "OLMo 2",
    fields: &[
        field(M::Epsilon, "rms_norm_eps", Number(1e-5)),
        field(M::AttentionBias, "attention_bias", Flag(false)),
    ],
    rope_rounding: RopeRounding::SumOfFloat32,
    norm: ROUNDED_ONCE,
    placement: Placement::After,
    qk_norm: Some(QkNormForm { width: QkWidth::Whole, ..QK_NORM }),
    names: &[
        (L::PostAttnNorm, "post_attention_layernorm.weight"),
        (L::PostFfnNorm, "post_feedforward_layernorm.weight"),
    ],
    ..BASE
};

/// OLMo 2 with a window in three of four layers. Only the other layers scale RoPE (OLMo Team, 2025).
pub(super) const OLMO3: Family = Family {
    model_type: "olmo3",
    class: "Olmo3ForCausalLM",
    models: "OLMo 3",
    fields: &[
        field(M::Epsilon, "rms_norm_eps", Number(1e-5)),
        field(M::AttentionBias, "attention_bias", Flag(false)),
        nullable(M::Window, "sliding_window", Size(4096)),
        nullable(M::LayerTypes, "layer_types", Fallback::None),
    ],
    windows: Windows::Except(4),
    theta: 500_000.0,
    local_theta: Some(500_000.0),
    ..OLMO2
};
