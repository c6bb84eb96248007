//! RoPE: how far each pair of components is rotated, and which components form a pair.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Precision;

/// θ of RoPE and the scaling of its frequencies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// θ.
    pub theta: f32,
    /// The scaling.
    pub scaling: RopeScaling,
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
    /// YaRN (Peng et al., 2023): fast pairs kept, slow ones divided by the factor, a ramp in between.
    Yarn {
        /// The divisor of the slow pairs.
        factor: f32,
        /// Pairs that turn more often than this over the original context are kept.
        beta_fast: f32,
        /// Pairs that turn less often than this are divided.
        beta_slow: f32,
        /// The context length that the model was trained on first.
        original_context: usize,
        /// The factor of all cosines and sines.
        attention_factor: f32,
        /// Whether the ends of the ramp are rounded to whole pairs.
        truncate: bool,
    },
    /// LongRoPE (Ding et al., 2024): a divisor for each pair. Passes that reach beyond the original context have other
    /// divisors.
    LongRope {
        /// The divisors within the original context.
        short: Vec<f32>,
        /// The divisors beyond it.
        long: Vec<f32>,
        /// The context length that the model was trained on first.
        original_context: usize,
        /// The factor of all cosines and sines.
        attention_factor: f32,
    },
    /// Dynamic NTK scaling: θ grows with the number of keys beyond the original context.
    Dynamic {
        /// The factor.
        factor: f32,
        /// The context length that the model was trained on first.
        original_context: usize,
    },
    /// A divisor for each frequency (C/2), as in a GGUF file's `rope_freqs.weight`. GGUF files store Llama 3.1's rule
    /// this way.
    Divisors(Vec<f32>),
}

/// A setting that is out of range: its name, its value, and the values that are in range.
pub(super) type Wrong = (&'static str, String, String);

impl Rope {
    /// The factor of all cosines and sines; 1 for most scalings.
    pub fn attention_factor(&self) -> f32 {
        match self.scaling {
            RopeScaling::Yarn { attention_factor, .. } | RopeScaling::LongRope { attention_factor, .. } => {
                attention_factor
            }
            _ => 1.0,
        }
    }

    /// Whether the frequencies depend on the number of keys of a pass.
    pub fn varies(&self) -> bool {
        matches!(self.scaling, RopeScaling::LongRope { .. } | RopeScaling::Dynamic { .. })
    }

    /// Checks the numbers. `turned` is the number of components that RoPE rotates.
    pub(super) fn check(&self, turned: usize) -> Result<(), Wrong> {
        let positive = |x: f32| x.is_finite() && x > 0.0;
        let ensure = |right: bool, what, found: String, expected: &str| match right {
            true => Ok(()),
            false => Err((what, found, expected.to_owned())),
        };
        ensure(positive(self.theta), "RoPE theta", self.theta.to_string(), "a positive number")?;
        let pairs = |divisors: &[f32]| {
            let expected = format!("{}, one for each pair of a head's components", turned / 2);
            ensure(
                divisors.len() == turned / 2,
                "number of RoPE divisors",
                divisors.len().to_string(),
                &expected,
            )?;
            let wrong = divisors.iter().find(|x| !positive(**x));
            let found = wrong.map_or(String::new(), ToString::to_string);
            ensure(wrong.is_none(), "RoPE divisors", found, "positive numbers")
        };
        let found = self.scaling.to_string();
        match self.scaling {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } => {
                ensure(positive(factor), "RoPE scaling factor", factor.to_string(), "a positive number")
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let ramp = positive(low_freq_factor) && low_freq_factor < high_freq_factor;
                let right = positive(factor) && ramp && positive(high_freq_factor) && original_context > 0;
                let expected = "factor > 0, 0 < low_freq_factor < high_freq_factor, original context ≥ 1";
                ensure(right, "llama3 RoPE scaling", found, expected)
            }
            RopeScaling::Yarn {
                factor, beta_fast, beta_slow, original_context, attention_factor, ..
            } => {
                let numbers = [factor, beta_fast, beta_slow, attention_factor].into_iter().all(positive);
                let expected = "factor, beta_slow, beta_fast and attention factor > 0, original context ≥ 1";
                ensure(numbers && original_context > 0, "yarn RoPE scaling", found, expected)
            }
            RopeScaling::LongRope { ref short, ref long, original_context, attention_factor } => {
                let right = positive(attention_factor) && original_context > 0;
                let expected = "attention factor > 0, original context ≥ 1";
                ensure(right, "longrope RoPE scaling", found, expected)?;
                pairs(short)?;
                pairs(long)
            }
            RopeScaling::Dynamic { factor, original_context } => {
                let right = factor.is_finite() && factor >= 1.0 && original_context > 0 && turned > 2;
                let expected = "factor ≥ 1, original context ≥ 1, and at least two pairs";
                ensure(right, "dynamic RoPE scaling", found, expected)
            }
            RopeScaling::Divisors(ref divisors) => pairs(divisors),
        }
    }
}

/// What bfloat16 rounds in RoPE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RopeRounding {
    /// The cosines and sines, each product, and the sum of two products.
    #[default]
    Products,
    /// The cosines and sines, and the sum (Command R).
    Sum,
    /// Only the sum. The cosines and sines stay in float32 (OLMo 2, ERNIE 4.5).
    SumOfFloat32,
}

impl RopeRounding {
    /// Whether the cosines and sines are rounded.
    pub fn rounds_tables(self) -> bool {
        self != Self::SumOfFloat32
    }

    /// Whether each product is rounded.
    pub fn rounds_products(self) -> bool {
        self == Self::Products
    }

    /// The precision to which the products are rounded in a run in `precision`.
    pub fn of_products(self, precision: Precision) -> Precision {
        if self.rounds_products() { precision } else { Precision::F32 }
    }
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

impl fmt::Display for RopeScaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Linear { factor } => write!(f, "linear, factor {factor}"),
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => write!(
                f,
                "llama3, factor {factor}, low {low_freq_factor}, high {high_freq_factor}, original context {original_context}"
            ),
            Self::Yarn { factor, beta_fast, beta_slow, original_context, attention_factor, .. } => write!(
                f,
                "yarn, factor {factor}, fast {beta_fast}, slow {beta_slow}, original context {original_context}, \
                 attention factor {attention_factor}"
            ),
            Self::LongRope { original_context, attention_factor, .. } => write!(
                f,
                "longrope, original context {original_context}, attention factor {attention_factor}"
            ),
            Self::Dynamic { factor, original_context } => {
                write!(f, "dynamic, factor {factor}, original context {original_context}")
            }
            Self::Divisors(divisors) => {
                let least = divisors.iter().copied().fold(f32::INFINITY, f32::min);
                let most = divisors.iter().copied().fold(0.0, f32::max);
                write!(f, "divided by the file's own factors, {least} to {most}")
            }
        }
    }
}
