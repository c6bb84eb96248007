//! `llama-trace completions` and `llama-trace man`: descriptions of the command line, for shells and for `man`.

use std::io::{ErrorKind, Write};

use clap::CommandFactory;
use clap_complete::Shell;

use super::Cli;
use llama_trace_core::error::{Error, Result};

/// The program's name in a shell.
const NAME: &str = "llama-trace";

pub(super) fn completions(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), NAME, &mut script);
    if shell == Shell::Bash {
        // clap_complete 4.6 has two different names for a subcommand if the program's name has a hyphen.
        let text = String::from_utf8_lossy(&script).replace("llama__subcmd__trace", "llama__trace");
        script = text.into_bytes();
    }
    print(&script)
}

/// Prints the man page of the whole program, or of one of its commands.
pub(super) fn man(command: Option<&str>) -> Result<()> {
    let mut cli = Cli::command();
    cli.build();
    let page = match command {
        None => cli,
        Some(name) => cli.find_subcommand(name).cloned().ok_or_else(|| {
            let names: Vec<_> = cli.get_subcommands().map(clap::Command::get_name).collect();
            Error::usage("there is no such command")
                .expected(names.join(", "))
                .found(format!("`{name}`"))
                .next("name one of these, or leave the name out for the page of the whole program")
        })?,
    };
    let mut text = Vec::new();
    match clap_mangen::Man::new(page).render(&mut text) {
        Ok(()) => print(&text),
        Err(error) => Err(unwritten(&error)),
    }
}

/// Prints a text. A closed pipe is no error.
pub(super) fn print(text: &[u8]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(unwritten(&error)),
        _ => Ok(()),
    }
}

fn unwritten(error: &std::io::Error) -> Error {
    Error::output("the text cannot be written").at("standard output").found(error)
}
