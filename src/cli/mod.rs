//! The command line: its options, and one short file for each command.

mod args;
mod asked;
mod attribute;
mod bench;
#[cfg_attr(not(feature = "capture"), path = "no_capture.rs")]
mod capture;
mod chat;
mod check;
mod commands;
mod device;
mod diff;
mod edited;
mod edits;
mod explain;
mod export;
mod further;
mod generate;
mod help;
#[cfg_attr(not(feature = "hub"), path = "no_hub.rs")]
mod hub;
mod info;
mod input;
mod kata;
mod learn;
mod lens;
mod log;
mod memory;
mod needs;
mod open;
mod output;
mod page;
mod patch;
mod progress;
mod prompt;
#[cfg(feature = "cuda")]
mod ready;
mod record;
mod room;
mod shell;
mod snapshot;
mod step;
mod threads;
mod tokenize;
mod traced;
mod traced_runs;
mod unquoted;
mod vocabulary;

pub use self::diff::verdict;

use std::fmt::Display;
use std::io::{self, Write};
use std::process::{self, ExitCode};

use clap::error::ContextValue;
use clap::{ArgAction, Parser, Subcommand};

use args::{
    BenchFormat, CacheDtypeName, CheckFormat, ColourArgs, CpuArgs, DeviceName, DiffFormat, EffectName,
    KeepName, LogFormat, MemoryArgs, MetricName, ModelArgs, OpenArgs, PatchFormat, PatchPart, PrecisionName,
    RankedPart, RunArgs, SamplingArgs, SelectArgs, TraceArgs,
};
use commands::{
    AttributeArgs, BenchArgs, CaptureArgs, ChatArgs, CheckArgs, DiffArgs, ExplainArgs, ExportArgs, KataArgs,
    LensArgs, LogArgs, OpenTraceArgs, PatchArgs, RecordArgs, SnapshotArgs, TokenizeArgs,
};
use llama_trace_core::error::{Error, Result, printable, printable_text};

/// Step through a real Llama: every stage of the forward pass, with true shapes and true values.
#[derive(Debug, Parser)]
#[command(
    version,
    about,
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true,
    disable_help_flag = true,
    after_help = AFTER_HELP
)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    run: RunArgs,

    /// Print the texts as text or json [default: text]
    #[arg(long, value_enum, value_name = "FORMAT", conflicts_with = "step", hide_possible_values = true)]
    format: Option<LogFormat>,

    /// Open the tracer instead of printing the text
    #[arg(long)]
    step: bool,

    // `-h` and `--help` both print the short form: long texts are in the manual.
    /// Print the options; `llama-trace help` is the manual
    #[arg(long, short, global = true, action = ArgAction::HelpShort)]
    help: Option<bool>,

    #[command(flatten)]
    open: OpenArgs,

    #[command(flatten)]
    memory: MemoryArgs,

    #[command(flatten)]
    colours: ColourArgs,
}

const AFTER_HELP: &str = "\
Without a prompt, the program opens the tracer on the built-in model.

Examples:
  llama-trace --prompt \"Once upon a time\" --step
  llama-trace --prompt \"Once upon a time\" -n 60
  llama-trace chat --model meta-llama/Llama-3.2-1B-Instruct
  llama-trace log --prompt \"Hello\" --values --layer 0 --stage scores,softmax
  llama-trace export --prompt \"Hello\" --out dump -n 3

Manual: `llama-trace help` lists the pages, `llama-trace help COMMAND` prints the page of a command.

Exit codes: 0 done, 1 a check fails or two runs differ, 2 wrong options, 3 wrong model, tokenizer or trace file, \
4 the prompt cannot be run, 5 the output cannot be written, 6 no terminal, 130 interrupted.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Write every stage as a .npy file, with a manifest
    Export(ExportArgs),
    /// Record a run in one file
    Record(RecordArgs),
    /// Draw a screen of the tracer into a file
    Snapshot(SnapshotArgs),
    /// Open the tracer on a recorded run; it needs no model
    Open(OpenTraceArgs),
    /// Print the forward pass, one line for each step
    Log(LogArgs),
    /// Show where a number comes from
    Explain(ExplainArgs),
    /// Show the answer after each layer (logit lens)
    Lens(LensArgs),
    /// Show what each head and feed-forward network adds to the answer
    Attribute(AttributeArgs),
    /// Show which places of a run carry the answer (patching)
    Patch(PatchArgs),
    /// List the lessons, or open one in the tracer
    Learn(learn::LearnArgs),
    /// Write the tracer as a web page, or serve it on this machine
    Page(page::PageArgs),
    /// Talk with the model; each line of a pipe is a turn
    Chat(ChatArgs),
    /// Show the configuration, the tensors and the size of a trace
    Info(ModelArgs),
    /// Show the tokens of a text, and the merges that make them
    Tokenize(TokenizeArgs),
    /// Measure the machine's limits and the model's speed
    Bench(BenchArgs),
    /// Check that the numbers are right on this machine
    Check(CheckArgs),
    /// Find the first stage in which two runs differ, and why
    Diff(DiffArgs),
    /// Judge a stage that you wrote yourself, and name its mistake
    Kata(KataArgs),
    /// Print a script that captures another runtime's stages
    Capture(CaptureArgs),
    /// Print a script that completes commands and options in a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the options for man: llama-trace man > llama-trace.1
    Man {
        /// A command, instead of the whole program
        command: Option<String>,
    },
    /// Print a page of the manual, or list the pages
    Help {
        /// A page of the manual or a command
        #[arg(value_parser = help::subjects(), hide_possible_values = true)]
        subject: Option<String>,
    },
}

/// The warning for a run whose logits have NaN.
const NOT_A_NUMBER: &str =
    "Some logits are not a number (NaN): `llama-trace log --values` shows the first stage that has one.";

/// Returns whether `llama-trace chat` started this process only to call [`render_template`].
pub fn renders_templates() -> bool {
    std::env::args_os().skip(1).eq([chat::ARGUMENT])
}

/// Renders an untrusted chat template within the limits of a separate process. Reads the request from standard input
/// and writes the answer to standard output.
pub fn render_template() -> ExitCode {
    chat::serve()
}

/// Writes a line to standard error, with control characters escaped. If standard error is gone too (for example with a
/// closed terminal), the line is lost.
pub fn tell(line: impl Display) {
    drop(writeln!(io::stderr(), "{}", printable_text(&line.to_string())));
}

/// Ends the program with the parser's error or with the requested help. Control characters in quoted words are escaped.
pub fn refuse(error: &clap::Error) -> ! {
    if error.use_stderr() {
        let words: Vec<String> =
            std::env::args_os().map(|word| printable(&word.to_string_lossy()).into_owned()).collect();
        if let Some(better) = needs::explain(error, &words) {
            tell(format_args!("error: {better}"));
            process::exit(better.exit_code().into());
        }
        // If standard error is gone, the message is lost.
        drop(match Cli::try_parse_from(&words) {
            Err(harmless) => shortened(harmless).print(),
            Ok(_) => error.print(),
        });
        if let Some(next) = unquoted::next(error.kind(), &words) {
            tell(format_args!("      next: {next}"));
        }
        process::exit(error.exit_code())
    }
    // If help cannot be printed, the command has failed.
    let printed = error.print().and_then(|()| io::stdout().flush());
    if let Err(error) = output::end(printed.map_err(output::Failure::from)) {
        tell(format_args!("error: {error}"));
        process::exit(error.exit_code().into());
    }
    process::exit(0)
}

/// `error` with long words shortened.
fn shortened(mut error: clap::Error) -> clap::Error {
    const MOST: usize = 200;
    let long: Vec<_> = error.context().filter(|(_, value)| value.to_string().len() > 10 * MOST).collect();
    let long: Vec<_> = long.into_iter().map(|(kind, value)| (kind, value.to_string())).collect();
    for (kind, text) in long {
        let start: String = text.chars().take(MOST).collect();
        match error.get(kind) {
            Some(ContextValue::String(_)) => {
                error.insert(kind, ContextValue::String(format!("{start}… ({} bytes)", text.len())))
            }
            // A proposal for such a long word would not help.
            _ => error.remove(kind),
        };
    }
    error
}

impl Cli {
    /// Runs the command.
    ///
    /// # Errors
    /// The command's error. [`llama_trace_core::error::Error::exit_code`] gives the exit code of the process.
    pub fn run(self) -> Result<()> {
        match self.command {
            Some(Command::Export(args)) => export::run(&args),
            Some(Command::Record(args)) => record::run(&args),
            Some(Command::Snapshot(args)) => snapshot::run(&args),
            Some(Command::Open(args)) => open::run(&args),
            Some(Command::Log(args)) => log::run(&args),
            Some(Command::Explain(args)) => explain::run(&args),
            Some(Command::Lens(args)) => lens::run(&args),
            Some(Command::Attribute(args)) => attribute::run(&args),
            Some(Command::Patch(args)) => patch::run(&args),
            Some(Command::Learn(args)) => learn::run(&args),
            Some(Command::Page(args)) => page::run(&args),
            Some(Command::Chat(args)) => chat::run(&args),
            Some(Command::Info(args)) => info::run(&args),
            Some(Command::Tokenize(args)) => tokenize::run(&args),
            Some(Command::Bench(args)) => bench::run(&args),
            Some(Command::Check(args)) => check::run(&args),
            Some(Command::Kata(args)) => kata::run(&args),
            Some(Command::Capture(args)) => capture::run(&args),
            Some(Command::Diff(args)) => diff::run(&args),
            Some(Command::Completions { shell }) => shell::completions(shell),
            Some(Command::Man { command }) => shell::man(command.as_deref()),
            Some(Command::Help { subject }) => help::run(subject.as_deref()),
            None if self.opens_the_tracer()? => {
                let Self { run, open, memory, colours, .. } = &self;
                step::run(run, open, memory, colours)
            }
            None => {
                self.colours.refuse()?;
                let format = self.format.unwrap_or(LogFormat::Text);
                generate::run(&self.run, &self.memory, format)
            }
        }
    }

    /// Returns whether a command line without a command opens the tracer: with `--step`, with an option of the place
    /// that the tracer shows, or without a text to print.
    ///
    /// # Errors
    /// [`Error::Usage`] if such an option is given beside `--format`.
    fn opens_the_tracer(&self) -> Result<bool> {
        match (self.open.given(), self.format) {
            (Some(option), Some(_)) => Err(Error::usage(format!(
                "--{option} opens the tracer, and --format is an option of printed texts"
            ))
            .next("leave out one of the two options")),
            (given, format) => {
                Ok(self.step || given.is_some() || !(self.run.has_prompt() || format.is_some()))
            }
        }
    }
}
