//! The options of each command.

use std::path::PathBuf;

use clap::Args;

use super::args::{
    BenchFormat, CheckFormat, ColourArgs, CpuArgs, DiffFormat, ExportFormat, KeepName, LogFormat, MemoryArgs,
    ModelArgs, RunArgs, RuntimeName, SamplingArgs, ScreenSize, SelectArgs, TraceArgs, address, at_least_one,
    random_weights, whole,
};
use super::memory;
use llama_trace_core::trace::Address;
use llama_trace_formats::checkpoint::random;
use llama_trace_runs::record::Branch;

#[derive(Args, Debug)]
pub(super) struct OpenTraceArgs {
    /// A trace that `record` wrote, or a folder that `export` or a capture script did
    #[arg(value_name = "PATH")]
    pub(super) trace: PathBuf,

    /// Address to open at, as the tracer prints it: p0/L1/softmax[h=2,t=5,k=1], and s1/ before it for a
    /// prompt that is not the first; what is left out is the last token, of attention its largest key, and 0 on
    /// other axes
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
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

    /// Read the prompt N tokens at a time, a pass each, as some runtimes do [default: all of it in one pass]
    #[arg(long, value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true, conflicts_with = "trace")]
    pub(super) chunk: Option<usize>,

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

#[derive(Args, Debug)]
pub(super) struct SnapshotArgs {
    #[command(flatten)]
    pub(super) run: RunArgs,

    #[command(flatten)]
    pub(super) trace: TraceArgs,

    /// Where to look, as the tracer prints it: p0/L1/softmax[h=2,t=5,k=1]; what is left out is the last token, of
    /// attention its largest key, and 0 on other axes
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
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

#[derive(Args, Debug)]
pub(super) struct RecordArgs {
    #[command(flatten)]
    pub(super) run: RunArgs,

    /// The file to write; nothing may be there
    #[arg(long, short, alias = "output", value_name = "FILE")]
    pub(super) out: PathBuf,

    /// What of the run to keep
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = KeepName::Minimal)]
    pub(super) keep: KeepName,

    /// The most bytes that the file may have, as 64MiB or 2GiB; what is left out is said before the run [default: no
    /// limit]
    #[arg(long, value_name = "SIZE", value_parser = memory::any)]
    pub(super) budget: Option<usize>,

    /// Record a branch too: after which pass, and the id of the token that follows there, as p3=412 [may be given
    /// again: the first is r1; r1:p5=7 parts from that, s1/p3=412 from another prompt's]
    #[arg(long, value_name = "PASS=ID", value_parser = Branch::parse)]
    pub(super) branch: Vec<Branch>,

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
    #[arg(value_name = "ADDRESS", value_parser = address)]
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
    #[arg(long, value_name = "K", default_value_t = 3, value_parser = at_least_one, allow_negative_numbers = true)]
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
    #[arg(long, default_value = "bf16", value_parser = random_weights(), requires = "shape")]
    pub(super) weights: random::Weights,

    /// Lengths of the prompts to time [default: 128,512; on a GPU 2048]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(super) prompt_tokens: Vec<usize>,

    /// Tokens to draw, one pass each
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(super) r#gen: usize,

    /// Tokens that are cached before the first of them is drawn [default: 8; on a GPU 128,32768]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(super) cached: Vec<usize>,

    /// Add how fast so many texts grow side by side, each from the first of --cached tokens on by --gen, beside one alone
    /// [default: none; on a GPU 16]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(super) batch: Vec<usize>,

    /// Add what recording a prefill of the first length costs, and a layer of a decode pass
    #[arg(long)]
    pub(super) record: bool,

    /// Add the time of every stage, summed over the layers, in the first prefill and in a decode pass
    #[arg(long)]
    pub(super) stages: bool,

    /// Add how fast each kernel is, and the line of the table of processors that makes the fastest the one that runs
    #[arg(long, conflicts_with = "cpu_kernel")]
    pub(super) tune: bool,

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

#[derive(Args, Debug)]
#[command(mut_arg("model", |model| model.help("The model that A comes from, as for other commands: with it each stage is computed from the run's own inputs, tolerances are measured and known mistakes are tried [default: none, and a table of tolerances; with --a and --b the built-in model]")))]
pub(super) struct DiffArgs {
    /// The reference: a trace that `record` wrote, or a folder that `export` or a capture script did
    #[arg(value_name = "A", conflicts_with_all = ["set_a", "set_b"])]
    pub(super) a: Option<PathBuf>,

    /// What is judged by it
    #[arg(value_name = "B", conflicts_with_all = ["set_a", "set_b"])]
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

    /// How the reference runs, as precision=f32: model, without, precision, device, cpu-kernel, cache-dtype or threads [may
    /// be given again]
    #[arg(long = "a", value_name = "KEY=VALUE", id = "set_a", value_delimiter = ',')]
    pub(super) set_a: Vec<String>,

    /// How the run that is judged does
    #[arg(long = "b", value_name = "KEY=VALUE", id = "set_b", value_delimiter = ',')]
    pub(super) set_b: Vec<String>,

    /// With a model: compute every row of every matrix, and not a sample of 256 of each and those that stand out
    #[arg(long)]
    pub(super) full: bool,

    /// How to print
    #[arg(long, value_enum, default_value_t = DiffFormat::Text)]
    pub(super) format: DiffFormat,

    /// Show A and B side by side, at the first stage that differs
    #[arg(long, conflicts_with = "format")]
    pub(super) tui: bool,

    /// Print a capture.toml for the folder B, proposed by names, shapes and the values of A
    #[arg(long, conflicts_with_all = ["format", "tui"])]
    pub(super) suggest_map: bool,

    #[command(flatten)]
    pub(super) cpu: CpuArgs,
}
