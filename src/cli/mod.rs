//! The command line: what it looks like, and one short file for each thing it does.

mod asked;
mod attribute;
mod bench;
mod chat;
mod check;
mod device;
mod explain;
mod export;
mod generate;
mod hub;
mod info;
mod input;
mod lens;
mod log;
mod memory;
mod output;
mod progress;
mod prompt;
#[cfg(test)]
mod recorded;
mod shell;
mod step;
mod threads;
mod tokenize;

use std::fmt::Display;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::error::{Result, printable, printable_text};
use crate::trace::Address;

/// Step through a real Llama: every stage of the forward pass, with true shapes and true values.
#[derive(Debug, Parser)]
#[command(version, about, args_conflicts_with_subcommands = true, after_help = AFTER_HELP)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    run: RunArgs,

    /// How to print the texts [default: text]
    #[arg(long, value_enum, value_name = "FORMAT", conflicts_with = "step")]
    format: Option<LogFormat>,

    /// Open the tracer instead of printing the text
    #[arg(long)]
    step: bool,

    #[command(flatten)]
    open: OpenArgs,

    #[command(flatten)]
    memory: MemoryArgs,
}

const AFTER_HELP: &str = "\
With nothing at all it opens the tracer on the built-in model.

Examples:
  llama-trace --prompt \"Once upon a time\" --step
  llama-trace --prompt \"Once upon a time\" -n 60
  llama-trace --prompts questions.jsonl --format json
  llama-trace --model ~/models/Llama-3.2-1B --prompt \"The capital of France is\" --step --layer 3 --stage softmax
  llama-trace --model meta-llama/Llama-3.2-1B --prompt \"The capital of France is\"
  llama-trace chat --system \"You explain how Llama works.\"
  llama-trace log --prompt \"Hello\" --values --layer 0 --stage scores,softmax
  llama-trace export --prompt \"Hello\" --out dump -n 3
  llama-trace tokenize \"Hello world\" --merges

Exit codes: 0 done, 1 a check does not hold, 2 wrong options, 3 wrong model or tokenizer file, 4 wrong prompt,
5 the output cannot be written, 6 no terminal, 130 interrupted.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Write every stage of the pass as .npy files with a manifest
    Export(ExportArgs),
    /// Print the forward pass in order, one line a step
    Log(LogArgs),
    /// Show where a number comes from: its operands, the largest first
    Explain(ExplainArgs),
    /// Show what the model would answer after each layer: the logit lens
    Lens(LensArgs),
    /// Show what each head and each feed-forward network added to an answer
    Attribute(AttributeArgs),
    /// Talk with the model, turn by turn; lines that are piped in are the turns
    Chat(ChatArgs),
    /// Show the configuration, every tensor, and what a trace would take
    Info(ModelArgs),
    /// Show the tokens of a text, and how merging arrives at them
    Tokenize(TokenizeArgs),
    /// Measure this machine's limits, and how near to them a model runs
    Bench(BenchArgs),
    /// Show on this machine and this model that the numbers are right
    Check(CheckArgs),
    /// Print a script that completes these commands and options in a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, for man: llama-trace man > llama-trace.1
    Man {
        /// One of the commands, instead of the whole program
        command: Option<String>,
    },
}

/// Which model.
#[derive(Args, Clone, Debug)]
struct ModelArgs {
    /// A directory in Hugging Face's or Meta's layout or one of its weights' files, a GGUF file, a llama2.c .bin
    /// file, or org/name[@revision] from the Hugging Face hub (org/name:FILE for a GGUF file of it) [default: the
    /// built-in model]
    #[arg(long, short, value_name = "MODEL")]
    model: Option<PathBuf>,

    /// Open models of the hub from the cache, without asking the hub
    #[arg(long)]
    offline: bool,

    /// tokenizer.json, tokenizer.model, a GGUF file or llama2.c's tokenizer.bin [default: the one in or beside the
    /// model]
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,

    /// Factor of the model's RoPE scaling, where its files say another or none
    #[arg(long, value_name = "FACTOR", allow_negative_numbers = true)]
    rope_factor: Option<f32>,

    /// Open the model as if its configuration had not this field, which would be refused [may be given again]
    #[arg(long, value_name = "FIELD")]
    ignore_config: Vec<String>,

    /// Arithmetic to run in [default: q8 where the weights are int8 or in blocks, else f32]
    #[arg(long, value_enum, value_name = "PRECISION")]
    precision: Option<PrecisionName>,
}

/// What to run, and how to draw.
#[derive(Args, Clone, Debug)]
struct RunArgs {
    #[command(flatten)]
    model: ModelArgs,

    /// The text to begin with; "" is the beginning-of-text token alone, - reads standard input [may be given again:
    /// several texts grow side by side]
    #[arg(long, short, value_name = "TEXT", group = "text", allow_hyphen_values = true)]
    prompt: Vec<String>,

    /// A file with the text to begin with; - reads standard input
    #[arg(long, value_name = "FILE", group = "text")]
    prompt_file: Option<PathBuf>,

    /// A file with a prompt a line; in a .jsonl file each line is {"prompt": "a text"} or {"ids": [1, 403, 407]}
    #[arg(long, value_name = "FILE", group = "text")]
    prompts: Option<PathBuf>,

    /// Token ids instead of a text: 1,403,407, or @FILE with such a list
    #[arg(long, value_name = "IDS", group = "text")]
    ids: Option<String>,

    /// Tokens to draw: the pass over the prompt draws one, each decode pass one more
    #[arg(short = 'n', long, value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true)]
    tokens: Option<usize>,

    #[command(flatten)]
    sampling: SamplingArgs,

    /// Stream of the seed's random numbers that the first prompt draws from; each prompt after it has the next one, so
    /// that --stream I draws for one prompt what number I of several drew [default: 0]
    #[arg(long, value_name = "I", value_parser = whole::<u64>, allow_negative_numbers = true)]
    stream: Option<u64>,

    #[command(flatten)]
    cpu: CpuArgs,

    /// Tokens that the KV cache is reserved for [default: the prompt and -n; with --step the model's context, cut to
    /// what memory is free, which several prompts share]
    #[arg(long, value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true)]
    context: Option<usize>,
}

/// How to draw the next token.
#[derive(Args, Clone, Debug)]
struct SamplingArgs {
    /// 0 takes the most likely token; 1 draws from the model's own probabilities
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    temperature: f32,

    /// Draw only from the shortest run of most likely tokens with this share of the probability, of what --top-k
    /// left [default: 1, all]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f32>,

    /// Draw only from this many most likely tokens [default: 0, no limit]
    #[arg(long, value_name = "K", value_parser = whole::<usize>, allow_negative_numbers = true)]
    top_k: Option<usize>,

    /// Where the random numbers start; the same seed draws the same text [default: 0]
    #[arg(long, value_name = "SEED", value_parser = whole::<u64>, allow_negative_numbers = true)]
    seed: Option<u64>,
}

/// Where the tracer opens.
#[derive(Args, Clone, Debug)]
struct OpenArgs {
    /// Pass to open at; 0 is the one over the prompt, more are run with -n
    #[arg(long, visible_alias = "passes", requires = "step", value_name = "P", value_parser = one, allow_negative_numbers = true)]
    pass: Option<usize>,

    /// Layer to open at, from 0
    #[arg(long, visible_alias = "layers", requires = "step", value_name = "L", value_parser = one, allow_negative_numbers = true)]
    layer: Option<usize>,

    /// Stage or view to open at
    #[arg(long, visible_alias = "stages", requires = "step", value_name = "NAME")]
    stage: Option<String>,

    /// Head to open at, from 0
    #[arg(long, requires = "step", value_name = "H", value_parser = one, allow_negative_numbers = true)]
    head: Option<usize>,

    /// Address to open at, as the tracer prints it: p0/L1/softmax[h=2,t=5,k=1], and s1/ before it for a
    /// prompt that is not the first; what is left out is the first
    #[arg(long, requires = "step", value_name = "ADDRESS", value_parser = Address::parse, conflicts_with_all = ["pass", "layer", "stage", "head"])]
    at: Option<Address>,
}

/// Which part of a run.
#[derive(Args, Clone, Debug)]
struct SelectArgs {
    /// Passes, as 0-2 or 0,2 [default: all]
    #[arg(long, visible_alias = "passes", value_name = "LIST", allow_negative_numbers = true)]
    pass: Option<String>,

    /// Layers, as 0,3-5 [default: all]; what is outside the layers stays
    #[arg(long, visible_alias = "layers", value_name = "LIST", allow_negative_numbers = true)]
    layer: Option<String>,

    /// Stages, as xq,softmax [default: all]
    #[arg(long, visible_alias = "stages", value_name = "LIST")]
    stage: Option<String>,
}

/// What the tracer may hold.
#[derive(Args, Clone, Copy, Debug)]
struct MemoryArgs {
    /// Memory for the values that the tracer holds, of all prompts together, as 64MiB or 2GiB; what has no room is computed again when it is
    /// looked at [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = memory::parse)]
    memory: Option<usize>,
}

#[derive(Args, Debug)]
struct ExportArgs {
    #[command(flatten)]
    run: RunArgs,

    /// The directory to write; it must not exist, or be empty
    #[arg(long, short, value_name = "DIR")]
    out: PathBuf,

    #[command(flatten)]
    select: SelectArgs,

    /// Write into a directory that is there: an earlier export in it is replaced, other files stay
    #[arg(long)]
    force: bool,
}

#[derive(Args, Debug)]
struct LogArgs {
    #[command(flatten)]
    run: RunArgs,

    #[command(flatten)]
    select: SelectArgs,

    /// Add minimum, maximum, mean and the first values of every output
    #[arg(long)]
    values: bool,

    /// How to print
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    format: LogFormat,
}

#[derive(Args, Debug)]
struct ExplainArgs {
    /// The number: p0/L1/softmax[h=2,t=5,k=1]; run, pass and layer that are left out are the first
    #[arg(value_name = "ADDRESS", value_parser = Address::parse)]
    address: Address,

    #[command(flatten)]
    run: RunArgs,

    /// How many terms are shown one by one, the largest first; 0 for all
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = whole::<usize>, allow_negative_numbers = true)]
    terms: usize,

    /// How to print
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    format: LogFormat,
}

#[derive(Args, Debug)]
struct LensArgs {
    #[command(flatten)]
    run: RunArgs,

    /// How many of the likeliest tokens are shown
    #[arg(long, value_name = "K", default_value_t = 3, value_parser = whole::<usize>, allow_negative_numbers = true)]
    top: usize,

    /// Positions of the text, as 0,3-5 [default: all]
    #[arg(long, value_name = "LIST", allow_negative_numbers = true)]
    t: Option<String>,

    /// How to print
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    format: LogFormat,
}

#[derive(Args, Debug)]
struct AttributeArgs {
    #[command(flatten)]
    run: RunArgs,

    /// Position of the text whose answer it is [default: the last]
    #[arg(long, value_name = "T", value_parser = whole::<usize>, allow_negative_numbers = true)]
    t: Option<usize>,

    /// Id of the token whose logit is split [default: the one that was drawn there, else the likeliest]
    #[arg(long, value_name = "ID", value_parser = whole::<u32>, allow_negative_numbers = true)]
    token: Option<u32>,

    /// Id of the token that it is compared with [default: the likeliest of the others]
    #[arg(long, value_name = "ID", value_parser = whole::<u32>, allow_negative_numbers = true)]
    against: Option<u32>,

    /// How to print
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    format: LogFormat,
}

#[derive(Args, Debug)]
struct ChatArgs {
    #[command(flatten)]
    model: ModelArgs,

    /// What the model is told before the first turn
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,

    /// Tokens that an answer may have [default: until it ends or the context is full]
    #[arg(short = 'n', long, value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true)]
    tokens: Option<usize>,

    #[command(flatten)]
    sampling: SamplingArgs,

    #[command(flatten)]
    cpu: CpuArgs,

    /// Tokens that the KV cache is reserved for [default: the model's context, cut to what memory is free]
    #[arg(long, value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true)]
    context: Option<usize>,

    #[command(flatten)]
    memory: MemoryArgs,
}

#[derive(Args, Debug)]
struct TokenizeArgs {
    #[command(flatten)]
    model: ModelArgs,

    /// The text
    #[arg(value_name = "TEXT", required_unless_present = "stdin", allow_hyphen_values = true)]
    text: Option<String>,

    /// Read the text from standard input
    #[arg(long, conflicts_with = "text")]
    stdin: bool,

    /// Add no token at the beginning or end, and read the names of special tokens as plain text
    #[arg(long)]
    no_special: bool,

    /// Show merge by merge how byte-pair encoding arrives at the tokens
    #[arg(long)]
    merges: bool,

    /// How to print
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    format: LogFormat,
}

#[derive(Args, Debug)]
struct BenchArgs {
    #[command(flatten)]
    model: ModelArgs,

    /// Random weights in the shape of a known model, instead of a model
    #[arg(long, value_name = "NAME", conflicts_with_all = ["model", "ignore_config"])]
    shape: Option<String>,

    /// Number type of the random weights
    #[arg(long, value_enum, default_value_t = Weights::Bf16, requires = "shape")]
    weights: Weights,

    /// Lengths of the prompts to time
    #[arg(long, value_name = "LIST", default_value = "128,512", value_delimiter = ',', value_parser = whole::<usize>, allow_negative_numbers = true)]
    prompt_tokens: Vec<usize>,

    /// Tokens to draw, one pass each
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = whole::<usize>, allow_negative_numbers = true)]
    r#gen: usize,

    /// Tokens that are cached before the first of them is drawn
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = whole::<usize>, allow_negative_numbers = true)]
    cached: usize,

    /// Add how fast so many texts grow side by side, each from --cached tokens on by --gen, beside one alone
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = whole::<usize>, allow_negative_numbers = true)]
    batch: Vec<usize>,

    /// Add what recording a prefill of the first length costs
    #[arg(long)]
    record: bool,

    /// Add the time of every stage, summed over the layers, in the first prefill and in a decode pass
    #[arg(long)]
    stages: bool,

    /// How to print
    #[arg(long, value_enum, default_value_t = BenchFormat::Table)]
    format: BenchFormat,

    #[command(flatten)]
    cpu: CpuArgs,
}

#[derive(Args, Debug)]
struct CheckArgs {
    #[command(flatten)]
    model: ModelArgs,

    /// The text to run [default: 40 tokens]
    #[arg(long, short, value_name = "TEXT", group = "text", allow_hyphen_values = true)]
    prompt: Option<String>,

    /// Token ids instead of a text: 1,403,407, or @FILE with such a list
    #[arg(long, value_name = "IDS", group = "text")]
    ids: Option<String>,

    /// The device to check
    #[arg(long, value_enum, value_name = "DEVICE", default_value_t = DeviceName::Cpu)]
    device: DeviceName,

    /// Compute every row of every matrix again, and not a sample of 256 of each
    #[arg(long)]
    full: bool,

    /// How to print
    #[arg(long, value_enum, default_value_t = CheckFormat::Table)]
    format: CheckFormat,

    #[command(flatten)]
    cpu: CpuArgs,
}

/// How the CPU is used.
#[derive(Args, Clone, Debug)]
struct CpuArgs {
    /// Threads to compute with [default: one for each core]
    #[arg(long, value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true)]
    threads: Option<usize>,

    /// Inner loops to compute with: amx, avx512bf16, avx512vnni, avx512, avx2 or portable [default: the fastest that this processor has]
    #[arg(long, value_name = "NAME")]
    cpu_kernel: Option<String>,

    /// Number type of the cached keys and values [default: bf16 in --precision bf16, else f32]
    #[arg(long, value_enum, value_name = "TYPE")]
    cache_dtype: Option<CacheDtypeName>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PrecisionName {
    /// Every stage in float32, the weights as they are stored
    F32,
    /// As PyTorch runs a bfloat16 model: every stage's result rounded to bfloat16
    Bf16,
    /// Matrix products in whole numbers: activations in int8, one scale a group; weights as they are stored in int8 or
    /// in blocks, or else quantised too
    Q8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CacheDtypeName {
    /// Exactly what was computed
    F32,
    /// Rounded to float16
    F16,
    /// Rounded to bfloat16
    Bf16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Weights {
    F32,
    F16,
    Bf16,
    /// int8, a scale for every 32
    Q8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BenchFormat {
    /// Lines to read
    Table,
    /// One JSON object
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CheckFormat {
    /// Lines to read
    Table,
    /// One JSON object
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DeviceName {
    /// The processor
    Cpu,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// Lines to read
    Text,
    /// JSON, one object a line
    Json,
}

/// A whole number of 0 or more.
fn whole<N: FromStr>(text: &str) -> std::result::Result<N, String> {
    text.parse().map_err(|_| "a whole number is expected, 0 or more".into())
}

/// The one number that the tracer opens at.
fn one(text: &str) -> std::result::Result<usize, String> {
    text.parse().map_err(|_| {
        "--step opens at one place: a whole number is expected, 0 or more (export and log take lists)".into()
    })
}

/// Said when a run met values that are not a number.
const NOT_A_NUMBER: &str = "Some logits are not a number (NaN): look for the first stage that has one with `llama-trace log --values`.";

/// Takes back what an export left half done that ended with `left`, its temporary folder.
///
/// # Errors
/// Where that cannot be done: some of what was there before is in `left`.
pub fn take_back_export(left: &Path) -> io::Result<()> {
    export::take_back_left(left)
}

/// Whether this process was started by `llama-trace chat`, to do nothing but [`render_template`].
pub fn renders_templates() -> bool {
    std::env::args_os().skip(1).eq([chat::ARGUMENT])
}

/// Renders a chat template that somebody else wrote, within limits that the process takes upon itself. What it is
/// told comes from standard input, and what it says goes to standard output.
pub fn render_template() -> ExitCode {
    chat::serve()
}

/// Writes a line to standard error; what is not ours in it cannot drive the terminal. Where that is gone too, as
/// with a terminal that was closed, there is
/// nobody left to tell.
pub fn tell(line: impl Display) {
    drop(writeln!(io::stderr(), "{}", printable_text(&line.to_string())));
}

/// Ends the program with what is wrong with the command line, or with the help that it asks for. The words that are
/// repeated are harmless ones.
pub fn refuse(error: &clap::Error) -> ! {
    let words = std::env::args_os().map(|word| printable(&word.to_string_lossy()).into_owned());
    if error.use_stderr()
        && let Err(error) = Cli::try_parse_from(words)
    {
        error.exit()
    }
    error.exit()
}

impl Cli {
    /// Does what the command line asks for.
    ///
    /// # Errors
    /// Whatever goes wrong; [`crate::error::Error::exit_code`] is the process's.
    pub fn run(self) -> Result<()> {
        match self.command {
            Some(Command::Export(args)) => device::run(&args),
            Some(Command::Log(args)) => device::run(&args),
            Some(Command::Explain(args)) => device::run(&args),
            Some(Command::Lens(args)) => device::run(&args),
            Some(Command::Attribute(args)) => device::run(&args),
            Some(Command::Chat(args)) => device::run(&args),
            Some(Command::Info(args)) => info::run(&args),
            Some(Command::Tokenize(args)) => tokenize::run(&args),
            Some(Command::Bench(args)) => device::run(&args),
            Some(Command::Check(args)) => device::run_on(args.device, &args),
            Some(Command::Completions { shell }) => shell::completions(shell),
            Some(Command::Man { command }) => shell::man(command.as_deref()),
            None if self.step || !(self.run.has_prompt() || self.format.is_some()) => {
                device::run(step::Tracer { run: &self.run, open: &self.open, memory: &self.memory })
            }
            None => {
                let format = self.format.unwrap_or(LogFormat::Text);
                device::run(generate::Text { run: &self.run, memory: &self.memory, format })
            }
        }
    }
}

impl RunArgs {
    fn has_prompt(&self) -> bool {
        let RunArgs { prompt, prompt_file, prompts, ids, .. } = self;
        !prompt.is_empty() || prompt_file.is_some() || prompts.is_some() || ids.is_some()
    }
}
