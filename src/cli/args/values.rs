//! The values that options accept.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use llama_trace_core::tensor::Dtype;
use llama_trace_formats::checkpoint::random;
use llama_trace_picture::Format;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum ExportFormat {
    /// The values, for numpy
    Npy,
    /// A heatmap with axes and token labels
    Svg,
    /// The heatmap in pixels
    Png,
}

impl ExportFormat {
    /// The format of the picture; none for `npy`.
    pub(in crate::cli) fn picture(self) -> Option<Format> {
        match self {
            Self::Npy => None,
            Self::Svg => Some(Format::Svg),
            Self::Png => Some(Format::Png),
        }
    }

    /// The extension of the file names, if it is not `npy`.
    pub(in crate::cli) fn suffix(self) -> Option<&'static str> {
        match self {
            Self::Npy => None,
            Self::Svg => Some("svg"),
            Self::Png => Some("png"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum PaletteName {
    /// Blue, white, red; dark to bright
    RedBlue,
    /// Purple, white, orange; dark to bright
    PurpleOrange,
    /// Greys
    Grey,
}

/// The size of a screen: columns and rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) struct ScreenSize(pub(in crate::cli) (u16, u16));

impl ScreenSize {
    /// Reads `120x40`. For any other text, returns a message that the command line's parser prints.
    pub(in crate::cli) fn parse(text: &str) -> Result<Self, String> {
        let size = text.split_once('x').and_then(|(columns, rows)| {
            let (columns, rows) = (columns.parse().ok()?, rows.parse().ok()?);
            ((1..=500).contains(&columns) && (1..=200).contains(&rows)).then_some(Self((columns, rows)))
        });
        size.ok_or_else(|| "columns and rows are expected, from 1x1 to 500x200".into())
    }
}

impl fmt::Display for ScreenSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.0.0, self.0.1)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum RuntimeName {
    /// Hugging Face's transformers, with PyTorch
    Transformers,
    /// llama.cpp, with llama-cpp-python and its eval callback
    LlamaCpp,
    /// TransformerLens, with its hooks
    TransformerLens,
    /// vLLM, with hooks on its models' modules; no test ran this script
    Vllm,
}

/// The value of `--device`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::cli) enum DeviceName {
    /// A GPU on which the model fits; if there is none, the processor.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// The GPU of this number.
    Cuda(usize),
}

impl DeviceName {
    /// Reads `cuda:1`. For any other text, returns a message that the command line's parser prints.
    pub(in crate::cli) fn parse(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "auto" => Some(Self::Auto),
            None if text == "cpu" => Some(Self::Cpu),
            None if text == "cuda" => Some(Self::Cuda(0)),
            Some(("cuda", number)) if number.bytes().all(|digit| digit.is_ascii_digit()) => {
                number.parse().ok().map(Self::Cuda)
            }
            _ => None,
        }
        .ok_or_else(|| "auto, cpu, cuda or cuda:N is expected; N is the number of the GPU, from 0".into())
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(0) => f.write_str("cuda"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum KeepName {
    /// Every stage
    All,
    /// Only stages that cannot be derived from others; the rest is derived when you look at it
    Minimal,
    /// The tokens, and statistics of every stage
    Stats,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum PrecisionName {
    /// Every stage in float32, the weights as they are stored
    F32,
    /// As PyTorch runs a bfloat16 model: every stage's result rounded to bfloat16
    Bf16,
    /// Matrix products of integers: activations in int8, with a scale for each group; weights as stored if
    /// they are int8 or blocks, otherwise quantised too
    Q8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum CacheDtypeName {
    /// Exactly what was computed
    F32,
    /// Rounded to float16
    F16,
    /// Rounded to bfloat16
    Bf16,
}

/// The number types of random weights, by their names.
const RANDOM_WEIGHTS: [(&str, random::Weights); 18] = [
    ("f32", random::Weights::Of(Dtype::F32)),
    ("f16", random::Weights::Of(Dtype::F16)),
    ("bf16", random::Weights::Of(Dtype::BF16)),
    ("q8", random::Weights::Of(Dtype::I8)),
    ("q8_0", random::Weights::Of(Dtype::Q8_0)),
    ("q4_0", random::Weights::Of(Dtype::Q4_0)),
    ("q4_1", random::Weights::Of(Dtype::Q4_1)),
    ("q5_0", random::Weights::Of(Dtype::Q5_0)),
    ("q5_1", random::Weights::Of(Dtype::Q5_1)),
    ("q4_k", random::Weights::Of(Dtype::Q4K)),
    ("q5_k", random::Weights::Of(Dtype::Q5K)),
    ("q6_k", random::Weights::Of(Dtype::Q6K)),
    ("q2_k", random::Weights::Of(Dtype::Q2K)),
    ("q3_k", random::Weights::Of(Dtype::Q3K)),
    ("iq4_nl", random::Weights::Of(Dtype::Iq4Nl)),
    ("iq4_xs", random::Weights::Of(Dtype::Iq4Xs)),
    ("mxfp4", random::Weights::Of(Dtype::Mxfp4)),
    ("q4_k_m", random::Weights::Q4KM),
];

/// Parser for the number type of random weights.
pub(in crate::cli) fn random_weights() -> impl TypedValueParser<Value = random::Weights> {
    let named = |(name, weights)| match weights {
        random::Weights::Of(Dtype::I8) => PossibleValue::new(name).help("int8, a scale for every 32"),
        random::Weights::Q4KM => PossibleValue::new(name).help("Q4_K and Q6_K, as llama.cpp mixes them"),
        random::Weights::Of(_) => PossibleValue::new(name),
    };
    PossibleValuesParser::new(RANDOM_WEIGHTS.map(named)).map(|given| {
        let known = RANDOM_WEIGHTS.iter().find(|(name, _)| *name == given);
        known.map_or(Dtype::BF16.into(), |(_, weights)| *weights)
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum BenchFormat {
    /// Plain text
    Table,
    /// One JSON object
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum CheckFormat {
    /// Plain text
    Table,
    /// One JSON object
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum DiffFormat {
    /// Plain text
    Text,
    /// One JSON object
    Json,
    /// A test report in XML, a case for each stage
    Junit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum KataLanguage {
    /// Python with numpy
    Python,
    /// Rust without other crates
    Rust,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum LogFormat {
    /// Plain text
    Text,
    /// JSON, one object a line; `lens` prints one array
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum PatchFormat {
    /// Plain text
    Text,
    /// One JSON object
    Json,
    /// Heatmaps
    Svg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum PatchPart {
    /// The embedding, and the output of each layer
    Residual,
    /// The output of attention
    Attn,
    /// The output of the feed-forward network
    Ffn,
    /// The output of each head, for all tokens
    Heads,
    /// Single neurons of the feed-forward networks, for all tokens
    Neurons,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum RankedPart {
    /// Attention heads
    Heads,
    /// Neurons of the feed-forward networks
    Neurons,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum EffectName {
    /// What the part itself adds to the logits
    Direct,
    /// How far the logits move without the part
    Total,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum MetricName {
    /// The logit of the answer minus the logit of the wrong token
    LogitDiff,
    /// The probability of the answer
    Prob,
    /// The Kullback-Leibler divergence from the clean run
    Kl,
}

/// A number that may have a fraction.
pub(super) fn number(text: &str) -> Result<f32, String> {
    let expected = || "a number is expected, with a point before its fraction: 0.8".to_owned();
    let exact: f64 = text.parse().map_err(|_| expected())?;
    let number: f32 = text.parse().map_err(|_| expected())?;
    // A number too small or too large for float32 is refused, so that it does not become 0 or infinity.
    match (number == 0.0) == (exact == 0.0) && number.is_finite() == exact.is_finite() {
        true => Ok(number),
        false => {
            Err(format!("a float32 number is expected, between {:e} and {:e}", f32::MIN_POSITIVE, f32::MAX))
        }
    }
}

/// A whole number of 0 or more.
pub(in crate::cli) fn whole<N: FromStr>(text: &str) -> Result<N, String> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let expected =
        if is_number { "a smaller number is expected" } else { "a whole number is expected, 0 or more" };
    text.parse().map_err(|_| expected.to_owned())
}

/// A whole number of 1 or more.
pub(in crate::cli) fn at_least_one(text: &str) -> Result<usize, String> {
    match whole(text)? {
        0 => Err("1 or more is expected".into()),
        number => Ok(number),
    }
}

/// The single number that the tracer opens at. The message explains that lists are not accepted.
pub(in crate::cli) fn one(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| {
        "the tracer opens at one place: a whole number is expected, 0 or more (export and log take lists)"
            .into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_and_written() {
        for (text, device) in [
            ("auto", DeviceName::Auto),
            ("cpu", DeviceName::Cpu),
            ("cuda", DeviceName::Cuda(0)),
            ("cuda:3", DeviceName::Cuda(3)),
        ] {
            assert_eq!(DeviceName::parse(text), Ok(device));
            assert_eq!(device.to_string(), text);
        }
        assert_eq!(DeviceName::parse("cuda:0"), Ok(DeviceName::Cuda(0)));
        for wrong in [
            "",
            "gpu",
            "cuda:",
            "cuda:x",
            "cuda:-1",
            "cpu:0",
            "CUDA",
            "cuda:+1",
            " cuda",
            "cuda:18446744073709551616",
            "cuda:0:1",
        ] {
            assert!(DeviceName::parse(wrong).unwrap_err().contains("cuda:N"), "{wrong}");
        }
    }
}
