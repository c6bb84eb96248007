//! `llama-trace help`: the manual.

use std::env;
use std::fmt::Write;
use std::io::{IsTerminal, stdout};

use clap::CommandFactory;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::{Cli, shell};
use crate::chapters::MANUAL;
use llama_trace_core::error::Result;
use llama_trace_picture::{self as picture, Format, Paper};
use llama_trace_tui::theme::{Depth, Theme};
use llama_trace_tui::view::markdown;

/// Commands and their pages. A page with the name of its command is not listed.
const PAGES: [(&str, &str); 12] = [
    ("record", "traces"),
    ("snapshot", "pictures"),
    ("open", "traces"),
    ("log", "export"),
    ("lens", "explain"),
    ("attribute", "explain"),
    ("info", "models"),
    ("tokenize", "models"),
    ("bench", "performance"),
    ("completions", "commands"),
    ("man", "commands"),
    ("help", "commands"),
];

/// Columns of a page in a pipe, and in a wide terminal.
const COLUMNS: (u16, u16) = (80, 100);

/// Reads the name of a page or a command. The parser's message proposes near names.
pub(super) fn subjects() -> impl TypedValueParser<Value = String> {
    let pages = MANUAL.iter().map(|page| page.slug);
    PossibleValuesParser::new(pages.chain(PAGES.map(|(command, _)| command)))
}

/// Prints the page of `subject`. If `subject` is also a command, prints its options first. Without a subject, lists
/// both.
pub(super) fn run(subject: Option<&str>) -> Result<()> {
    let mut cli = Cli::command();
    cli.build();
    let Some(name) = subject else { return print(&index(&cli)) };
    if let Some(command) = cli.find_subcommand_mut(name) {
        let options = command.render_help();
        let options = if stdout().is_terminal() { options.ansi().to_string() } else { options.to_string() };
        shell::print(format!("{options}\n").as_bytes())?;
    }
    let page = PAGES.iter().find(|(command, _)| *command == name).map_or(name, |(_, page)| page);
    MANUAL.iter().find(|other| other.slug == page).map_or(Ok(()), |page| print(page.text))
}

/// The list of all pages and commands, as Markdown.
fn index(cli: &clap::Command) -> String {
    let mut text =
        "# Manual\n\n`llama-trace help SUBJECT` prints a page. `llama-trace help COMMAND` prints the \
                    options of a command, then its page.\n\n| subject | |\n|---|---|\n"
            .to_owned();
    // Writing to a string cannot fail.
    for page in MANUAL.iter() {
        let _ = writeln!(text, "| {} | {} |", page.slug, page.title());
    }
    text += "\n| command | |\n|---|---|\n";
    for command in cli.get_subcommands() {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(text, "| {} | {about} |", command.get_name());
    }
    text
}

/// Prints Markdown: in the program's colours on a terminal, as plain text into a pipe.
fn print(source: &str) -> Result<()> {
    let (columns, depth, format) = match stdout().is_terminal() {
        true => {
            let columns =
                crossterm::terminal::size().map_or(COLUMNS.0, |(columns, _)| columns.min(COLUMNS.1));
            (columns, Depth::detect(|name| env::var(name).ok()), Format::Ansi)
        }
        false => (COLUMNS.0, Depth::None, Format::Txt),
    };
    let source = if depth == Depth::None { quoted(source) } else { source.to_owned() };
    let page = markdown::page(&source, columns, Theme::new(depth));
    shell::print(&picture::encode(&page, Paper::default(), format)?)
}

/// Markdown whose inline code keeps its backquotes when it is rendered, for text without styles.
fn quoted(source: &str) -> String {
    let spans = |text: &str| {
        let parts = text.split('`').enumerate();
        parts.map(|(i, part)| if i % 2 == 1 { format!("`` `{part}` ``") } else { part.to_owned() }).collect()
    };
    let parts = source.split("```").enumerate();
    let parts = parts.map(|(i, part)| if i % 2 == 1 { part.to_owned() } else { spans(part) });
    parts.collect::<Vec<String>>().join("```")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page() {
        let pages: Vec<&str> = MANUAL.iter().map(|page| page.slug).collect();
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            let page = PAGES.iter().find(|(command, _)| *command == name).map_or(name, |(_, page)| page);
            assert!(pages.contains(&page), "{name}");
        }
        for (command, _) in PAGES {
            assert!(Cli::command().find_subcommand(command).is_some(), "{command}");
        }
    }

    #[test]
    fn each_option_has_one_line_in_80_columns() {
        let mut cli = Cli::command().term_width(80);
        cli.build();
        let commands = cli.get_subcommands_mut().map(|command| command.render_help().to_string());
        let helps: Vec<String> = commands.collect();
        for help in helps.into_iter().chain([cli.render_help().to_string()]) {
            let (_, options) = help.split_once("Options:").unwrap();
            let second = options.lines().find(|line| line.starts_with("          "));
            assert_eq!(second, None, "{help}");
        }
    }
}
