//! Options that several commands have, and what they may say.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};

use super::memory;
use llama_trace_core::error::{Error, shortened};
use llama_trace_core::tensor::Dtype;
use llama_trace_core::trace::Address;
use llama_trace_formats::checkpoint::{Ablated, random};
use llama_trace_picture::{Format, Paper};
use llama_trace_runs::replay::DEFAULT_MEMORY;
use llama_trace_tui::palette::Palette;

/// Reads an address.
///
/// # Errors
/// What is wrong with it, in words.
pub(super) fn address(text: &str) -> Result<Address, String> {
    Address::parse(text).map_err(|wrong| {
        match wrong.starts_with("there is no stage") && wrong.ends_with('`') {
            true => format!("{}; `llama-trace log` lists the stages", shortened(&wrong)),
            false => shortened(&wrong).into_owned(),
        }
    })
}

/// Which model.
#[derive(Args, Clone, Debug)]
pub(super) struct ModelArgs {
    /// A directory in Hugging Face's or Meta's layout or one of its weights' files, a GGUF file, a llama2.c .bin
    /// file, or org/name[@revision] from the Hugging Face hub (org/name:FILE for a GGUF file of it) [default: the
    /// built-in model]
    #[arg(long, short, value_name = "MODEL")]
    pub(super) model: Option<PathBuf>,

    /// Open models of the hub from the cache, without asking the hub
    #[arg(long)]
    pub(super) offline: bool,

    /// tokenizer.json, tokenizer.model, a GGUF file or llama2.c's tokenizer.bin [default: the one in or beside the
    /// model]
    #[arg(long, value_name = "FILE")]
    pub(super) tokenizer: Option<PathBuf>,

    /// Factor of the model's RoPE scaling, where its files say another or none
    #[arg(long, value_name = "FACTOR", allow_negative_numbers = true)]
    pub(super) rope_factor: Option<f32>,

    /// Open the model as if its configuration had not this field, which would be refused [may be given again]
    #[arg(long, value_name = "FIELD")]
    pub(super) ignore_config: Vec<String>,

    /// Switch a part of the model off: nothing that head 2 of layer 0 (L0/h2), the attention (L0/attn) or the FFN (L0/ffn)
    /// of a layer computes gets into the residual stream [may be given again, or as a list: L0/h2,L1/ffn]
    #[arg(long, value_name = "PART", value_delimiter = ',', value_parser = Ablated::from_str)]
    pub(super) without: Vec<Ablated>,

    /// Arithmetic to run in [default: q8 where the weights are int8 or in blocks, else f32]
    #[arg(long, value_enum, value_name = "PRECISION")]
    pub(super) precision: Option<PrecisionName>,
}

/// What to run, and how to draw.
#[derive(Args, Clone, Debug)]
pub(super) struct RunArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,

    /// The text to begin with; "" is the beginning-of-text token alone, - reads standard input, a newline at its end
    /// included [default: Once upon a time; may be given again: several texts grow side by side]
    #[arg(long, short, value_name = "TEXT", group = "text", allow_hyphen_values = true)]
    pub(super) prompt: Vec<String>,

    /// A file with the text to begin with, a newline at its end included; - reads standard input
    #[arg(long, value_name = "FILE", group = "text")]
    pub(super) prompt_file: Option<PathBuf>,

    /// A file with a prompt a line; in a .jsonl file each line is {"prompt": "a text"} or {"ids": [1, 403, 407]}
    #[arg(long, value_name = "FILE", group = "text")]
    pub(super) prompts: Option<PathBuf>,

    /// Token ids instead of a text: 1,403,407, or @FILE with such a list
    #[arg(long, value_name = "IDS", group = "text")]
    pub(super) ids: Option<String>,

    /// Tokens to draw: the pass over the prompt draws one, each decode pass one more [default: 128, and 1 where stages are
    /// looked at]
    #[arg(short = 'n', long, value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(super) tokens: Option<usize>,

    #[command(flatten)]
    pub(super) sampling: SamplingArgs,

    /// Stream of the seed's random numbers that the first prompt draws from; each prompt after it has the next one, so
    /// that --stream I draws for one prompt what number I of several drew [default: 0]
    #[arg(long, value_name = "I", value_parser = whole::<u64>, allow_negative_numbers = true)]
    pub(super) stream: Option<u64>,

    #[command(flatten)]
    pub(super) cpu: CpuArgs,

    /// Tokens that the KV cache is reserved for [default: the prompt and -n; with --step the model's context, cut to
    /// what memory is free, which several prompts share]
    #[arg(long, value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(super) context: Option<usize>,
}

/// How to draw the next token.
#[derive(Args, Clone, Debug)]
pub(super) struct SamplingArgs {
    /// 0 takes the most likely token; 1 draws from the model's own probabilities
    #[arg(long, visible_alias = "temp", default_value_t = 0.0, value_parser = number, allow_negative_numbers = true)]
    pub(super) temperature: f32,

    /// Draw only from the shortest run of most likely tokens with this share of the probability, of what --top-k
    /// left [default: 1, all]
    #[arg(long, value_name = "P", value_parser = number, allow_negative_numbers = true)]
    pub(super) top_p: Option<f32>,

    /// Draw only from this many most likely tokens [default: 0, no limit]
    #[arg(long, value_name = "K", value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(super) top_k: Option<usize>,

    /// Where the random numbers start; the same seed draws the same text [default: 0]
    #[arg(long, value_name = "SEED", value_parser = whole::<u64>, allow_negative_numbers = true)]
    pub(super) seed: Option<u64>,
}

/// Where the tracer opens.
#[derive(Args, Clone, Debug)]
pub(super) struct OpenArgs {
    /// Pass to open at; 0 is the one over the prompt, more are run with -n
    #[arg(long, visible_alias = "passes", requires = "step", value_name = "P", value_parser = one, allow_negative_numbers = true)]
    pub(super) pass: Option<usize>,

    /// Layer to open at, from 0
    #[arg(long, visible_alias = "layers", requires = "step", value_name = "L", value_parser = one, allow_negative_numbers = true)]
    pub(super) layer: Option<usize>,

    /// Stage to open at, or another shape of one (as xq_heads)
    #[arg(long, visible_alias = "stages", requires = "step", value_name = "NAME")]
    pub(super) stage: Option<String>,

    /// Head to open at, from 0
    #[arg(long, requires = "step", value_name = "H", value_parser = one, allow_negative_numbers = true)]
    pub(super) head: Option<usize>,

    /// Address to open at, as the tracer prints it: p0/L1/softmax[h=2,t=5,k=1], and s1/ before it for a
    /// prompt that is not the first; what is left out is the last token, of attention its largest key, and 0 on
    /// other axes
    #[arg(long, requires = "step", value_name = "ADDRESS", value_parser = address, conflicts_with_all = ["pass", "layer", "stage", "head"])]
    pub(super) at: Option<Address>,

    /// File of the places that m marks and ' returns to, a line each: a p0/L1/softmax[h=2,t=5,k=1]; the first mark
    /// makes it
    #[arg(long, requires = "step", value_name = "FILE")]
    pub(super) marks: Option<PathBuf>,
}

/// Which part of a run.
#[derive(Args, Clone, Debug)]
pub(super) struct SelectArgs {
    /// Passes, as 0-2 or 0,2 [default: all]
    #[arg(long, visible_alias = "passes", value_name = "LIST", allow_negative_numbers = true)]
    pub(super) pass: Option<String>,

    /// Layers, as 0,3-5 [default: all]; what is outside the layers stays
    #[arg(long, visible_alias = "layers", value_name = "LIST", allow_negative_numbers = true)]
    pub(super) layer: Option<String>,

    /// Stages, as xq,softmax [default: all]
    #[arg(long, visible_alias = "stages", value_name = "LIST")]
    pub(super) stage: Option<String>,
}

/// What the tracer may hold.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct MemoryArgs {
    /// Memory for the values that the tracer holds, of all prompts together, as 64MiB or 2GiB; what has no room is computed again when it is
    /// looked at [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = memory::parse)]
    pub(super) memory: Option<usize>,
}

/// A run that was recorded, in place of one that is to be run.
#[derive(Args, Clone, Debug)]
pub(super) struct TraceArgs {
    /// A trace that `record` wrote, or a folder that `export` or a capture script did, in place of a prompt; --model adds the
    /// model that it is of, for what takes weights
    #[arg(long, value_name = "PATH", conflicts_with_all = ["text", "tokens", "temperature", "top_p", "top_k", "seed", "stream", "context"])]
    pub(super) trace: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ExportFormat {
    /// Its values, for numpy
    Npy,
    /// A heatmap with axes and token labels
    Svg,
    /// The same in pixels
    Png,
}

impl ExportFormat {
    /// What it is drawn as, if it is.
    pub(super) fn picture(self) -> Option<Format> {
        match self {
            Self::Npy => None,
            Self::Svg => Some(Format::Svg),
            Self::Png => Some(Format::Png),
        }
    }

    /// What names of files end in, where that is not `npy`.
    pub(super) fn suffix(self) -> Option<&'static str> {
        match self {
            Self::Npy => None,
            Self::Svg => Some("svg"),
            Self::Png => Some("png"),
        }
    }
}

/// What the tracer's colours are.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct ColourArgs {
    /// Colours for a white ground: a terminal with one, a projector
    #[arg(long)]
    light: bool,

    /// Colours of the values
    #[arg(long, value_enum, value_name = "PALETTE", default_value_t = PaletteName::RedBlue)]
    palette: PaletteName,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum PaletteName {
    /// Blue, white, red; dark to bright
    RedBlue,
    /// Purple, white, orange; dark to bright
    PurpleOrange,
    /// Greys
    Grey,
}

impl ColourArgs {
    /// What the screen is drawn on.
    pub(super) fn paper(self) -> Paper {
        if self.light { Paper::Light } else { Paper::Dark }
    }

    /// The scales of the values.
    pub(super) fn palette(self) -> Palette {
        match self.palette {
            PaletteName::RedBlue => Palette::RedBlue,
            PaletteName::PurpleOrange => Palette::PurpleOrange,
            PaletteName::Grey => Palette::Grey,
        }
    }

    /// For a command that draws nothing.
    ///
    /// # Errors
    /// [`Error::Usage`] where colours are asked for.
    pub(super) fn refuse(self) -> llama_trace_core::error::Result<()> {
        match (self.light, self.palette) {
            (false, PaletteName::RedBlue) => Ok(()),
            _ => Err(Error::usage("--light and --palette are the tracer's, and a text has no colours")
                .next("add --step, or leave them out")),
        }
    }
}

/// Columns and rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScreenSize(pub(super) (u16, u16));

impl ScreenSize {
    /// Reads `120x40`; the answer to anything else is for the command line's parser to print.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
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
pub(super) enum RuntimeName {
    /// Hugging Face's transformers, with PyTorch
    Transformers,
    /// llama.cpp, by llama-cpp-python and its eval callback
    LlamaCpp,
    /// TransformerLens, by its hooks
    TransformerLens,
    /// vLLM, by hooks on its models' modules; no test ran this script
    Vllm,
}

/// What `--device` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DeviceName {
    /// A GPU where one is there that the model fits on, else the processor.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// The GPU of this number.
    Cuda(usize),
}

impl DeviceName {
    /// Reads `cuda:1`; the answer to anything else is for the command line's parser to print.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "auto" => Some(Self::Auto),
            None if text == "cpu" => Some(Self::Cpu),
            None if text == "cuda" => Some(Self::Cuda(0)),
            Some(("cuda", number)) if number.bytes().all(|digit| digit.is_ascii_digit()) => {
                number.parse().ok().map(Self::Cuda)
            }
            _ => None,
        }
        .ok_or_else(|| "auto, cpu, cuda or cuda:N is expected, N the number of the GPU from 0 on".into())
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

/// Where to compute, and how the CPU is used.
#[derive(Args, Clone, Debug)]
pub(super) struct CpuArgs {
    /// Where to compute: cpu, cuda (cuda:1 is the second GPU), or auto, a GPU where one is there that the model fits on
    #[arg(long, value_name = "DEVICE", default_value_t, value_parser = DeviceName::parse)]
    pub(super) device: DeviceName,

    /// Threads to compute with [default: one for each core]
    #[arg(long, value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(super) threads: Option<usize>,

    /// Inner loops to compute with: amx, avx512bf16, avx512vnni, avx512, avxvnni, avx2 or portable [default: the fastest on this processor]
    #[arg(long, value_name = "NAME")]
    pub(super) cpu_kernel: Option<String>,

    /// Copies the weights into huge pages, which are read faster and take the weights' size in memory again (Linux)
    #[arg(long)]
    pub(super) huge_pages: bool,

    /// Number type of the cached keys and values [default: bf16 in --precision bf16, else f32]
    #[arg(long, value_enum, value_name = "TYPE")]
    pub(super) cache_dtype: Option<CacheDtypeName>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum KeepName {
    /// Every stage
    All,
    /// What cannot be derived from other stages; the rest is derived when somebody looks
    Minimal,
    /// The tokens, and statistics of every stage
    Stats,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum PrecisionName {
    /// Every stage in float32, the weights as they are stored
    F32,
    /// As PyTorch runs a bfloat16 model: every stage's result rounded to bfloat16
    Bf16,
    /// Matrix products in whole numbers: activations in int8, one scale a group; weights as they are stored in int8 or
    /// in blocks, or else quantised too
    Q8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum CacheDtypeName {
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

/// Reads the number types of random weights by their name.
pub(super) fn random_weights() -> impl TypedValueParser<Value = random::Weights> {
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
pub(super) enum BenchFormat {
    /// Lines to read
    Table,
    /// One JSON object
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum CheckFormat {
    /// Lines to read
    Table,
    /// One JSON object
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum DiffFormat {
    /// Lines to read
    Text,
    /// One JSON object
    Json,
    /// A test report in XML, a case for each stage
    Junit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum LogFormat {
    /// Lines to read
    Text,
    /// JSON, one object a line; of lens they are an array
    Json,
}

impl MemoryArgs {
    /// What was asked for, or the default.
    pub(super) fn bytes(self) -> usize {
        self.memory.unwrap_or(DEFAULT_MEMORY)
    }
}

impl RunArgs {
    /// Whether there is something to begin with.
    pub(super) fn has_prompt(&self) -> bool {
        let RunArgs { prompt, prompt_file, prompts, ids, .. } = self;
        !prompt.is_empty() || prompt_file.is_some() || prompts.is_some() || ids.is_some()
    }
}

/// A number that may have a fraction.
fn number(text: &str) -> Result<f32, String> {
    let expected = || "a number is expected, with a point before its fraction: 0.8".to_owned();
    let exact: f64 = text.parse().map_err(|_| expected())?;
    let number: f32 = text.parse().map_err(|_| expected())?;
    // What was written is not to become 0 or infinity.
    match (number == 0.0) == (exact == 0.0) && number.is_finite() == exact.is_finite() {
        true => Ok(number),
        false => {
            Err(format!("a float32 number is expected, between {:e} and {:e}", f32::MIN_POSITIVE, f32::MAX))
        }
    }
}

/// A whole number of 0 or more.
pub(super) fn whole<N: FromStr>(text: &str) -> Result<N, String> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let expected =
        if is_number { "a smaller number is expected" } else { "a whole number is expected, 0 or more" };
    text.parse().map_err(|_| expected.to_owned())
}

/// A whole number of 1 or more.
pub(super) fn at_least_one(text: &str) -> Result<usize, String> {
    match whole(text)? {
        0 => Err("1 or more is expected".into()),
        number => Ok(number),
    }
}

/// The one number that the tracer opens at.
pub(super) fn one(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| {
        "--step opens at one place: a whole number is expected, 0 or more (export and log take lists)".into()
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
