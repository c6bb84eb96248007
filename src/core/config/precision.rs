//! The number types and the arithmetic of a run.

use serde::{Deserialize, Serialize};

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
