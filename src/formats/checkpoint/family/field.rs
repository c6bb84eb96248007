//! The fields of a family's configuration: their names, meanings and defaults.

use super::super::neutral::{Neutral, Null};

/// A field of config.json.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Field {
    /// The meaning.
    pub means: Means,
    /// The name.
    pub name: &'static str,
    /// The value if the field is absent.
    pub default: Fallback,
    /// The meaning of null. [`Null::Absent`] stands for "no value" and not for the default.
    pub null: Null,
}

/// The meaning of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Means {
    /// V.
    Vocab,
    /// D.
    Dim,
    /// F.
    FfnDim,
    /// The number of layers.
    Layers,
    /// H.
    Heads,
    /// G; H without a value.
    KvHeads,
    /// C; D/H without a value.
    HeadDim,
    /// The context length.
    Context,
    /// ε of the norms.
    Epsilon,
    /// The activation.
    Activation,
    /// The activation, "gelu" being its approximation with tanh.
    TanhActivation,
    /// The activation, which may also be xIELU.
    XieluActivation,
    /// Whether the head is the embedding table.
    Tied,
    /// Whether queries, keys and values have biases.
    QkvBias,
    /// Whether all projections of attention have biases.
    AttentionBias,
    /// Whether the output projection of attention has a bias.
    OutputBias,
    /// Whether the feed-forward network has biases.
    MlpBias,
    /// Whether all projections have biases.
    AllBiases,
    /// Whether queries and keys have norms.
    QkNorm,
    /// Whether attention and the feed-forward network are side by side.
    Parallel,
    /// W; no window without a value.
    Window,
    /// Whether there is a window at all.
    UseWindow,
    /// The first layer with a window.
    FirstWindow,
    /// n, if each n-th layer has no window.
    WindowPattern,
    /// The kind of each layer.
    LayerTypes,
    /// For each layer, whether it has RoPE.
    NoRopeLayers,
    /// n, if each n-th layer has no RoPE.
    NoRopeInterval,
    /// θ of the layers with a window.
    LocalTheta,
    /// The part of a head that RoPE rotates.
    Partial,
    /// The number whose square root divides the scores.
    ScoreRoot,
    /// The factor of the scores.
    ScoreScale,
    /// The soft cap of the scores; none without a value.
    ScoreCap,
    /// The soft cap of the logits; none without a value.
    LogitCap,
    /// The factor of the embeddings.
    EmbeddingScale,
    /// The factor of the results of attention and of the feed-forward network.
    ResidualScale,
    /// The factor of the logits.
    LogitScale,
    /// The divisor of the logits.
    LogitDivisor,
    /// The context length of the first training, for RoPE.
    OriginalContext,
    /// One of RoPE's fields, which are read in one place for all families.
    Rope,
    /// Nothing: no number depends on the field.
    Nothing,
    /// An unsupported change, except with these values.
    Refused(&'static [Neutral]),
}

/// The value of an absent field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fallback {
    /// None: the field is required.
    Required,
    /// No value.
    None,
    /// A whole number.
    Size(usize),
    /// A number.
    Number(f64),
    /// A flag.
    Flag(bool),
    /// A text.
    Text(&'static str),
}

/// A field in which null is an error.
pub(in super::super) const fn field(means: Means, name: &'static str, default: Fallback) -> Field {
    Field { means, name, default, null: Null::Fails }
}

/// A field in which null stands for "no value".
pub(in super::super) const fn nullable(means: Means, name: &'static str, default: Fallback) -> Field {
    Field { means, name, default, null: Null::Absent }
}

/// A field on which no number depends.
pub(in super::super) const fn idle(name: &'static str) -> Field {
    nullable(Means::Nothing, name, Fallback::None)
}

/// A field that is refused, except with the values `neutral`.
pub(in super::super) const fn refused(name: &'static str, neutral: &'static [Neutral]) -> Field {
    nullable(Means::Refused(neutral), name, Fallback::None)
}

use Fallback::{Flag, Number, Required, Size, Text};
use Means as M;

/// The fields of most families. The sizes of a model are required: a file without them does not describe a model.
pub(in super::super) const COMMON: &[Field] = &[
    field(M::Vocab, "vocab_size", Required),
    field(M::Dim, "hidden_size", Required),
    field(M::FfnDim, "intermediate_size", Required),
    field(M::Layers, "num_hidden_layers", Required),
    field(M::Heads, "num_attention_heads", Required),
    nullable(M::KvHeads, "num_key_value_heads", Fallback::None),
    nullable(M::HeadDim, "head_dim", Fallback::None),
    field(M::Context, "max_position_embeddings", Size(2048)),
    field(M::Epsilon, "rms_norm_eps", Number(1e-6)),
    field(M::Activation, "hidden_act", Text("silu")),
    field(M::Tied, "tie_word_embeddings", Flag(false)),
    nullable(M::Rope, "rope_parameters", Fallback::None),
    nullable(M::Rope, "rope_scaling", Fallback::None),
    // Null fails if the value is needed, which depends on other fields.
    nullable(M::Rope, "rope_theta", Fallback::None),
    nullable(M::Rope, "original_max_position_embeddings", Fallback::None),
];
