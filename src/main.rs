//! The command `llama-trace`: reads the command line, runs it, and turns an error into an exit code.

use std::process::ExitCode;

use clap::Parser;
use llama_trace::cli::{self, Cli};
use llama_trace::ending;

#[cfg(unix)]
#[global_allocator]
static MEMORY: ending::memory::Memory = ending::memory::Memory;

fn main() -> ExitCode {
    if cli::renders_templates() {
        return cli::render_template();
    }
    #[cfg(unix)]
    if ending::remove::was_asked_to(ending::replace::take_back_left) {
        return ExitCode::SUCCESS;
    }
    let cli = Cli::try_parse().unwrap_or_else(|error| cli::refuse(&error));
    let ended = ending::watch().and_then(|()| cli.run()).map_err(ending::explain);
    // If a signal ends the process, the message names the signal instead.
    ending::say(|| {
        if let Err(error) = &ended {
            cli::tell(format_args!("error: {error}"));
        }
    });
    ended.map_or_else(|error| ExitCode::from(error.exit_code()), |()| ExitCode::SUCCESS)
}
