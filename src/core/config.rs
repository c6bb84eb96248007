//! The hyperparameters of a Llama, under the names of the paper and of PyTorch code.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// All hyperparameters of a model. The letters D, H, G, C, F and V are those of the table of stages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// D: width of the residual stream (`hidden_size`, `dim`).
    pub dim: usize,
    /// Number of transformer blocks (`num_hidden_layers`, `n_layers`).
    pub layers: usize,
    /// H: query heads (`num_attention_heads`, `n_heads`).
    pub heads: usize,
    /// G: key/value heads (`num_key_value_heads`, `n_kv_heads`); H for multi-head attention, less for
    /// grouped-query attention (Ainslie et al., 2023). Divides H.
    pub kv_heads: usize,
    /// C: width of one head (`head_dim`), an even number. Usually D/H; a checkpoint may give another.
    pub head_dim: usize,
    /// F: width of the feed-forward hidden layer (`intermediate_size`, `hidden_dim`).
    pub ffn_dim: usize,
    /// V: number of tokens in the vocabulary.
    pub vocab: usize,
    /// The longest sequence the model is meant for (`max_position_embeddings`, `max_seq_len`).
    pub context: usize,
    /// ε of RMSNorm, added to the mean square.
    pub norm_eps: f32,
    /// θ of RoPE: pair i is rotated by position · θ^(−2i/C).
    pub rope_theta: f32,
    /// Scaling of the RoPE frequencies for contexts longer than the trained one.
    pub rope_scaling: RopeScaling,
    /// The two components of a head that form a pair for RoPE. It follows from how the checkpoint stores wq and wk.
    pub pairing: Pairing,
    /// Whether the query, key and value projections add a bias.
    pub qkv_bias: bool,
    /// Whether the attention's output projection adds a bias.
    pub output_bias: bool,
    /// Whether the three feed-forward projections add a bias.
    pub mlp_bias: bool,
    /// Whether an RMSNorm over C is applied to every head's query and key before RoPE (Qwen3; after Dehghani et al.,
    /// 2023).
    pub qk_norm: bool,
    /// W: the number of keys that a token sees in layers with a sliding window, its own included (Mistral 7B, Jiang et
    /// al., 2023; Beltagy et al., 2020). `None` if every layer sees all keys.
    pub window: Option<usize>,
    /// The first layer with the window: 0 in Mistral, whose layers all have it; `max_window_layers` in Qwen, whose
    /// earlier layers see all keys. Unused without a window.
    pub window_from: usize,
    /// Whether the output head is the embedding table (`tie_word_embeddings`).
    pub tied: bool,
}

impl ModelConfig {
    /// A one-layer Llama with `heads` query heads, `kv_heads` key/value heads of width `head_dim`, and no optional
    /// features. D = H·C, F = 4·D, V = 32,000, θ = 10,000, ε = 10⁻⁵ and a context of 2,048.
    pub fn of_heads(heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        let dim = heads * head_dim;
        Self {
            dim,
            layers: 1,
            heads,
            kv_heads,
            head_dim,
            ffn_dim: 4 * dim,
            vocab: 32_000,
            context: 2048,
            norm_eps: 1e-5,
            rope_theta: 10_000.0,
            rope_scaling: RopeScaling::None,
            pairing: Pairing::Halves,
            qkv_bias: false,
            output_bias: false,
            mlp_bias: false,
            qk_norm: false,
            window: None,
            window_from: 0,
            tied: false,
        }
    }
}

/// Version of the arithmetic. It is increased when a stage's bits change for the same weights, tokens, precision and
/// kernel. A trace stores the version that computed its values.
pub const ARITHMETIC: u32 = 1;

/// The way in which a run computes x · y + z, and sines, cosines and powers. Runs with the same arithmetic have the same
/// order of sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arithmetic {
    /// Fused multiply-adds: only the sum is rounded. The system computes sines, cosines and powers; their last bit
    /// depends on the platform.
    #[default]
    Fused,
    /// The product is rounded, and then the sum. The program computes sines, cosines and powers; all bits are the same on
    /// every platform.
    Separate,
}

impl Arithmetic {
    /// Whether this is the default, which files omit.
    pub fn is_fused(&self) -> bool {
        *self == Self::Fused
    }
}

/// The number types that a model runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Every stage in float32, the weights exactly as they are stored.
    F32,
    /// As PyTorch runs a bfloat16 model: sums in float32, the result of every stage rounded to bfloat16.
    Bf16,
    /// Weights and the inputs of every matrix product in int8, with one float32 scale per group. The rest is float32
    /// (llama2.c's version 2).
    Q8 {
        /// Activations that share a scale.
        group: usize,
    },
}

/// Number type of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheDtype {
    /// float32: exactly what was computed.
    F32,
    /// float16.
    F16,
    /// bfloat16.
    Bf16,
}

impl CacheDtype {
    /// Bytes per value.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// The type with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::F32, Self::F16, Self::Bf16].into_iter().find(|dtype| dtype.name() == name)
    }

    /// Its name, as `--cache-dtype` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }
}

/// Default group size: values per scale if the checkpoint does not give it, as in llama2.c and ggml's Q8_0.
pub const DEFAULT_GROUP: usize = 32;

impl Precision {
    /// The name that `--precision` takes and manifests store.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Q8 { .. } => "q8",
        }
    }

    /// The number type that stores keys and values of this precision without rounding.
    pub fn cache_dtype(self) -> CacheDtype {
        match self {
            Self::F32 | Self::Q8 { .. } => CacheDtype::F32,
            Self::Bf16 => CacheDtype::Bf16,
        }
    }

    /// Activations per scale, if products run in int8.
    pub fn group(self) -> Option<usize> {
        match self {
            Self::Q8 { group } => Some(group),
            Self::F32 | Self::Bf16 => None,
        }
    }
}

/// RoPE frequency scaling, by Hugging Face's `rope_type`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RopeScaling {
    /// Frequencies as they are (`default`).
    None,
    /// Every frequency divided by a factor: position interpolation (Chen et al., 2023).
    Linear {
        /// The divisor, ≥ 1 in practice.
        factor: f32,
    },
    /// Llama 3.1's rule: long wavelengths divided by the factor, short ones kept, a ramp in between
    /// (`apply_scaling` in Meta's llama-models).
    Llama3 {
        /// The divisor of the longest wavelengths.
        factor: f32,
        /// Wavelengths over `original_context / low_freq_factor` are divided.
        low_freq_factor: f32,
        /// Wavelengths under `original_context / high_freq_factor` are kept.
        high_freq_factor: f32,
        /// The context length that the model was trained on first.
        original_context: usize,
    },
    /// A divisor for each frequency (C/2), as in a GGUF file's `rope_freqs.weight`. GGUF files store Llama 3.1's rule
    /// this way.
    Divisors(Vec<f32>),
}

/// The two ways to pair the C components of a head for RoPE. They differ by a permutation of the rows of wq and wk. A
/// checkpoint stores those rows either permuted or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pairing {
    /// Pairs (i, i + C/2): Hugging Face checkpoints, `rotate_half`.
    Halves,
    /// Pairs (2i, 2i + 1): Meta's and llama2.c's checkpoints, as in the RoFormer paper.
    Neighbours,
}

impl Pairing {
    /// The word shown to users and written to manifests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Halves => "halves (i, i + C/2)",
            Self::Neighbours => "neighbours (2i, 2i + 1)",
        }
    }

    /// The two components of pair `i` of a head of `width` components.
    pub fn components(self, i: usize, width: usize) -> (usize, usize) {
        match self {
            Self::Halves => (i, i + width / 2),
            Self::Neighbours => (2 * i, 2 * i + 1),
        }
    }

    /// The pair that contains a component of a head of `width` components.
    pub fn pair_of(self, component: usize, width: usize) -> usize {
        match self {
            Self::Halves => component % (width / 2).max(1),
            Self::Neighbours => component / 2,
        }
    }
}

impl std::fmt::Display for RopeScaling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Linear { factor } => write!(f, "linear, factor {factor}"),
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => write!(
                f,
                "llama3, factor {factor}, low {low_freq_factor}, high {high_freq_factor}, original context {original_context}"
            ),
            Self::Divisors(divisors) => {
                let least = divisors.iter().copied().fold(f32::INFINITY, f32::min);
                let most = divisors.iter().copied().fold(0.0, f32::max);
                write!(f, "divided by the file's own factors, {least} to {most}")
            }
        }
    }
}

/// The largest size accepted for any one hyperparameter: far beyond every Llama, and small enough that
/// products of three of them fit in a u64.
const MAX_SIZE: usize = 1 << 20;

impl ModelConfig {
    /// Checks that the sizes are possible for a Llama. Later code relies on it: no division by zero, no overflow.
    ///
    /// # Errors
    /// [`Error::Model`] naming the first hyperparameter that is out of range.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: &str, found: String, expected: &str| {
            Err(Error::model(format!("invalid {what} in the configuration"))
                .expected(expected)
                .found(found)
                .next("compare config.json (or the file's header) with that of the published model"))
        };
        let sizes = [
            ("model width (dim)", self.dim),
            ("number of layers", self.layers),
            ("number of heads", self.heads),
            ("number of key/value heads", self.kv_heads),
            ("head width (head_dim)", self.head_dim),
            ("feed-forward width", self.ffn_dim),
            ("vocabulary size", self.vocab),
        ];
        for (what, size) in sizes {
            if !(1..=MAX_SIZE).contains(&size) {
                return wrong(what, size.to_string(), &format!("a number from 1 to {MAX_SIZE}"));
            }
        }
        if self.context == 0 {
            return wrong("context length", "0".into(), "at least 1");
        }
        if self.window == Some(0) {
            return wrong("sliding window", "0".into(), "at least 1, because a token sees itself");
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let found = format!("{} query heads and {} key/value heads", self.heads, self.kv_heads);
            return wrong("number of key/value heads", found, "a divisor of the number of query heads");
        }
        if !self.head_dim.is_multiple_of(2) {
            return wrong(
                "head width (head_dim)",
                self.head_dim.to_string(),
                "an even number, because RoPE rotates pairs",
            );
        }
        if !(self.norm_eps.is_finite() && self.norm_eps >= 0.0) {
            return wrong("RMSNorm epsilon", self.norm_eps.to_string(), "a small number, 0 or more");
        }
        if !(self.rope_theta.is_finite() && self.rope_theta > 0.0) {
            return wrong("RoPE theta", self.rope_theta.to_string(), "a positive number");
        }
        match &self.rope_scaling {
            RopeScaling::None => {}
            RopeScaling::Linear { factor } => {
                if !(factor.is_finite() && *factor > 0.0) {
                    return wrong("RoPE scaling factor", factor.to_string(), "a positive number");
                }
            }
            &RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let positive = |x: f32| x.is_finite() && x > 0.0;
                let ramp = positive(low_freq_factor) && low_freq_factor < high_freq_factor;
                if !(positive(factor) && ramp && positive(high_freq_factor) && original_context > 0) {
                    let expected = "factor > 0, 0 < low_freq_factor < high_freq_factor, original context ≥ 1";
                    return wrong("llama3 RoPE scaling", self.rope_scaling.to_string(), expected);
                }
            }
            RopeScaling::Divisors(divisors) => {
                if divisors.len() != self.head_dim / 2 {
                    let expected = format!("{}, one for each pair of a head's components", self.head_dim / 2);
                    return wrong("number of RoPE divisors", divisors.len().to_string(), &expected);
                }
                if let Some(divisor) = divisors.iter().find(|x| !(x.is_finite() && **x > 0.0)) {
                    return wrong("RoPE divisors", divisor.to_string(), "positive numbers");
                }
            }
        }
        Ok(())
    }

    /// Sets the factor that scales the RoPE frequencies.
    ///
    /// # Errors
    /// [`Error::Usage`] if the model does not scale RoPE by a factor, or `new` is not a positive number.
    pub fn set_rope_factor(&mut self, new: f32) -> Result<()> {
        if !(new.is_finite() && new > 0.0) {
            return Err(Error::usage("the value of --rope-factor is not valid")
                .expected("a positive number")
                .found(new));
        }
        let found = match self.rope_scaling {
            RopeScaling::Divisors(_) => "a file that has a factor for each frequency",
            _ => "a model without RoPE scaling",
        };
        match &mut self.rope_scaling {
            RopeScaling::Linear { factor } | RopeScaling::Llama3 { factor, .. } => *factor = new,
            RopeScaling::None | RopeScaling::Divisors(_) => {
                return Err(Error::usage("--rope-factor is for models that scale RoPE")
                    .expected("a model with llama3 or linear RoPE scaling")
                    .found(found)
                    .next("leave --rope-factor out"));
            }
        }
        Ok(())
    }

    /// H/G: the number of query heads that share one key/value head.
    pub fn group_size(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// H·C: the width of the queries, all heads concatenated.
    pub fn q_dim(&self) -> usize {
        self.heads * self.head_dim
    }

    /// G·C: the width of the keys (and of the values), all heads concatenated.
    pub fn kv_dim(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}
