//! The options of each command.

use std::path::PathBuf;

use clap::Args;

use super::args::{
    BenchFormat, CheckFormat, ColourArgs, CpuArgs, DEVICE, DiffFormat, EffectName, ExportFormat,
    KataLanguage, KeepName, LogFormat, MemoryArgs, MetricName, ModelArgs, PROMPT, PatchFormat, PatchPart,
    RankedPart, RunArgs, RuntimeName, SamplingArgs, ScreenArgs, ScreenSize, SelectArgs, TraceArgs, address,
    at_least_one, random_weights, whole,
};
use super::memory;
use llama_trace_core::trace::Address;
use llama_trace_formats::checkpoint::random;
use llama_trace_runs::record::Branch;

#[derive(Args, Debug)]
pub(super) struct OpenTraceArgs {
    /// A trace of `record`, or a folder from `export` or a capture script
    #[arg(value_name = "PATH")]
    pub(super) trace: PathBuf,

    /// Address to open at, as p0/L1/softmax[h=2,t=5,k=1]
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub(super) at: Option<Address>,

    #[command(flatten)]
    pub(super) screen: ScreenArgs,

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

    /// Read the prompt in passes of N tokens [default: all]
    #[arg(long, value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true, conflicts_with = "trace")]
    pub(super) chunk: Option<usize>,

    #[command(flatten)]
    pub(super) trace: TraceArgs,

    /// Directory to write; it must be new or empty
    #[arg(long, short, value_name = "DIR")]
    pub(super) out: PathBuf,

    #[command(flatten)]
    pub(super) select: SelectArgs,

    /// npy values, or heatmaps as svg or png
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ExportFormat::Npy, hide_possible_values = true)]
    pub(super) format: ExportFormat,

    /// Replace an earlier export; other files stay
    #[arg(long)]
    pub(super) force: bool,
}

#[derive(Args, Debug)]
pub(super) struct SnapshotArgs {
    #[command(flatten)]
    pub(super) run: RunArgs,

    #[command(flatten)]
    pub(super) trace: TraceArgs,

    /// Address to draw, as p0/L1/softmax[h=2,t=5,k=1]
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub(super) at: Option<Address>,

    #[command(flatten)]
    pub(super) screen: ScreenArgs,

    #[command(flatten)]
    pub(super) colours: ColourArgs,

    /// Columns and rows, from 1x1 to 500x200
    #[arg(long, value_name = "SIZE", default_value = "120x40", value_parser = ScreenSize::parse)]
    pub(super) size: ScreenSize,

    /// File to write: .svg, .png, .html, .ansi or .txt
    #[arg(long, short, value_name = "FILE")]
    pub(super) out: PathBuf,

    /// Replace the file if it exists
    #[arg(long)]
    pub(super) force: bool,

    #[command(flatten)]
    pub(super) memory: MemoryArgs,
}

#[derive(Args, Debug)]
pub(super) struct RecordArgs {
    #[command(flatten)]
    pub(super) run: RunArgs,

    /// File to write; it must not exist
    #[arg(long, short, alias = "output", value_name = "FILE")]
    pub(super) out: PathBuf,

    /// What to keep: minimal, all or stats
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = KeepName::Minimal, hide_possible_values = true)]
    pub(super) keep: KeepName,

    /// Largest size of the file, as 512MiB
    #[arg(long, value_name = "SIZE", value_parser = memory::any)]
    pub(super) budget: Option<usize>,

    /// Record a branch: token ID after a pass, as p3=412
    #[arg(long, value_name = "PASS=ID", value_parser = Branch::parse)]
    pub(super) branch: Vec<Branch>,

    /// Replace the file if it exists
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

    /// Add statistics and the first values of each output
    #[arg(long)]
    pub(super) values: bool,

    /// text or json
    #[arg(long, value_enum, default_value_t = LogFormat::Text, hide_possible_values = true)]
    pub(super) format: LogFormat,
}

#[derive(Args, Debug)]
pub(super) struct ExplainArgs {
    /// The number to explain, as p0/L1/softmax[h=2,t=5,k=1]
    #[arg(value_name = "ADDRESS", value_parser = address)]
    pub(super) address: Address,

    #[command(flatten)]
    pub(super) run: RunArgs,

    #[command(flatten)]
    pub(super) trace: TraceArgs,

    /// Terms to show, largest first; 0 for all
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(super) terms: usize,

    /// text or json
    #[arg(long, value_enum, default_value_t = LogFormat::Text, hide_possible_values = true)]
    pub(super) format: LogFormat,
}

#[derive(Args, Debug)]
pub(super) struct LensArgs {
    #[command(flatten)]
    pub(super) run: RunArgs,

    #[command(flatten)]
    pub(super) trace: TraceArgs,

    /// Likeliest tokens to show for each layer
    #[arg(long, value_name = "K", default_value_t = 3, value_parser = at_least_one, allow_negative_numbers = true)]
    pub(super) top: usize,

    /// Positions in the text, as 0,3-5 [default: all]
    #[arg(long, value_name = "LIST", allow_negative_numbers = true)]
    pub(super) t: Option<String>,

    /// text or json
    #[arg(long, value_enum, default_value_t = LogFormat::Text, hide_possible_values = true)]
    pub(super) format: LogFormat,
}

#[derive(Args, Debug)]
pub(super) struct AttributeArgs {
    #[command(flatten)]
    pub(super) run: RunArgs,

    #[command(flatten)]
    pub(super) trace: TraceArgs,

    /// Position in the text [default: the last]
    #[arg(long, value_name = "T", value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(super) t: Option<usize>,

    /// Token whose logit is split [default: the drawn one]
    #[arg(long, value_name = "ID", value_parser = whole::<u32>, allow_negative_numbers = true)]
    pub(super) token: Option<u32>,

    /// Token to compare with [default: the runner-up]
    #[arg(long, value_name = "ID", value_parser = whole::<u32>, allow_negative_numbers = true)]
    pub(super) against: Option<u32>,

    /// Rank heads, neurons: their direct and total effects
    #[arg(
        long,
        value_enum,
        value_name = "LIST",
        value_delimiter = ',',
        hide_possible_values = true,
        conflicts_with = "trace"
    )]
    pub(super) parts: Vec<RankedPart>,

    /// Order of --parts: direct or total
    #[arg(long, value_enum, value_name = "NAME", default_value_t = EffectName::Direct, hide_possible_values = true, requires = "parts")]
    pub(super) by: EffectName,

    /// Number of --parts to list
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = at_least_one, allow_negative_numbers = true, requires = "parts")]
    pub(super) top: usize,

    /// text or json
    #[arg(long, value_enum, default_value_t = LogFormat::Text, hide_possible_values = true)]
    pub(super) format: LogFormat,
}

#[derive(Args, Debug)]
pub(super) struct PatchArgs {
    /// Prompt with the right answer
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, required_unless_present = "clean_ids")]
    pub(super) clean: Option<String>,

    /// Prompt of equal length with another answer
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, required_unless_present = "corrupted_ids")]
    pub(super) corrupted: Option<String>,

    /// Token ids instead of --clean: 1,403,407 or @FILE
    #[arg(long, value_name = "ID", conflicts_with = "clean")]
    pub(super) clean_ids: Option<String>,

    /// Token ids instead of --corrupted
    #[arg(long, value_name = "ID", conflicts_with = "corrupted")]
    pub(super) corrupted_ids: Option<String>,

    /// residual,attn,ffn [default], heads, neurons
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',', default_values = ["residual", "attn", "ffn"], hide_default_value = true, hide_possible_values = true)]
    pub(super) parts: Vec<PatchPart>,

    /// logit-diff, prob or kl
    #[arg(long, value_enum, value_name = "NAME", default_value_t = MetricName::LogitDiff, hide_possible_values = true)]
    pub(super) metric: MetricName,

    /// Right token, id or text [default: clean's answer]
    #[arg(long, value_name = "TOKEN", allow_hyphen_values = true)]
    pub(super) answer: Option<String>,

    /// Wrong token [default: corrupted's answer]
    #[arg(long, value_name = "TOKEN", allow_hyphen_values = true)]
    pub(super) wrong: Option<String>,

    /// Neurons to patch
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = at_least_one, allow_negative_numbers = true)]
    pub(super) top: usize,

    /// text, json or svg
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = PatchFormat::Text, hide_possible_values = true)]
    pub(super) format: PatchFormat,

    #[command(flatten)]
    pub(super) model: ModelArgs,

    #[command(flatten)]
    pub(super) cpu: CpuArgs,
}

#[derive(Args, Debug)]
pub(super) struct ChatArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,

    /// System message before the first turn
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(super) system: Option<String>,

    /// Longest answer, in tokens [default: no limit]
    #[arg(short = 'n', long, value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(super) tokens: Option<usize>,

    #[command(flatten)]
    pub(super) sampling: SamplingArgs,

    #[command(flatten)]
    pub(super) cpu: CpuArgs,

    /// Tokens of the KV cache [default: the context]
    #[arg(long, value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true, help_heading = DEVICE)]
    pub(super) context: Option<usize>,

    #[command(flatten)]
    pub(super) memory: MemoryArgs,
}

#[derive(Args, Debug)]
pub(super) struct TokenizeArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,

    /// The text to split; - reads standard input
    #[arg(value_name = "TEXT", required_unless_present = "stdin", allow_hyphen_values = true)]
    pub(super) text: Option<String>,

    /// Read the text from standard input
    #[arg(long, conflicts_with = "text")]
    pub(super) stdin: bool,

    /// Do not add or read special tokens
    #[arg(long)]
    pub(super) no_special: bool,

    /// Show each merge of byte-pair encoding
    #[arg(long)]
    pub(super) merges: bool,

    /// text or json
    #[arg(long, value_enum, default_value_t = LogFormat::Text, hide_possible_values = true)]
    pub(super) format: LogFormat,
}

#[derive(Args, Debug)]
pub(super) struct BenchArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,

    /// Random weights in a known shape, as llama-3.2-1b
    #[arg(long, value_name = "NAME", conflicts_with_all = ["model", "ignore_config"])]
    pub(super) shape: Option<String>,

    /// Number type of the weights, as q8_0
    #[arg(long, value_name = "TYPE", default_value = "bf16", value_parser = random_weights(), requires = "shape", hide_possible_values = true)]
    pub(super) weights: random::Weights,

    /// Prompt lengths to time [default: 128,512; GPU: 2048]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(super) prompt_tokens: Vec<usize>,

    /// Tokens to draw, one a pass [default: 64]
    #[arg(long, value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(super) r#gen: Option<usize>,

    /// Tokens already cached [default: 8; GPU: 128,32768]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(super) cached: Vec<usize>,

    /// Texts to generate together [default: none; GPU: 16]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(super) batch: Vec<usize>,

    /// Add the cost of recording
    #[arg(long)]
    pub(super) record: bool,

    /// Add the cost of a causal heatmap over N tokens
    #[arg(long, value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(super) patch: Option<usize>,

    /// Add the time of every stage
    #[arg(long)]
    pub(super) stages: bool,

    /// Time every kernel; print a line for processor.rs
    #[arg(long, conflicts_with = "cpu_kernel")]
    pub(super) tune: bool,

    /// table or json
    #[arg(long, value_enum, default_value_t = BenchFormat::Table, hide_possible_values = true)]
    pub(super) format: BenchFormat,

    #[command(flatten)]
    pub(super) cpu: CpuArgs,
}

#[derive(Args, Debug)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,

    /// Text to run [default: 40 tokens]
    #[arg(long, short, value_name = "TEXT", group = "text", allow_hyphen_values = true, help_heading = PROMPT)]
    pub(super) prompt: Option<String>,

    /// Token ids instead of a text: 1,403,407 or @FILE
    #[arg(long, value_name = "IDS", group = "text", help_heading = PROMPT)]
    pub(super) ids: Option<String>,

    /// Recompute every row of every matrix, not a sample
    #[arg(long)]
    pub(super) full: bool,

    /// table or json
    #[arg(long, value_enum, default_value_t = CheckFormat::Table, hide_possible_values = true)]
    pub(super) format: CheckFormat,

    #[command(flatten)]
    pub(super) cpu: CpuArgs,
}

#[derive(Args, Debug)]
pub(super) struct KataArgs {
    /// Stage to write, as rms_norm, or all [default: list them]
    #[arg(value_name = "STAGE")]
    pub(super) stage: Option<String>,

    /// Skeleton in python or rust
    #[arg(long, value_enum, value_name = "NAME", default_value_t = KataLanguage::Python, hide_possible_values = true)]
    pub(super) lang: KataLanguage,

    /// Judge a program: 'python3 rms_norm.py'
    #[arg(long, value_name = "CMD", allow_hyphen_values = true, requires = "stage")]
    pub(super) run: Option<String>,

    /// Seconds that one start may take
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = at_least_one, allow_negative_numbers = true)]
    pub(super) timeout: usize,

    /// Seed of the random model [default: a new one]
    #[arg(long, value_name = "SEED", value_parser = whole::<u64>, allow_negative_numbers = true)]
    pub(super) seed: Option<u64>,

    /// With all: folder of the finished STAGE.* files
    #[arg(long, value_name = "DIR", conflicts_with = "run")]
    pub(super) dir: Option<PathBuf>,

    /// With all: command that starts each file
    #[arg(long, value_name = "CMD", allow_hyphen_values = true, requires = "dir")]
    pub(super) run_with: Option<String>,

    /// With all: text to begin with
    #[arg(long, short, value_name = "TEXT", allow_hyphen_values = true, requires = "dir")]
    pub(super) prompt: Option<String>,

    /// With all: tokens to draw
    #[arg(short = 'n', long, value_name = "N", default_value_t = 5, value_parser = at_least_one, allow_negative_numbers = true)]
    pub(super) tokens: usize,
}

#[derive(Args, Debug)]
pub(super) struct CaptureArgs {
    /// Runtime that the script is for
    #[arg(value_enum, value_name = "RUNTIME")]
    pub(super) runtime: RuntimeName,
}

#[derive(Args, Debug)]
#[command(mut_arg("model", |model| model.help("Model of A [default: none; with --a, --b: built-in]")))]
pub(super) struct DiffArgs {
    /// The reference: a trace, or a folder from `export` or a capture script
    #[arg(value_name = "A", conflicts_with_all = ["set_a", "set_b"])]
    pub(super) a: Option<PathBuf>,

    /// The run to judge
    #[arg(value_name = "B", conflicts_with_all = ["set_a", "set_b"])]
    pub(super) b: Option<PathBuf>,

    #[command(flatten)]
    pub(super) model: ModelArgs,

    /// Text to run, with --a and --b
    #[arg(long, short, value_name = "TEXT", group = "text", allow_hyphen_values = true, help_heading = PROMPT)]
    pub(super) prompt: Option<String>,

    /// Token ids instead of a text: 1,403,407 or @FILE
    #[arg(long, value_name = "IDS", group = "text", help_heading = PROMPT)]
    pub(super) ids: Option<String>,

    /// Tokens to draw, with --a and --b [default: 1]
    #[arg(short = 'n', long, value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true, help_heading = PROMPT)]
    pub(super) tokens: Option<usize>,

    /// Setting of the reference run, as precision=f32
    #[arg(long = "a", value_name = "KEY=VALUE", id = "set_a", value_delimiter = ',')]
    pub(super) set_a: Vec<String>,

    /// Setting of the judged run, as precision=bf16
    #[arg(long = "b", value_name = "KEY=VALUE", id = "set_b", value_delimiter = ',')]
    pub(super) set_b: Vec<String>,

    /// Compute every row of every matrix, not a sample
    #[arg(long)]
    pub(super) full: bool,

    /// text, json or junit
    #[arg(long, value_enum, default_value_t = DiffFormat::Text, hide_possible_values = true)]
    pub(super) format: DiffFormat,

    /// Open the tracer on both, at the first difference
    #[arg(long, conflicts_with = "format")]
    pub(super) tui: bool,

    /// Propose a capture.toml for the folder B
    #[arg(long, conflicts_with_all = ["format", "tui"])]
    pub(super) suggest_map: bool,

    #[command(flatten)]
    pub(super) cpu: CpuArgs,
}
