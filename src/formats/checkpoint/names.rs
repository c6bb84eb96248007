//! The names of the same weight in different checkpoint formats.

use crate::files::printable;
use llama_trace_core::config::{Activation, ModelConfig, QkWidth};

/// A weight of a Llama, by its role. Matrices are (outputs, inputs), as in `torch.nn.Linear`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Weight {
    /// The embedding table (V, D).
    Embedding,
    /// A weight of one layer.
    Layer(usize, LayerWeight),
    /// The weight of the last norm (D).
    FinalNorm,
    /// The bias of the last norm (D); only a LayerNorm has one.
    FinalNormBias,
    /// The output head (V, D); absent if it is tied to the embedding table.
    Head,
}

/// The weights of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerWeight {
    /// Weight of the norm before attention (D).
    AttnNorm,
    /// Bias of the norm before attention (D); only a LayerNorm has one.
    AttnNormBias,
    /// Weight of the norm after attention (D); in families with such a norm.
    PostAttnNorm,
    /// Query projection (H·C, D).
    Wq,
    /// Key projection (G·C, D).
    Wk,
    /// Value projection (G·C, D).
    Wv,
    /// Attention's output projection (D, H·C).
    Wo,
    /// Weight of the norm of the queries: (C) for all heads, or (H·C).
    QNorm,
    /// Weight of the norm of the keys: (C) for all heads, or (G·C).
    KNorm,
    /// Bias of the query projection (H·C).
    Bq,
    /// Bias of the key projection (G·C).
    Bk,
    /// Bias of the value projection (G·C).
    Bv,
    /// Bias of the output projection (D).
    Bo,
    /// Weight of the norm before the feed-forward network (D).
    FfnNorm,
    /// Bias of the norm before the feed-forward network (D).
    FfnNormBias,
    /// Weight of the norm after the feed-forward network (D).
    PostFfnNorm,
    /// Gate projection, w1 in Meta's code (F, D).
    W1,
    /// Down projection, w2 (D, F).
    W2,
    /// Up projection, w3 (F, D).
    W3,
    /// Bias of the gate projection (F).
    B1,
    /// Bias of the down projection (D).
    B2,
    /// Bias of the up projection (F).
    B3,
    /// The two learned numbers of xIELU (2): that for positive values, then that for negative ones, as they are stored.
    Xielu,
}

impl LayerWeight {
    /// All of these weights.
    pub(crate) const ALL: [Self; 23] = [
        Self::AttnNorm,
        Self::AttnNormBias,
        Self::Wq,
        Self::Wk,
        Self::Wv,
        Self::Wo,
        Self::QNorm,
        Self::KNorm,
        Self::Bq,
        Self::Bk,
        Self::Bv,
        Self::Bo,
        Self::PostAttnNorm,
        Self::FfnNorm,
        Self::FfnNormBias,
        Self::W1,
        Self::W2,
        Self::W3,
        Self::B1,
        Self::B2,
        Self::B3,
        Self::PostFfnNorm,
        Self::Xielu,
    ];
}

/// The names of weights of a layer, without the layer, that differ from those of Llama.
pub type Renames = &'static [(LayerWeight, &'static str)];

/// A naming convention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// `model.layers.0.self_attn.q_proj.weight`: transformers, with a family's own names.
    HuggingFace(Renames),
    /// `layers.0.attention.wq.weight`: Meta's release. Also used for the arrays of llama2.c.
    Meta,
    /// `blk.0.attn_q.weight`: GGUF, with an architecture's own names.
    Gguf(Renames),
}

impl Naming {
    /// The name of `weight` in this convention.
    pub fn name(self, weight: Weight) -> String {
        use LayerWeight as L;
        match (self, weight) {
            (Self::HuggingFace(_), Weight::Embedding) => "model.embed_tokens.weight".into(),
            (Self::HuggingFace(_), Weight::FinalNorm) => "model.norm.weight".into(),
            (Self::HuggingFace(_), Weight::FinalNormBias) => "model.norm.bias".into(),
            (Self::HuggingFace(_), Weight::Head) => "lm_head.weight".into(),
            (Self::HuggingFace(renames), Weight::Layer(layer, weight)) => {
                let rest = match weight {
                    _ if let Some(own) = renamed(renames, weight) => own,
                    L::AttnNorm => "input_layernorm.weight",
                    L::Wq => "self_attn.q_proj.weight",
                    L::Wk => "self_attn.k_proj.weight",
                    L::Wv => "self_attn.v_proj.weight",
                    L::Wo => "self_attn.o_proj.weight",
                    L::QNorm => "self_attn.q_norm.weight",
                    L::KNorm => "self_attn.k_norm.weight",
                    L::Bq => "self_attn.q_proj.bias",
                    L::Bk => "self_attn.k_proj.bias",
                    L::Bv => "self_attn.v_proj.bias",
                    L::Bo => "self_attn.o_proj.bias",
                    L::FfnNorm => "post_attention_layernorm.weight",
                    L::W1 => "mlp.gate_proj.weight",
                    L::W2 => "mlp.down_proj.weight",
                    L::W3 => "mlp.up_proj.weight",
                    L::B1 => "mlp.gate_proj.bias",
                    L::B2 => "mlp.down_proj.bias",
                    L::B3 => "mlp.up_proj.bias",
                    L::AttnNormBias => "input_layernorm.bias",
                    L::PostAttnNorm => "post_self_attn_layernorm.weight",
                    L::FfnNormBias => "post_attention_layernorm.bias",
                    L::PostFfnNorm => "post_mlp_layernorm.weight",
                    L::Xielu => "mlp.act_fn.alphas",
                };
                self.in_layer(layer, rest)
            }
            (Self::Meta, Weight::Embedding) => "tok_embeddings.weight".into(),
            (Self::Meta, Weight::FinalNorm) => "norm.weight".into(),
            (Self::Meta, Weight::FinalNormBias) => "norm.bias".into(),
            (Self::Meta, Weight::Head) => "output.weight".into(),
            (Self::Meta, Weight::Layer(layer, weight)) => {
                let rest = match weight {
                    L::AttnNorm => "attention_norm.weight",
                    L::Wq => "attention.wq.weight",
                    L::Wk => "attention.wk.weight",
                    L::Wv => "attention.wv.weight",
                    L::Wo => "attention.wo.weight",
                    // Meta has no such models; these names follow its pattern.
                    L::AttnNormBias => "attention_norm.bias",
                    L::PostAttnNorm => "attention_post_norm.weight",
                    L::FfnNormBias => "ffn_norm.bias",
                    L::PostFfnNorm => "ffn_post_norm.weight",
                    L::Xielu => "feed_forward.xielu",
                    L::QNorm => "attention.q_norm.weight",
                    L::KNorm => "attention.k_norm.weight",
                    L::Bq => "attention.wq.bias",
                    L::Bk => "attention.wk.bias",
                    L::Bv => "attention.wv.bias",
                    L::Bo => "attention.wo.bias",
                    L::FfnNorm => "ffn_norm.weight",
                    L::W1 => "feed_forward.w1.weight",
                    L::W2 => "feed_forward.w2.weight",
                    L::W3 => "feed_forward.w3.weight",
                    L::B1 => "feed_forward.w1.bias",
                    L::B2 => "feed_forward.w2.bias",
                    L::B3 => "feed_forward.w3.bias",
                };
                self.in_layer(layer, rest)
            }
            (Self::Gguf(_), Weight::Embedding) => "token_embd.weight".into(),
            (Self::Gguf(_), Weight::FinalNorm) => "output_norm.weight".into(),
            (Self::Gguf(_), Weight::FinalNormBias) => "output_norm.bias".into(),
            (Self::Gguf(_), Weight::Head) => "output.weight".into(),
            (Self::Gguf(renames), Weight::Layer(layer, weight)) => {
                let rest = match weight {
                    _ if let Some(own) = renamed(renames, weight) => own,
                    L::AttnNorm => "attn_norm.weight",
                    L::Wq => "attn_q.weight",
                    L::Wk => "attn_k.weight",
                    L::Wv => "attn_v.weight",
                    L::Wo => "attn_output.weight",
                    L::Bq => "attn_q.bias",
                    L::Bk => "attn_k.bias",
                    L::Bv => "attn_v.bias",
                    L::QNorm => "attn_q_norm.weight",
                    L::KNorm => "attn_k_norm.weight",
                    L::Bo => "attn_output.bias",
                    L::FfnNorm => "ffn_norm.weight",
                    L::W1 => "ffn_gate.weight",
                    L::W2 => "ffn_down.weight",
                    L::W3 => "ffn_up.weight",
                    L::B1 => "ffn_gate.bias",
                    L::B2 => "ffn_down.bias",
                    L::B3 => "ffn_up.bias",
                    L::AttnNormBias => "attn_norm.bias",
                    L::PostAttnNorm => "post_attention_norm.weight",
                    L::FfnNormBias => "ffn_norm.bias",
                    L::PostFfnNorm => "post_ffw_norm.weight",
                    L::Xielu => "ffn_xielu",
                };
                self.in_layer(layer, rest)
            }
        }
    }
}

/// The name of `weight` in `renames`.
fn renamed(renames: Renames, weight: LayerWeight) -> Option<&'static str> {
    renames.iter().find(|(renamed, _)| *renamed == weight).map(|(_, name)| *name)
}

impl Naming {
    /// The name of a tensor of a layer, whose name in the layer is `rest`.
    pub(super) fn in_layer(self, layer: usize, rest: &str) -> String {
        match self {
            Self::HuggingFace(_) => format!("model.layers.{layer}.{rest}"),
            Self::Meta => format!("layers.{layer}.{rest}"),
            Self::Gguf(_) => format!("blk.{layer}.{rest}"),
        }
    }

    /// The weight called `name` in this convention.
    pub(crate) fn weight(self, name: &str) -> Option<Weight> {
        let layer = name.split('.').find_map(|part| part.parse().ok());
        let renames = match self {
            Self::HuggingFace(renames) | Self::Gguf(renames) => renames,
            Self::Meta => &[],
        };
        // A family's own name goes before the name of another weight in Llama.
        let own = layer.and_then(|layer| {
            let (weight, _) = renames.iter().find(|(_, rest)| self.in_layer(layer, rest) == name)?;
            Some(Weight::Layer(layer, *weight))
        });
        let in_layer = layer.map(|layer| LayerWeight::ALL.map(|weight| Weight::Layer(layer, weight)));
        let mut all = [Weight::Embedding, Weight::FinalNorm, Weight::FinalNormBias, Weight::Head]
            .into_iter()
            .chain(in_layer.into_iter().flatten());
        own.or_else(|| all.find(|&weight| self.name(weight) == name))
    }
}

impl Weight {
    /// Returns whether a model of this configuration reads the weight. A tied head counts as the embedding table.
    pub(super) fn is_in(self, config: &ModelConfig) -> bool {
        use LayerWeight as L;
        match self {
            Self::Embedding | Self::Head => true,
            Self::FinalNorm => config.norm.weight,
            Self::FinalNormBias => config.norm.bias,
            Self::Layer(layer, _) if layer >= config.layers => false,
            Self::Layer(_, L::AttnNorm) => config.norm.weight && config.placement.before(),
            Self::Layer(_, L::FfnNorm) => config.norm.weight && config.placement.before_ffn(),
            Self::Layer(_, L::AttnNormBias) => config.norm.bias && config.placement.before(),
            Self::Layer(_, L::FfnNormBias) => config.norm.bias && config.placement.before_ffn(),
            Self::Layer(_, L::PostAttnNorm | L::PostFfnNorm) => {
                config.norm.weight && config.placement.after()
            }
            Self::Layer(_, L::Xielu) => config.activation == Activation::Xielu,
            Self::Layer(_, L::W1) => !config.ungated,
            Self::Layer(_, L::B1) => config.mlp_bias && !config.ungated,
            Self::Layer(_, L::Bq | L::Bk | L::Bv) => config.qkv_bias,
            Self::Layer(_, L::Bo) => config.output_bias,
            Self::Layer(_, L::B2 | L::B3) => config.mlp_bias,
            Self::Layer(_, L::QNorm | L::KNorm) => config.qk_norm && config.qk_norm_form.weight,
            Self::Layer(..) => true,
        }
    }

    /// The shape of the weight in a model of this configuration, outermost first.
    pub(crate) fn shape(self, config: &ModelConfig) -> Vec<usize> {
        use LayerWeight as L;
        let (d, f, v) = (config.dim, config.ffn_dim, config.vocab);
        let (q, kv) = (config.q_dim(), config.kv_dim());
        match self {
            Self::Embedding | Self::Head => vec![v, d],
            Self::FinalNorm | Self::FinalNormBias => vec![d],
            Self::Layer(_, weight) => match weight {
                L::AttnNorm | L::AttnNormBias | L::PostAttnNorm | L::Bo => vec![d],
                L::FfnNorm | L::FfnNormBias | L::PostFfnNorm | L::B2 => vec![d],
                L::Wq => vec![q, d],
                L::Wk | L::Wv => vec![kv, d],
                L::Wo => vec![d, q],
                L::QNorm | L::KNorm if config.qk_norm_form.width == QkWidth::Head => vec![config.head_dim],
                L::QNorm => vec![q],
                L::KNorm => vec![kv],
                L::Xielu => vec![2],
                L::Bq => vec![q],
                L::Bk | L::Bv => vec![kv],
                L::W1 | L::W3 => vec![f, d],
                L::W2 => vec![d, f],
                L::B1 | L::B3 => vec![f],
            },
        }
    }

    /// A description of the weight, for messages.
    pub fn describe(self) -> String {
        match self {
            Self::Embedding => "the embedding table (vocabulary × dim)".into(),
            Self::FinalNorm => "the last norm's weight (dim)".into(),
            Self::FinalNormBias => "the last norm's bias (dim)".into(),
            Self::Head => "the output head (vocabulary × dim)".into(),
            Self::Layer(layer, weight) => {
                let what = match weight {
                    LayerWeight::AttnNorm => "norm weight before attention (dim)",
                    LayerWeight::Wq => "query projection (heads·head_dim × dim)",
                    LayerWeight::Wk => "key projection (kv_heads·head_dim × dim)",
                    LayerWeight::Wv => "value projection (kv_heads·head_dim × dim)",
                    LayerWeight::Wo => "attention output projection (dim × heads·head_dim)",
                    LayerWeight::QNorm => "query norm weight",
                    LayerWeight::KNorm => "key norm weight",
                    LayerWeight::Bq => "query bias (heads·head_dim)",
                    LayerWeight::Bk => "key bias (kv_heads·head_dim)",
                    LayerWeight::Bv => "value bias (kv_heads·head_dim)",
                    LayerWeight::Bo => "attention output bias (dim)",
                    LayerWeight::FfnNorm => "norm weight before the feed-forward network (dim)",
                    LayerWeight::AttnNormBias => "norm bias before attention (dim)",
                    LayerWeight::PostAttnNorm => "norm weight after attention (dim)",
                    LayerWeight::FfnNormBias => "norm bias before the feed-forward network (dim)",
                    LayerWeight::PostFfnNorm => "norm weight after the feed-forward network (dim)",
                    LayerWeight::Xielu => "pair of xIELU's numbers (2)",
                    LayerWeight::W1 => "gate projection (ffn_dim × dim)",
                    LayerWeight::W2 => "down projection (dim × ffn_dim)",
                    LayerWeight::W3 => "up projection (ffn_dim × dim)",
                    LayerWeight::B1 => "gate bias (ffn_dim)",
                    LayerWeight::B2 => "down bias (dim)",
                    LayerWeight::B3 => "up bias (ffn_dim)",
                };
                format!("layer {layer}'s {what}")
            }
        }
    }
}

/// The names most similar to `wanted`, for a message about a missing tensor. The names come from a file, so control
/// characters are escaped, and long names are cut.
pub(crate) fn nearest<'a>(wanted: &str, names: impl Iterator<Item = &'a String>) -> String {
    let mut scored: Vec<_> = names.map(|name| (strsim::normalized_levenshtein(wanted, name), name)).collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1)));
    let near: Vec<_> = scored.iter().take(3).map(|(_, name)| format!("`{}`", printable(name))).collect();
    if near.is_empty() { "no tensors at all".into() } else { format!("nearest names: {}", near.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_back_to_its_weight() {
        for naming in [Naming::Meta, Naming::HuggingFace(&[]), Naming::Gguf(&[])] {
            let in_layer = LayerWeight::ALL.map(|weight| Weight::Layer(17, weight));
            for weight in in_layer.into_iter().chain([Weight::Embedding, Weight::FinalNorm, Weight::Head]) {
                assert_eq!(naming.weight(&naming.name(weight)), Some(weight));
            }
            for name in ["", "rope.freqs", "layers.0.attention.mask", "layers.01.attention.wq.weight"] {
                assert_eq!(naming.weight(name), None);
            }
        }
    }

    #[test]
    fn a_familys_name_goes_before_llamas() {
        let naming = Naming::HuggingFace(&[(LayerWeight::PostAttnNorm, "post_attention_layernorm.weight")]);
        let name = "model.layers.3.post_attention_layernorm.weight";
        let weight = Weight::Layer(3, LayerWeight::PostAttnNorm);
        assert_eq!((naming.weight(name), naming.name(weight).as_str()), (Some(weight), name));
    }

    #[test]
    fn the_nearest_names_come_first() {
        let names = ["lm_head.weight", "model.norm.bias", "model.norm.weights"].map(String::from);
        let text = nearest("model.norm.weight", names.iter());
        assert_eq!(text, "nearest names: `model.norm.weights`, `model.norm.bias`, `lm_head.weight`");
        assert_eq!(nearest("x", [].iter()), "no tensors at all");
    }
}
