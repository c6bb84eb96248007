//! The operations that compute stages.

/// The operation that computes a stage from its inputs and weights. `explain` has a rule for each operation, `replay`
/// runs the operations without weights, and `diff` uses the operation to find the stages that a mistake affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// The pass's input: nothing is computed.
    Input,
    /// The row of a table at each id.
    Lookup,
    /// Cosines or sines of position · frequency.
    RopeTable,
    /// 0 for a visible key, −∞ for a hidden one.
    Mask,
    /// x / √(mean x² + ε) · weight, along the last axis.
    RmsNorm,
    /// Groups of values as int8, or the scale of each group.
    Quantize,
    /// x · wᵀ + bias.
    Linear,
    /// Pairs of a head's components rotated by the position's angle.
    Rope,
    /// Rows of this pass appended to those of earlier passes.
    Cache,
    /// Key/value heads repeated for the query heads that share them.
    RepeatKv,
    /// Dot products of queries and keys.
    QueryKey,
    /// x / √C.
    Scale,
    /// Scores + mask.
    AddMask,
    /// Attention weights: softmax over the visible keys.
    Softmax,
    /// Sum of values, each times its attention weight.
    Mix,
    /// a + b.
    Add,
    /// cap · tanh(x / cap).
    Cap,
    /// x · sigmoid(x).
    Silu,
    /// Another activation.
    Activation,
    /// a · b.
    Mul,
    /// Logits of repeated tokens, divided by the penalty where positive, else multiplied.
    Penalize,
    /// Softmax of logits / temperature.
    Probs,
    /// Probabilities that are at least a share of the largest one.
    MinP,
    /// Probabilities that typical-p keeps.
    TypicalP,
    /// Probabilities that top-k and top-p keep.
    TopKTopP,
    /// A token drawn from probabilities.
    Sample,
}

impl Op {
    /// The operation in one word, for the log and the screen. All products share one word, and so do sums and
    /// softmaxes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Lookup => "lookup",
            Self::RopeTable => "rope_table",
            Self::Mask => "mask",
            Self::RmsNorm => "rms_norm",
            Self::Quantize => "quantize",
            Self::Linear | Self::QueryKey => "matmul",
            Self::Rope => "rope",
            Self::Cache => "cache",
            Self::RepeatKv => "repeat_kv",
            Self::Scale => "scale",
            Self::AddMask | Self::Add => "add",
            Self::Softmax | Self::Probs => "softmax",
            Self::Mix => "attention",
            Self::Cap => "soft_cap",
            Self::Silu => "silu",
            Self::Activation => "activation",
            Self::Mul => "mul",
            Self::Penalize => "repetition_penalty",
            Self::MinP => "min_p",
            Self::TypicalP => "typical_p",
            Self::TopKTopP => "top_k_top_p",
            Self::Sample => "sample",
        }
    }
}
