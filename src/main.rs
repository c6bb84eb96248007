//! The command `llama-trace`: reads the command line, runs it, and turns an error into an exit code.

use std::process::ExitCode;

use clap::Parser;
use llama_trace::cli::Cli;

fn main() -> ExitCode {
    match Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
