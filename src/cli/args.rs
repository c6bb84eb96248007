//! The options of the commands.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};

use super::memory;
use crate::error::Error;
use crate::picture::{Format, Paper};
use crate::replay::DEFAULT_MEMORY;
use crate::trace::Address;
use crate::tui::palette::Palette;

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

    /// Arithmetic to run in [default: q8 where the weights are int8 or in blocks, else f32]
    #[arg(long, value_enum, value_name = "PRECISION")]
    pub(super) precision: Option<PrecisionName>,
}

/// What to run, and how to draw.
#[derive(Args, Clone, Debug)]
pub(super) struct RunArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,

    /// The text to begin with; "" is the beginning-of-text token alone, - reads standard input [may be given again:
    /// several texts grow side by side]
    #[arg(long, short, value_name = "TEXT", group = "text", allow_hyphen_values = true)]
    pub(super) prompt: Vec<String>,

    /// A file with the text to begin with; - reads standard input
    #[arg(long, value_name = "FILE", group = "text")]
    pub(super) prompt_file: Option<PathBuf>,

    /// A file with a prompt a line; in a .jsonl file each line is {"prompt": "a text"} or {"ids": [1, 403, 407]}
    #[arg(long, value_name = "FILE", group = "text")]
    pub(super) prompts: Option<PathBuf>,

    /// Token ids instead of a text: 1,403,407, or @FILE with such a list
    #[arg(long, value_name = "IDS", group = "text")]
    pub(super) ids: Option<String>,

    /// Tokens to draw: the pass over the prompt draws one, each decode pass one more
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
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub(super) temperature: f32,

    /// Draw only from the shortest run of most likely tokens with this share of the probability, of what --top-k
    /// left [default: 1, all]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
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

    /// Stage or view to open at
    #[arg(long, visible_alias = "stages", requires = "step", value_name = "NAME")]
    pub(super) stage: Option<String>,

    /// Head to open at, from 0
    #[arg(long, requires = "step", value_name = "H", value_parser = one, allow_negative_numbers = true)]
    pub(super) head: Option<usize>,

    /// Address to open at, as the tracer prints it: p0/L1/softmax[h=2,t=5,k=1], and s1/ before it for a
    /// prompt that is not the first; what is left out is the first
    #[arg(long, requires = "step", value_name = "ADDRESS", value_parser = Address::parse, conflicts_with_all = ["pass", "layer", "stage", "head"])]
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
    /// A trace that `record` wrote, in place of a prompt; --model adds the model that it was recorded from, for what takes
    /// weights
    #[arg(long, value_name = "FILE", conflicts_with_all = ["text", "tokens", "temperature", "top_p", "top_k", "seed", "stream", "context"])]
    pub(super) trace: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(super) struct OpenTraceArgs {
    /// The trace: a file that `record` wrote
    #[arg(value_name = "FILE")]
    pub(super) trace: PathBuf,

    /// Address to open at, as the tracer prints it: p0/L1/softmax[h=2,t=5,k=1], and s1/ before it for a
    /// prompt that is not the first; what is left out is the first
    #[arg(long, value_name = "ADDRESS", value_parser = Address::parse)]
    pub(super) at: Option<Address>,

    #[command(flatten)]
    pub(super) model: ModelArgs,

    #[command(flatten)]
    pub(super) cpu: CpuArgs,

    #[command(flatten)]
    pub(super) memory: MemoryArgs,

    #[command(flatten)]
    pub(super) colours: ColourArgs,
}

#[derive(Args, Debug)]
pub(super) struct ExportArgs {
    #[command(flatten)]
    pub(super) run: RunArgs,

    #[command(flatten)]
    pub(super) trace: TraceArgs,

    /// The directory to write; it must not exist, or be empty
    #[arg(long, short, value_name = "DIR")]
    pub(super) out: PathBuf,

    #[command(flatten)]
    pub(super) select: SelectArgs,

    /// What each stage is written as
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ExportFormat::Npy)]
    pub(super) format: ExportFormat,

    /// Write into a directory that is there: an earlier export in it is replaced, other files stay
    #[arg(long)]
    pub(super) force: bool,
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
    pub(super) fn refuse(self) -> crate::error::Result<()> {
        match (self.light, self.palette) {
            (false, PaletteName::RedBlue) => Ok(()),
            _ => Err(Error::usage("--light and --palette are the tracer's, and a text has no colours")
                .next("add --step, or leave them out")),
        }
    }
}

#[derive(Args, Debug)]
pub(super) struct SnapshotArgs {
    #[command(flatten)]
    pub(super) run: RunArgs,

    #[command(flatten)]
    pub(super) trace: TraceArgs,

    /// Where to look, as the tracer prints it: p0/L1/softmax[h=2,t=5,k=1]; what is left out is the first
    #[arg(long, value_name = "ADDRESS", value_parser = Address::parse)]
    pub(super) at: Option<Address>,

    /// The view, as the help screen (?) names it [default: the one that the tracer opens with]
    #[arg(long, value_name = "NAME")]
    pub(super) view: Option<String>,

    #[command(flatten)]
    pub(super) colours: ColourArgs,

    /// Columns and rows of the screen, from 1x1 to 500x200
    #[arg(long, value_name = "COLUMNSxROWS", default_value = "120x40", value_parser = ScreenSize::parse)]
    pub(super) size: ScreenSize,

    /// The file to write: .svg, .png, .html, .ansi (text with a terminal's colours) or .txt
    #[arg(long, short, value_name = "FILE")]
    pub(super) out: PathBuf,

    /// Replace a file that is there
    #[arg(long)]
    pub(super) force: bool,

    #[command(flatten)]
    pub(super) memory: MemoryArgs,
}

/// Columns and rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScreenSize(pub(super) (u16, u16));

impl ScreenSize {
    fn parse(text: &str) -> Result<Self, String> {
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

#[derive(Args, Debug)]
pub(super) struct RecordArgs {
    #[command(flatten)]
    pub(super) run: RunArgs,

    /// The file to write; nothing may be there
    #[arg(long, short, value_name = "FILE")]
    pub(super) output: PathBuf,

    /// What of the run to keep
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = KeepName::Minimal)]
    pub(super) keep: KeepName,

    /// The most bytes that the file may have, as 64MiB or 2GiB; what is left out is said before the run [default: no
    /// limit]
    #[arg(long, value_name = "SIZE", value_parser = memory::any)]
    pub(super) budget: Option<usize>,

    /// Take the place of a file that is there
    #[arg(long)]
    pub(super) force: bool,
}

#[derive(Args, Debug)]
pub(super) struct LogArgs {
    #[command(flatten)]
    pub(super) run: RunArgs,

    #[command(flatten)]
    pub(super) trace: TraceArgs,

    #[command(flatten)]
    pub(super) select: SelectArgs,

    /// Add minimum, maximum, mean and the first values of every output
    #[arg(long)]
    pub(super) values: bool,

    /// How to print
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(super) format: LogFormat,
}

#[derive(Args, Debug)]
pub(super) struct ExplainArgs {
    /// The number: p0/L1/softmax[h=2,t=5,k=1]; run, pass and layer that are left out are the first
    #[arg(value_name = "ADDRESS", value_parser = Address::parse)]
    pub(super) address: Address,

    #[command(flatten)]
    pub(super) run: RunArgs,

    #[command(flatten)]
    pub(super) trace: TraceArgs,

    /// How many terms are shown one by one, the largest first; 0 for all
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(super) terms: usize,

    /// How to print
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(super) format: LogFormat,
}

#[derive(Args, Debug)]
pub(super) struct LensArgs {
    #[command(flatten)]
    pub(super) run: RunArgs,

    #[command(flatten)]
    pub(super) trace: TraceArgs,

    /// How many of the likeliest tokens are shown
    #[arg(long, value_name = "K", default_value_t = 3, value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(super) top: usize,

    /// Positions of the text, as 0,3-5 [default: all]
    #[arg(long, value_name = "LIST", allow_negative_numbers = true)]
    pub(super) t: Option<String>,

    /// How to print
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(super) format: LogFormat,
}

#[derive(Args, Debug)]
pub(super) struct AttributeArgs {
    #[command(flatten)]
    pub(super) run: RunArgs,

    #[command(flatten)]
    pub(super) trace: TraceArgs,

    /// Position of the text whose answer it is [default: the last]
    #[arg(long, value_name = "T", value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(super) t: Option<usize>,

    /// Id of the token whose logit is split [default: the one that was drawn there, else the likeliest]
    #[arg(long, value_name = "ID", value_parser = whole::<u32>, allow_negative_numbers = true)]
    pub(super) token: Option<u32>,

    /// Id of the token that it is compared with [default: the likeliest of the others]
    #[arg(long, value_name = "ID", value_parser = whole::<u32>, allow_negative_numbers = true)]
    pub(super) against: Option<u32>,

    /// How to print
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(super) format: LogFormat,
}

#[derive(Args, Debug)]
pub(super) struct ChatArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,

    /// What the model is told before the first turn
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(super) system: Option<String>,

    /// Tokens that an answer may have [default: until it ends or the context is full]
    #[arg(short = 'n', long, value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(super) tokens: Option<usize>,

    #[command(flatten)]
    pub(super) sampling: SamplingArgs,

    #[command(flatten)]
    pub(super) cpu: CpuArgs,

    /// Tokens that the KV cache is reserved for [default: the model's context, cut to what memory is free]
    #[arg(long, value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(super) context: Option<usize>,

    #[command(flatten)]
    pub(super) memory: MemoryArgs,
}

#[derive(Args, Debug)]
pub(super) struct TokenizeArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,

    /// The text
    #[arg(value_name = "TEXT", required_unless_present = "stdin", allow_hyphen_values = true)]
    pub(super) text: Option<String>,

    /// Read the text from standard input
    #[arg(long, conflicts_with = "text")]
    pub(super) stdin: bool,

    /// Add no token at the beginning or end, and read the names of special tokens as plain text
    #[arg(long)]
    pub(super) no_special: bool,

    /// Show merge by merge how byte-pair encoding arrives at the tokens
    #[arg(long)]
    pub(super) merges: bool,

    /// How to print
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(super) format: LogFormat,
}

#[derive(Args, Debug)]
pub(super) struct BenchArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,

    /// Random weights in the shape of a known model, instead of a model
    #[arg(long, value_name = "NAME", conflicts_with_all = ["model", "ignore_config"])]
    pub(super) shape: Option<String>,

    /// Number type of the random weights
    #[arg(long, value_enum, default_value_t = Weights::Bf16, requires = "shape")]
    pub(super) weights: Weights,

    /// Lengths of the prompts to time
    #[arg(long, value_name = "LIST", default_value = "128,512", value_delimiter = ',', value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(super) prompt_tokens: Vec<usize>,

    /// Tokens to draw, one pass each
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(super) r#gen: usize,

    /// Tokens that are cached before the first of them is drawn
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(super) cached: usize,

    /// Add how fast so many texts grow side by side, each from --cached tokens on by --gen, beside one alone
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(super) batch: Vec<usize>,

    /// Add what recording a prefill of the first length costs
    #[arg(long)]
    pub(super) record: bool,

    /// Add the time of every stage, summed over the layers, in the first prefill and in a decode pass
    #[arg(long)]
    pub(super) stages: bool,

    /// How to print
    #[arg(long, value_enum, default_value_t = BenchFormat::Table)]
    pub(super) format: BenchFormat,

    #[command(flatten)]
    pub(super) cpu: CpuArgs,
}

#[derive(Args, Debug)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,

    /// The text to run [default: 40 tokens]
    #[arg(long, short, value_name = "TEXT", group = "text", allow_hyphen_values = true)]
    pub(super) prompt: Option<String>,

    /// Token ids instead of a text: 1,403,407, or @FILE with such a list
    #[arg(long, value_name = "IDS", group = "text")]
    pub(super) ids: Option<String>,

    /// The device to check
    #[arg(long, value_enum, value_name = "DEVICE", default_value_t = DeviceName::Cpu)]
    pub(super) device: DeviceName,

    /// Compute every row of every matrix again, and not a sample of 256 of each
    #[arg(long)]
    pub(super) full: bool,

    /// How to print
    #[arg(long, value_enum, default_value_t = CheckFormat::Table)]
    pub(super) format: CheckFormat,

    #[command(flatten)]
    pub(super) cpu: CpuArgs,
}

#[derive(Args, Debug)]
pub(super) struct CaptureArgs {
    /// The runtime that the script is for
    #[arg(value_enum, value_name = "RUNTIME")]
    pub(super) runtime: RuntimeName,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum RuntimeName {
    /// Hugging Face's transformers, with PyTorch
    Transformers,
}

#[derive(Args, Debug)]
pub(super) struct DiffArgs {
    /// The reference: a trace that `record` wrote, or a folder that `export` or a capture script did
    #[arg(value_name = "A", required_unless_present_any = ["set_a", "set_b"], conflicts_with_all = ["set_a", "set_b"])]
    pub(super) a: Option<PathBuf>,

    /// What is judged by it
    #[arg(value_name = "B", required_unless_present_any = ["set_a", "set_b"], conflicts_with_all = ["set_a", "set_b"])]
    pub(super) b: Option<PathBuf>,

    #[command(flatten)]
    pub(super) model: ModelArgs,

    /// The text to run, with --a and --b
    #[arg(long, short, value_name = "TEXT", group = "text", allow_hyphen_values = true)]
    pub(super) prompt: Option<String>,

    /// Token ids instead of a text: 1,403,407, or @FILE with such a list
    #[arg(long, value_name = "IDS", group = "text")]
    pub(super) ids: Option<String>,

    /// Tokens to draw, with --a and --b: the pass over the prompt draws one, each decode pass one more [default: 1]
    #[arg(short = 'n', long, value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(super) tokens: Option<usize>,

    /// How the reference runs, as precision=f32: model, precision, device, cpu-kernel, cache-dtype or threads [may be
    /// given again]
    #[arg(long = "a", value_name = "KEY=VALUE", id = "set_a", value_delimiter = ',')]
    pub(super) set_a: Vec<String>,

    /// How the run that is judged does
    #[arg(long = "b", value_name = "KEY=VALUE", id = "set_b", value_delimiter = ',')]
    pub(super) set_b: Vec<String>,

    /// How to print
    #[arg(long, value_enum, default_value_t = DiffFormat::Text)]
    pub(super) format: DiffFormat,

    #[command(flatten)]
    pub(super) cpu: CpuArgs,
}

/// How the CPU is used.
#[derive(Args, Clone, Debug)]
pub(super) struct CpuArgs {
    /// Threads to compute with [default: one for each core]
    #[arg(long, value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(super) threads: Option<usize>,

    /// Inner loops to compute with: amx, avx512bf16, avx512vnni, avx512, avx2 or portable [default: the fastest that this processor has]
    #[arg(long, value_name = "NAME")]
    pub(super) cpu_kernel: Option<String>,

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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Weights {
    F32,
    F16,
    Bf16,
    /// int8, a scale for every 32
    Q8,
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
pub(super) enum DeviceName {
    /// The processor
    Cpu,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum LogFormat {
    /// Lines to read
    Text,
    /// JSON, one object a line
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

/// A whole number of 0 or more.
fn whole<N: FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| "a whole number is expected, 0 or more".into())
}

/// The one number that the tracer opens at.
fn one(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| {
        "--step opens at one place: a whole number is expected, 0 or more (export and log take lists)".into()
    })
}
