//! The stages to write, in the order of the pass, and the larger parts after them.

use llama_trace_core::trace::Stage;

/// A stage, or a part of the pass with several stages, that a program can compute.
#[derive(Debug)]
pub struct Kata {
    /// Its name on the command line.
    pub name: &'static str,
    /// The stages of the pass that it computes. Each case is one of them.
    pub stages: &'static [Stage],
    /// The stages that are its inputs, if they are not those of the table of stages.
    pub(super) given: &'static [Given],
    /// Its input files.
    pub inputs: &'static [Port],
    /// Its numbers.
    pub numbers: &'static [Number],
    /// The shape of its output.
    pub output: &'static str,
    /// The formula, and the meaning of the letters that it adds.
    pub formula: &'static str,
    /// One line about it.
    pub about: &'static str,
}

/// An input of a part of several stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Given {
    /// A stage of the same pass and layer.
    Stage(Stage),
    /// The input of the layer, or the output of the last one.
    LayerInput,
}

/// An input file.
#[derive(Debug)]
pub struct Port {
    /// The name of the file, without `.npy`.
    pub name: &'static str,
    /// Its shape in letters.
    pub shape: &'static str,
    /// Its meaning and unit.
    pub says: &'static str,
    pub(super) of: Of,
}

/// The source of an input file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    /// An input stage, by its place.
    Input(usize),
    /// A weight, by its name in Meta's files.
    Weight(&'static str),
    /// The weight of the case's stage.
    OwnWeight,
    /// The rows of the cache that earlier passes wrote.
    Before,
    /// The rows of this pass.
    New,
    /// The ids of the text up to the end of the pass.
    Text,
}

/// A number in `numbers.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// ε of the norms.
    Eps,
    /// θ of RoPE.
    Theta,
    /// Tokens cached before the pass.
    Start,
    /// Tokens of the pass.
    Tokens,
    /// H.
    Heads,
    /// G.
    KvHeads,
    /// C.
    HeadDim,
    /// The temperature.
    Temperature,
    /// K of top-k.
    TopK,
    /// p of top-p.
    TopP,
    /// The share of min-p.
    MinP,
    /// The sum of typical-p.
    TypicalP,
    /// The repetition penalty.
    Penalty,
    /// The random number of the draw.
    Random,
    /// Values that share a scale.
    Group,
    /// The number of heads of the output, H or G.
    OwnHeads,
}

impl Number {
    /// Its key in `numbers.json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Eps => "eps",
            Self::Theta => "theta",
            Self::Start => "start",
            Self::Tokens => "tokens",
            Self::Heads | Self::OwnHeads => "heads",
            Self::KvHeads => "kv_heads",
            Self::HeadDim => "head_dim",
            Self::Temperature => "temperature",
            Self::TopK => "top_k",
            Self::TopP => "top_p",
            Self::MinP => "min_p",
            Self::TypicalP => "typical_p",
            Self::Penalty => "penalty",
            Self::Random => "random",
            Self::Group => "group",
        }
    }

    /// Its meaning.
    pub fn says(self) -> &'static str {
        match self {
            Self::Eps => "ε, added to the mean of the squares",
            Self::Theta => "θ of RoPE",
            Self::Start => "tokens that earlier passes cached; position of token t is start + t",
            Self::Tokens => "T, the tokens of this pass",
            Self::Heads => "H, query heads",
            Self::OwnHeads => "N, heads of the output",
            Self::KvHeads => "G, key/value heads",
            Self::HeadDim => "C, components of a head",
            Self::Temperature => "τ, divisor of the logits",
            Self::TopK => "tokens that top-k keeps",
            Self::TopP => "sum that top-p reaches",
            Self::MinP => "share of the largest probability",
            Self::TypicalP => "sum that the kept tokens reach",
            Self::Penalty => "the repetition penalty",
            Self::Random => "the random number, from 0 to 1",
            Self::Group => "neighbouring values that share a scale; the last group may have fewer",
        }
    }

    /// Returns whether it is a whole number.
    pub fn is_whole(self) -> bool {
        !matches!(
            self,
            Self::Eps
                | Self::Theta
                | Self::Temperature
                | Self::TopP
                | Self::MinP
                | Self::TypicalP
                | Self::Penalty
                | Self::Random
        )
    }
}

impl Kata {
    /// Returns whether it computes several stages at once.
    pub fn is_part(&self) -> bool {
        !self.given.is_empty()
    }

    /// Returns whether its output are ids.
    pub fn is_ids(&self) -> bool {
        self.stages[0].is_ids()
    }

    /// A line for each parameter and the output: name, shape and meaning.
    pub(super) fn meanings(&self) -> Vec<String> {
        let dtype = |says: &str| if says.contains("int64") { "" } else { ", float32" };
        let inputs = self
            .inputs
            .iter()
            .map(|port| format!("{} {}: {}{}", port.name, port.shape, port.says, dtype(port.says)));
        let number = |number: &Number| {
            format!(
                "{}: {}{}",
                number.name(),
                number.says(),
                if number.is_whole() { ", a whole number" } else { "" }
            )
        };
        let kind = match self {
            _ if self.is_ids() => "an id, int64",
            _ if self.is_int8() => "int8",
            _ => "float32 or float64",
        };
        let output = format!("returns {}: {kind}", self.output);
        inputs.chain(self.numbers.iter().map(number)).chain([output]).collect()
    }

    /// Returns whether its output are int8 values.
    pub fn is_int8(&self) -> bool {
        self.stages[0].is_int8()
    }
}

/// The kata of this name, or the one that computes the stage of this name.
pub fn kata(name: &str) -> Option<&'static Kata> {
    let by_name = KATAS.iter().find(|kata| kata.name == name);
    by_name.or_else(|| KATAS.iter().find(|kata| kata.stages.iter().any(|stage| stage.name() == name)))
}

const fn port(name: &'static str, shape: &'static str, says: &'static str, of: Of) -> Port {
    Port { name, shape, says, of }
}

use Of::{Before, Input, New, OwnWeight, Text, Weight};
use Stage as S;

/// Every kata, in the order of the pass; the parts of several stages are last.
pub const KATAS: &[Kata] = &[
    Kata {
        name: "embedding",
        stages: &[S::Embedding],
        given: &[],
        inputs: &[
            port("tokens", "(T)", "token ids, int64", Input(0)),
            port("table", "(V, D)", "the embedding table, a row for each id", OwnWeight),
        ],
        numbers: &[],
        output: "(T, D)",
        formula: "out[t, :] = table[tokens[t], :]",
        about: "the row of the table for each id",
    },
    Kata {
        name: "rope_cos",
        stages: &[S::RopeCos],
        given: &[],
        inputs: &[],
        numbers: &[Number::Start, Number::Tokens, Number::HeadDim, Number::Theta],
        output: "(T, C/2)",
        formula: "out[t, i] = cos((start + t) · theta^(−2i/C)), i = 0 … C/2 − 1",
        about: "the cosines of RoPE's angles",
    },
    Kata {
        name: "rope_sin",
        stages: &[S::RopeSin],
        given: &[],
        inputs: &[],
        numbers: &[Number::Start, Number::Tokens, Number::HeadDim, Number::Theta],
        output: "(T, C/2)",
        formula: "out[t, i] = sin((start + t) · theta^(−2i/C)), i = 0 … C/2 − 1",
        about: "the sines of RoPE's angles",
    },
    Kata {
        name: "mask",
        stages: &[S::Mask],
        given: &[],
        inputs: &[],
        numbers: &[Number::Start, Number::Tokens],
        output: "(T, K)",
        formula: "out[t, k] = 0 where k ≤ start + t, else −inf; K = start + T",
        about: "the causal mask: 0 for a visible key, −inf for a later one",
    },
    Kata {
        name: "rms_norm",
        stages: &[S::AttnNorm, S::FfnNorm, S::FinalNorm],
        given: &[],
        inputs: &[
            port("x", "(T, D)", "a row for each token", Input(0)),
            port("weight", "(D)", "the learned factor of each component", OwnWeight),
        ],
        numbers: &[Number::Eps],
        output: "(T, D)",
        formula: "out[t, d] = x[t, d] / √(Σ x[t, :]² / D + eps) · weight[d]",
        about: "RMSNorm of every token's vector",
    },
    Kata {
        name: "qkv",
        stages: &[S::Xq, S::Xk, S::Xv],
        given: &[],
        inputs: &[
            port("x", "(T, D)", "the normalised rows", Input(0)),
            port("w", "(N·C, D)", "wq, wk or wv: outputs × inputs", OwnWeight),
        ],
        numbers: &[Number::OwnHeads],
        output: "(T, N, C)",
        formula: "out[t, n, c] = Σ_d x[t, d] · w[n·C + c, d]",
        about: "queries, keys or values: a product, split into heads",
    },
    Kata {
        name: "qk_norm",
        stages: &[S::XqNorm, S::XkNorm],
        given: &[],
        inputs: &[
            port("x", "(T, N, C)", "queries or keys", Input(0)),
            port("weight", "(C)", "the learned factor of each component", OwnWeight),
        ],
        numbers: &[Number::Eps],
        output: "(T, N, C)",
        formula: "out[t, n, c] = x[t, n, c] / √(Σ x[t, n, :]² / C + eps) · weight[c]",
        about: "RMSNorm of every head's query or key (Qwen3)",
    },
    Kata {
        name: "rope",
        stages: &[S::XqRope, S::XkRope],
        given: &[],
        inputs: &[
            port("x", "(T, N, C)", "queries or keys", Input(0)),
            port("cos", "(T, C/2)", "the cosine of each pair's angle", Input(1)),
            port("sin", "(T, C/2)", "the sine of each pair's angle", Input(2)),
        ],
        numbers: &[],
        output: "(T, N, C)",
        formula: "a = x[t, n, i], b = x[t, n, i + C/2]; out[t, n, i] = a·cos[t, i] − b·sin[t, i]; out[t, n, i + C/2] = a·sin[t, i] + b·cos[t, i]",
        about: "queries or keys rotated by their positions",
    },
    Kata {
        name: "cache",
        stages: &[S::CacheK, S::CacheV],
        given: &[],
        inputs: &[
            port("cache", "(start, G, C)", "the rows of earlier passes; may be empty", Before),
            port("new", "(T, G, C)", "the rows of this pass", New),
        ],
        numbers: &[Number::Start],
        output: "(start + T, G, C)",
        formula: "out[k] = cache[k] where k < start; out[start + t] = new[t]",
        about: "the KV cache with the rows of this pass",
    },
    Kata {
        name: "repeat_kv",
        stages: &[S::Keys, S::Values],
        given: &[],
        inputs: &[port("cache", "(K, G, C)", "keys or values", Input(0))],
        numbers: &[Number::Heads],
        output: "(K, H, C)",
        formula: "out[k, h, c] = cache[k, h / (H/G), c]   (integer division)",
        about: "kv heads repeated for the query heads that share them",
    },
    Kata {
        name: "qk",
        stages: &[S::Qk],
        given: &[],
        inputs: &[
            port("q", "(T, H, C)", "rotated queries", Input(0)),
            port("keys", "(K, H, C)", "rotated keys", Input(1)),
        ],
        numbers: &[],
        output: "(H, T, K)",
        formula: "out[h, t, k] = Σ_c q[t, h, c] · keys[k, h, c]",
        about: "the dot product of each query with each key",
    },
    Kata {
        name: "scores",
        stages: &[S::Scores],
        given: &[],
        inputs: &[port("qk", "(H, T, K)", "dot products", Input(0))],
        numbers: &[Number::HeadDim],
        output: "(H, T, K)",
        formula: "out = qk / √C",
        about: "the dot products, scaled",
    },
    Kata {
        name: "masked_scores",
        stages: &[S::MaskedScores],
        given: &[],
        inputs: &[
            port("scores", "(H, T, K)", "scaled dot products", Input(0)),
            port("mask", "(T, K)", "0 for a visible key, −inf for a hidden one", Input(1)),
        ],
        numbers: &[],
        output: "(H, T, K)",
        formula: "out[h, t, k] = scores[h, t, k] + mask[t, k]",
        about: "the scores with the mask added",
    },
    Kata {
        name: "softmax",
        stages: &[S::Softmax],
        given: &[],
        inputs: &[port("s", "(H, T, K)", "masked scores; hidden ones are −inf", Input(0))],
        numbers: &[],
        output: "(H, T, K)",
        formula: "out[h, t, k] = e^(s[h, t, k] − m) / Σ_j e^(s[h, t, j] − m), m = max s[h, t, :]",
        about: "the attention weights of each query: shares of 1",
    },
    Kata {
        name: "attn_heads",
        stages: &[S::AttnHeads],
        given: &[],
        inputs: &[
            port("weights", "(H, T, K)", "attention weights, shares of 1", Input(0)),
            port("values", "(K, H, C)", "the values of each head", Input(1)),
        ],
        numbers: &[],
        output: "(T, H, C)",
        formula: "out[t, h, c] = Σ_k weights[h, t, k] · values[k, h, c]",
        about: "the sum of the values, by their weights",
    },
    Kata {
        name: "attn_output",
        stages: &[S::AttnOutput],
        given: &[],
        inputs: &[
            port("x", "(T, H, C)", "the output of each head", Input(0)),
            port("w", "(D, H·C)", "wo: outputs × inputs", OwnWeight),
        ],
        numbers: &[],
        output: "(T, D)",
        formula: "out[t, d] = Σ_h Σ_c x[t, h, c] · w[d, h·C + c]",
        about: "the heads side by side, projected to the stream",
    },
    Kata {
        name: "residual",
        stages: &[S::AttnResidual, S::FfnResidual],
        given: &[],
        inputs: &[
            port("x", "(T, D)", "the stream", Input(0)),
            port("y", "(T, D)", "the output of attention or of the feed-forward network", Input(1)),
        ],
        numbers: &[],
        output: "(T, D)",
        formula: "out = x + y",
        about: "the residual sum",
    },
    Kata {
        name: "linear",
        stages: &[S::FfnGate, S::FfnUp, S::FfnDown],
        given: &[],
        inputs: &[
            port("x", "(T, I)", "a row for each token", Input(0)),
            port("w", "(O, I)", "w1, w3 or w2: outputs × inputs", OwnWeight),
        ],
        numbers: &[],
        output: "(T, O)",
        formula: "out[t, o] = Σ_i x[t, i] · w[o, i]",
        about: "the products of the feed-forward network",
    },
    Kata {
        name: "silu",
        stages: &[S::FfnSilu],
        given: &[],
        inputs: &[port("x", "(T, F)", "the gates", Input(0))],
        numbers: &[],
        output: "(T, F)",
        formula: "out = x / (1 + e^−x)",
        about: "the activation of the gates",
    },
    Kata {
        name: "swiglu",
        stages: &[S::FfnHidden],
        given: &[Given::Stage(S::FfnGate), Given::Stage(S::FfnUp)],
        inputs: &[
            port("gate", "(T, F)", "the gates, before the activation", Input(0)),
            port("up", "(T, F)", "the values that pass through the gates", Input(1)),
        ],
        numbers: &[],
        output: "(T, F)",
        formula: "out = gate / (1 + e^−gate) · up",
        about: "SiLU of the gates times the values (ffn_silu and ffn_hidden)",
    },
    Kata {
        name: "logits",
        stages: &[S::Logits],
        given: &[],
        inputs: &[
            port("x", "(T, D)", "the rows of final_norm", Input(0)),
            port("w", "(V, D)", "the head: a row for each token of the vocabulary", OwnWeight),
        ],
        numbers: &[],
        output: "(T, V)",
        formula: "out[t, v] = Σ_d x[t, d] · w[v, d]",
        about: "a score for each token of the vocabulary",
    },
    Kata {
        name: "penalized_logits",
        stages: &[S::PenalizedLogits],
        given: &[],
        inputs: &[
            port("logits", "(T, V)", "the logits of all tokens of the pass", Input(0)),
            port("text", "(K)", "the ids of the whole text so far, int64", Text),
        ],
        numbers: &[Number::Penalty],
        output: "(V)",
        formula: "x = logits[T − 1, v]; for each v in text: out[v] = x / penalty where x ≥ 0, x · penalty where x < 0; else out[v] = x",
        about: "the repetition penalty on the last token's logits",
    },
    Kata {
        name: "probs",
        stages: &[S::Probs],
        given: &[],
        inputs: &[port("logits", "(T, V)", "the logits of all tokens of the pass", Input(0))],
        numbers: &[Number::Temperature],
        output: "(V)",
        formula: "out = softmax(logits[T − 1, :] / temperature)",
        about: "the last token's logits as probabilities",
    },
    Kata {
        name: "min_p",
        stages: &[S::MinP],
        given: &[],
        inputs: &[port("probs", "(V)", "probabilities", Input(0))],
        numbers: &[Number::MinP],
        output: "(V)",
        formula: "keep probs[v] ≥ min_p · max probs, divided by their sum; all others are 0",
        about: "the filter min-p",
    },
    Kata {
        name: "typical_p",
        stages: &[S::TypicalP],
        given: &[],
        inputs: &[port("probs", "(V)", "probabilities; removed ones are 0", Input(0))],
        numbers: &[Number::TypicalP],
        output: "(V)",
        formula: "in the order of |−ln p − H|, H = −Σ p · ln p, keep tokens until their sum reaches typical_p (that one included), divided by their sum; all others are 0",
        about: "the filter typical-p",
    },
    Kata {
        name: "nucleus",
        stages: &[S::Nucleus],
        given: &[],
        inputs: &[port("probs", "(V)", "probabilities", Input(0))],
        numbers: &[Number::TopK, Number::TopP],
        output: "(V)",
        formula: "keep the top_k most likely (0: all), divided by their sum; of these, as few of the most likely as reach top_p, divided by their sum; all others are 0",
        about: "the filters top-k and top-p",
    },
    Kata {
        name: "sampled",
        stages: &[S::Sampled],
        given: &[],
        inputs: &[port("nucleus", "(V)", "probabilities; removed ones are 0", Input(0))],
        numbers: &[Number::Random],
        output: "(1)",
        formula: "sort the ids, the most likely first, equal ones by id; out[0] = the first id at which the running sum exceeds random",
        about: "the draw of an id by a random number",
    },
    Kata {
        name: "argmax",
        stages: &[S::Sampled],
        given: &[Given::Stage(S::Logits)],
        inputs: &[port("logits", "(T, V)", "the logits of all tokens of the pass", Input(0))],
        numbers: &[],
        output: "(1)",
        formula: "out[0] = the id of the largest logits[T − 1, :]; of equal ones the first",
        about: "the greedy draw, at temperature 0",
    },
    Kata {
        name: "quantize_scale",
        stages: &[S::AttnNormScale, S::FfnNormScale, S::FfnHiddenScale, S::FinalNormScale],
        given: &[],
        inputs: &[port("x", "(T, D)", "a row for each token", Input(0))],
        numbers: &[Number::Group],
        output: "(T, groups)",
        formula: "out[t, j] = max |x[t, j·group … (j + 1)·group − 1]| / 127; groups = ⌈D / group⌉",
        about: "int8: the scale of each group",
    },
    Kata {
        name: "quantize",
        stages: &[S::AttnNormQ8, S::FfnNormQ8, S::FfnHiddenQ8, S::FinalNormQ8],
        given: &[],
        inputs: &[
            port("x", "(T, D)", "a row for each token", Input(0)),
            port("scale", "(T, groups)", "the scale of each group", Input(1)),
        ],
        numbers: &[Number::Group],
        output: "(T, D)",
        formula: "out[t, d] = x[t, d] / scale[t, d / group], rounded to the nearest whole number, int8",
        about: "int8: the steps of each value",
    },
    Kata {
        name: "attention",
        stages: &[S::AttnHeads],
        given: &[Given::Stage(S::XqRope), Given::Stage(S::CacheK), Given::Stage(S::CacheV)],
        inputs: &[
            port("q", "(T, H, C)", "rotated queries", Input(0)),
            port("k", "(K, G, C)", "rotated keys of all tokens so far", Input(1)),
            port("v", "(K, G, C)", "values of all tokens so far", Input(2)),
        ],
        numbers: &[Number::Start],
        output: "(T, H, C)",
        formula: "for each head h and g = h / (H/G): softmax over k ≤ start + t of q[t, h] · k[k, g] / √C, times v[k, g]",
        about: "part: grouped-query attention, from queries to outputs",
    },
    Kata {
        name: "feed_forward",
        stages: &[S::FfnDown],
        given: &[Given::Stage(S::FfnNorm)],
        inputs: &[
            port("x", "(T, D)", "the rows of ffn_norm", Input(0)),
            port("w1", "(F, D)", "the matrix of the gates", Weight("w1")),
            port("w2", "(D, F)", "the matrix back to the stream", Weight("w2")),
            port("w3", "(F, D)", "the matrix of the values", Weight("w3")),
        ],
        numbers: &[],
        output: "(T, D)",
        formula: "out = (SiLU(x · w1ᵀ) · (x · w3ᵀ)) · w2ᵀ",
        about: "part: the feed-forward network",
    },
    Kata {
        name: "layer",
        stages: &[S::FfnResidual],
        given: &[Given::LayerInput],
        inputs: &[
            port("x", "(T, D)", "the layer's input", Input(0)),
            port("attention_norm", "(D)", "weight of the norm before attention", Weight("attention_norm")),
            port("wq", "(H·C, D)", "queries", Weight("wq")),
            port("wk", "(G·C, D)", "keys", Weight("wk")),
            port("wv", "(G·C, D)", "values", Weight("wv")),
            port("wo", "(D, H·C)", "output of attention", Weight("wo")),
            port("ffn_norm", "(D)", "weight of the norm before the feed-forward network", Weight("ffn_norm")),
            port("w1", "(F, D)", "gates", Weight("w1")),
            port("w2", "(D, F)", "back to the stream", Weight("w2")),
            port("w3", "(F, D)", "values", Weight("w3")),
        ],
        numbers: &[Number::Heads, Number::KvHeads, Number::HeadDim, Number::Eps, Number::Theta],
        output: "(T, D)",
        formula: "h = x + attention(rms_norm(x)); out = h + feed_forward(rms_norm(h)); RoPE on halves, positions from 0, causal",
        about: "part: a whole layer without earlier passes",
    },
    Kata {
        name: "head",
        stages: &[S::Logits],
        given: &[Given::LayerInput],
        inputs: &[
            port("x", "(T, D)", "the output of the last layer", Input(0)),
            port("norm", "(D)", "weight of the last norm", Weight("norm")),
            port("w", "(V, D)", "the head", Weight("output")),
        ],
        numbers: &[Number::Eps],
        output: "(T, V)",
        formula: "out = rms_norm(x) · wᵀ",
        about: "part: the last norm and the logits",
    },
];
