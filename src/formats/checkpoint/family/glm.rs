//! GLM-4: RoPE rotates neighbours in half of a head; gate and up projection are one tensor.

use super::Fallback::{self, Flag, Number, Required, Size};
use super::{BASE, Family, LayerWeight as L, Means as M, Pairing, Placement, Stored, field};

/// GLM-4 9B of 2024 (GLM Team, "ChatGLM: A Family of Large Language Models").
pub(super) const GLM: Family = Family {
    model_type: "glm",
    class: "GlmForCausalLM",
    models: "GLM-4 of 2024",
    fields: &[
        field(M::Context, "max_position_embeddings", Size(131_072)),
        field(M::KvHeads, "num_key_value_heads", Required),
        field(M::HeadDim, "head_dim", Size(128)),
        field(M::Epsilon, "rms_norm_eps", Number(1.5625e-7)),
        field(M::QkvBias, "attention_bias", Flag(true)),
        field(M::Partial, "partial_rotary_factor", Fallback::None),
    ],
    partial: Some(0.5),
    pairing: Pairing::Neighbours,
    stored: &[Stored::Fused("mlp.gate_up_proj.weight", &[L::W1, L::W3])],
    ..BASE
};

/// GLM-4 of 2025 (0414), with norms before and after.
pub(super) const GLM4: Family = Family {
    model_type: "glm4",
    class: "Glm4ForCausalLM",
    models: "GLM-4 of 2025",
    placement: Placement::Both,
    names: &[
        (L::PostAttnNorm, "post_self_attn_layernorm.weight"),
        (L::PostFfnNorm, "post_mlp_layernorm.weight"),
    ],
    ..GLM
};
