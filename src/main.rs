//! The command `llama-trace`: reads the command line, runs it, and turns an error into an exit code.

use std::process::ExitCode;

use clap::Parser;
use llama_trace::cli::{self, Cli};

fn main() -> ExitCode {
    if cli::renders_templates() {
        return cli::render_template();
    }
    match Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            cli::tell(format_args!("error: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}
