//! The weights of a Llama. The comment of each field gives its shape.

use crate::backend::{Backend, Matrix, Vector};
use llama_trace_core::error::{Error, Result};
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
    pub final_norm: Vector,
    /// output (V, D); `None` if it is tied to the embedding table.
    head: Option<Matrix>,
}

/// The weights of one layer, under Meta's names.
pub struct LayerWeights {
    /// attention_norm (D)
    pub attn_norm: Vector,
    /// (H·C, D)
    pub wq: Linear,
    /// (G·C, D)
    pub wk: Linear,
    /// (G·C, D)
    pub wv: Linear,
    /// (C), the weight of the norm over each query head; only Qwen3 has it.
    pub q_norm: Option<Vector>,
    /// (C), the weight of the norm over each key head.
    pub k_norm: Option<Vector>,
    /// (D, H·C)
    pub wo: Linear,
    /// ffn_norm (D)
    pub ffn_norm: Vector,
    /// gate (F, D)
    pub w1: Linear,
    /// down (D, F)
    pub w2: Linear,
    /// up (F, D)
    pub w3: Linear,
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
            let head_norm =
                |w| config.qk_norm.then(|| vector(Weight::Layer(layer, w), config.head_dim)).transpose();
            let (qkv_bias, output_bias, mlp_bias) = (config.qkv_bias, config.output_bias, config.mlp_bias);
            Ok(LayerWeights {
                attn_norm: vector(Weight::Layer(layer, L::AttnNorm), d)?,
                wq: linear(L::Wq, L::Bq, qkv_bias, q, d)?,
                wk: linear(L::Wk, L::Bk, qkv_bias, kv, d)?,
                wv: linear(L::Wv, L::Bv, qkv_bias, kv, d)?,
                q_norm: head_norm(L::QNorm)?,
                k_norm: head_norm(L::KNorm)?,
                wo: linear(L::Wo, L::Bo, output_bias, d, q)?,
                ffn_norm: vector(Weight::Layer(layer, L::FfnNorm), d)?,
                w1: linear(L::W1, L::B1, mlp_bias, f, d)?,
                w2: linear(L::W2, L::B2, mlp_bias, d, f)?,
                w3: linear(L::W3, L::B3, mlp_bias, f, d)?,
            })
        };
        Ok(Self {
            embedding: matrix(Weight::Embedding, v, d)?,
            layers: (0..config.layers).map(layer).collect::<Result<_>>()?,
            final_norm: vector(Weight::FinalNorm, d)?,
            head: (!config.tied).then(|| matrix(Weight::Head, v, d)).transpose()?,
        })
    }

    /// The output head (V, D): its own matrix, or the embedding table if the two are tied.
    pub fn head(&self) -> &Matrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}

/// Adds the weight's name to an error, unless the error is a request to stop.
fn unmade(error: Error, weight: Weight) -> Error {
    match error {
        Error::Interrupted(_) => error,
        error if error.says_next() => error.at(weight.describe()),
        error => error.at(weight.describe()).next("end other programs, or use a smaller model"),
    }
}
