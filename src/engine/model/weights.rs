//! The weights of a Llama. The comment of each field gives its shape.

use super::norms::{Norm, unmade};
use crate::backend::{Backend, Matrix, Vector};
use llama_trace_core::config::Activation;
use llama_trace_core::error::Result;
use llama_trace_formats::checkpoint::names::LayerWeight as L;
use llama_trace_formats::checkpoint::{Checkpoint, Weight};

/// A linear projection: outputs = inputs · matrixᵀ (+ bias).
pub struct Linear {
    /// (outputs, inputs)
    pub matrix: Matrix,
    /// (outputs); most Llamas have none.
    pub bias: Option<Vector>,
}

/// All weights.
pub struct Weights {
    /// tok_embeddings (V, D)
    pub embedding: Matrix,
    /// One entry for each layer.
    pub layers: Vec<LayerWeights>,
    /// norm (D)
    pub final_norm: Norm,
    /// output (V, D); `None` if it is tied to the embedding table.
    head: Option<Matrix>,
}

/// The weights of one layer, under Meta's names.
pub struct LayerWeights {
    /// attention_norm (D); OLMo 2 and EXAONE 4 have none.
    pub attn_norm: Option<Norm>,
    /// (H·C, D)
    pub wq: Linear,
    /// (G·C, D)
    pub wk: Linear,
    /// (G·C, D)
    pub wv: Linear,
    /// The norm of the queries; Qwen3, Gemma 3 and others have it.
    pub q_norm: Option<Norm>,
    /// The norm of the keys.
    pub k_norm: Option<Norm>,
    /// (D, H·C)
    pub wo: Linear,
    /// The norm after attention (D); Gemma 2, OLMo 2 and others have it.
    pub post_attn_norm: Option<Norm>,
    /// ffn_norm (D); OLMo 2 and Command R have none.
    pub ffn_norm: Option<Norm>,
    /// gate (F, D); Arcee and Apertus have none.
    pub w1: Option<Linear>,
    /// down (D, F)
    pub w2: Linear,
    /// up (F, D)
    pub w3: Linear,
    /// xIELU's numbers (2); only Apertus has them.
    pub xielu: Option<Vector>,
    /// The norm after the feed-forward network (D).
    pub post_ffn_norm: Option<Norm>,
}

impl Weights {
    /// Takes every weight from `checkpoint`.
    pub(super) fn load(checkpoint: &Checkpoint, backend: &dyn Backend) -> Result<Self> {
        let config = &checkpoint.config;
        let (d, f, v) = (config.dim, config.ffn_dim, config.vocab);
        let (q, kv) = (config.q_dim(), config.kv_dim());
        let matrix = |weight: Weight, outputs: usize, inputs: usize| {
            let tensor = checkpoint.tensor(weight, &[outputs, inputs])?;
            backend.matrix(tensor).map_err(|error| unmade(error, weight))
        };
        let vector = |weight: Weight, length: usize| {
            let tensor = checkpoint.tensor(weight, &[length])?;
            backend.vector(tensor).map_err(|error| unmade(error, weight))
        };
        let layer = |layer| {
            let linear = |w, b, has_bias: bool, outputs, inputs| {
                Ok(Linear {
                    matrix: matrix(Weight::Layer(layer, w), outputs, inputs)?,
                    bias: has_bias.then(|| vector(Weight::Layer(layer, b), outputs)).transpose()?,
                })
            };
            let norm = |has: bool, weight, bias| {
                let (weight, bias) = (Weight::Layer(layer, weight), Weight::Layer(layer, bias));
                has.then(|| Norm::of_stream(checkpoint, backend, weight, bias)).transpose()
            };
            let head_norm = |w, heads| {
                let weight = Weight::Layer(layer, w);
                config.qk_norm.then(|| Norm::of_heads(checkpoint, backend, weight, heads)).transpose()
            };
            let placement = config.placement;
            let (qkv_bias, output_bias, mlp_bias) = (config.qkv_bias, config.output_bias, config.mlp_bias);
            Ok(LayerWeights {
                attn_norm: norm(placement.before(), L::AttnNorm, L::AttnNormBias)?,
                wq: linear(L::Wq, L::Bq, qkv_bias, q, d)?,
                wk: linear(L::Wk, L::Bk, qkv_bias, kv, d)?,
                wv: linear(L::Wv, L::Bv, qkv_bias, kv, d)?,
                q_norm: head_norm(L::QNorm, config.heads)?,
                k_norm: head_norm(L::KNorm, config.kv_heads)?,
                wo: linear(L::Wo, L::Bo, output_bias, d, q)?,
                post_attn_norm: norm(placement.after(), L::PostAttnNorm, L::AttnNormBias)?,
                ffn_norm: norm(placement.before_ffn(), L::FfnNorm, L::FfnNormBias)?,
                w1: (!config.ungated).then(|| linear(L::W1, L::B1, mlp_bias, f, d)).transpose()?,
                w2: linear(L::W2, L::B2, mlp_bias, d, f)?,
                w3: linear(L::W3, L::B3, mlp_bias, f, d)?,
                xielu: (config.activation == Activation::Xielu)
                    .then(|| vector(Weight::Layer(layer, L::Xielu), 2))
                    .transpose()?,
                post_ffn_norm: norm(placement.after(), L::PostFfnNorm, L::FfnNormBias)?,
            })
        };
        Ok(Self {
            embedding: matrix(Weight::Embedding, v, d)?,
            layers: (0..config.layers).map(layer).collect::<Result<_>>()?,
            final_norm: Norm::of_stream(checkpoint, backend, Weight::FinalNorm, Weight::FinalNormBias)?,
            head: (!config.tied).then(|| matrix(Weight::Head, v, d)).transpose()?,
        })
    }

    /// The output head (V, D): its own matrix, or the embedding table if the two are tied.
    pub fn head(&self) -> &Matrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}
