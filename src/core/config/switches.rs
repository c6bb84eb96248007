//! The choices in which other families differ from Llama. The defaults are Llama's.

use serde::{Deserialize, Serialize};

/// The kind of a norm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NormKind {
    /// RMSNorm: x / √(mean x² + ε).
    #[default]
    Rms,
    /// LayerNorm (Ba et al., 2016): (x − mean x) / √(variance x + ε).
    Layer,
}

/// The norms of the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Norm {
    /// The kind.
    pub kind: NormKind,
    /// Whether the result is multiplied by a learned weight.
    pub weight: bool,
    /// Whether a learned bias is added.
    pub bias: bool,
    /// Whether the checkpoint stores w for the weight 1 + w (Gemma).
    pub one_plus: bool,
    /// Whether bfloat16 rounds only the product with the weight, and not the factor before it (Gemma, OLMo 2).
    pub rounded_once: bool,
}

impl Default for Norm {
    fn default() -> Self {
        Self { kind: NormKind::Rms, weight: true, bias: false, one_plus: false, rounded_once: false }
    }
}

/// The places of the norms around attention and around the feed-forward network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// Before both: x + attention(norm x).
    #[default]
    Before,
    /// After both: x + norm(attention x) (OLMo 2, EXAONE 4).
    After,
    /// Before and after both: x + norm(attention(norm x)) (Gemma 2 and 3, GLM-4).
    Both,
    /// One norm before both, which read it side by side: x + attention(norm x) + ffn(norm x) (Command R).
    Parallel,
}

impl Placement {
    /// Whether attention has a norm before it.
    pub fn before(self) -> bool {
        self != Self::After
    }

    /// Whether the feed-forward network has a norm of its own before it.
    pub fn before_ffn(self) -> bool {
        matches!(self, Self::Before | Self::Both)
    }

    /// Whether both have a norm after them.
    pub fn after(self) -> bool {
        matches!(self, Self::After | Self::Both)
    }
}

/// The vectors that the query and key norms normalise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QkWidth {
    /// Each head by itself; all heads share the weight (C).
    #[default]
    Head,
    /// Each head by itself; each has its own weight, (H, C) or (G, C) (Command R+, StableLM 2).
    EachHead,
    /// All heads side by side, with a weight (H·C) or (G·C) (OLMo 2).
    Whole,
}

/// The form of the query and key norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QkNormForm {
    /// The normalised vectors.
    pub width: QkWidth,
    /// The kind.
    pub kind: NormKind,
    /// Whether there is a weight (nanochat has none).
    pub weight: bool,
    /// Whether they come after RoPE (Hunyuan, nanochat).
    pub after_rope: bool,
}

impl Default for QkNormForm {
    fn default() -> Self {
        Self { width: QkWidth::Head, kind: NormKind::Rms, weight: true, after_rope: false }
    }
}

/// Numbers that stages are multiplied by. With 1, there is no multiplication.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Multipliers {
    /// Of the embeddings: √D in Gemma, `embedding_multiplier` in Granite.
    pub embedding: f32,
    /// Of `attn_output` and `ffn_down` before they are added to the residual stream (Granite).
    pub residual: f32,
    /// Of the logits: `logit_scale` in Command R, 1 / `logits_scaling` in Granite.
    pub logits: f32,
}

impl Default for Multipliers {
    fn default() -> Self {
        Self { embedding: 1.0, residual: 1.0, logits: 1.0 }
    }
}

/// A factor of the queries that grows with the position: 1 + β · ln(1 + ⌊position / context⌋) (Llama 4, Ministral 3).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueryScale {
    /// β.
    pub beta: f32,
    /// The context length that the model was trained on first.
    pub original_context: usize,
}

impl QueryScale {
    /// The factor at `position`.
    pub fn at(self, position: usize) -> f32 {
        1.0 + self.beta * ((position / self.original_context.max(1)) as f32).ln_1p()
    }
}

/// The activation of the feed-forward network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// x / (1 + e^−x).
    #[default]
    Silu,
    /// x · Φ(x), with tanh in place of Φ (`gelu_pytorch_tanh`, `gelu_new`).
    GeluTanh,
    /// x · Φ(x), Φ being the normal distribution (`gelu`).
    Gelu,
    /// max(x, 0)².
    Relu2,
    /// xIELU with two learned numbers per layer (Huang and Schlag, 2024; Apertus).
    Xielu,
}

impl Activation {
    /// Its formula for a value g. α₊ and α₋ are made of the two learned numbers of xIELU.
    pub fn formula(self) -> &'static str {
        match self {
            Self::Silu => "g / (1 + e^−g)",
            Self::GeluTanh => "g/2 · (1 + tanh(√(2/π) · (g + 0.044715 · g³)))",
            Self::Gelu => "g/2 · (1 + erf(g / √2))",
            Self::Relu2 => "max(g, 0)²",
            Self::Xielu => "α₊ · g² + g/2 where g > 0, else α₋ · (e^g − 1 − g) + g/2",
        }
    }

    /// Its name, as transformers writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Silu => "silu",
            Self::GeluTanh => "gelu_pytorch_tanh",
            Self::Gelu => "gelu",
            Self::Relu2 => "relu2",
            Self::Xielu => "xielu",
        }
    }
}
