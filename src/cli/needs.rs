//! Errors for an option that is given without another option that it needs. The parser's own message names only the
//! missing option, and not the given one.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use llama_trace_core::error::Error;

/// An option that needs another argument.
struct Need {
    command: &'static str,
    option: &'static str,
    /// The argument that it needs, as the parser writes it at the beginning of its message.
    missing: &'static str,
    /// What the option does with it.
    does: &'static str,
    next: &'static str,
}

const fn need(
    command: &'static str,
    option: &'static str,
    missing: &'static str,
    does: &'static str,
    next: &'static str,
) -> Need {
    Need { command, option, missing, does, next }
}

const NEEDS: [Need; 12] = [
    need("attribute", "--by", "--parts", "sets the order of the ranked parts", "add --parts heads"),
    need("attribute", "--top", "--parts", "sets the number of ranked parts", "add --parts heads"),
    need(
        "bench",
        "--weights",
        "--shape",
        "sets the number type of random weights",
        "add --shape llama-3.2-1b, or leave out --weights to measure the weights of the model",
    ),
    need(
        "kata",
        "--run",
        "<STAGE>",
        "judges the program of one stage",
        "name the stage: llama-trace kata rms_norm --run 'python3 rms_norm.py'",
    ),
    need("kata", "--run-with", "--dir", "starts each file of a folder", ALL),
    need("kata", "--prompt", "--dir", "sets the text that all programs together continue", ALL),
    need("kata", "-p", "--dir", "sets the text that all programs together continue", ALL),
    need(
        "learn",
        "--export",
        "<LESSON>",
        "writes one lesson as a page",
        "name the lesson: llama-trace learn tour --export tour.html",
    ),
    need("learn", "--answers", "--export", "adds the answers to a page", "add --export FILE.html"),
    need("learn", "--force", "--export", "replaces a page that exists", "add --export FILE.html"),
    need(
        "learn",
        "--from",
        "<LESSON>",
        "chooses a scene of one lesson",
        "name the lesson: llama-trace learn tour --from 2",
    ),
    need(
        "learn",
        "--present",
        "<LESSON>",
        "shows one lesson to a class",
        "name the lesson: llama-trace learn tour --present",
    ),
];

/// The advice for options of `kata all`.
const ALL: &str = "give the folder of the files: llama-trace kata all --dir DIR";

/// The error for the refused command line `words`, if an option needs an argument that is missing. The first word is
/// the program's name.
pub(super) fn explain(error: &clap::Error, words: &[String]) -> Option<Error> {
    if error.kind() != ErrorKind::MissingRequiredArgument {
        return None;
    }
    let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else { return None };
    let [_, command, given @ ..] = words else { return None };
    let is_given = |option: &str| {
        let with_value = |word: &String| word.strip_prefix(option).is_some_and(|rest| rest.starts_with('='));
        given.iter().any(|word| word == option || with_value(word))
    };
    let mut needs = NEEDS.iter().filter(|need| need.command == command && is_given(need.option));
    let (need, missing) = needs.find_map(|need| {
        let missing = missing.iter().find(|missing| missing.starts_with(need.missing))?;
        Some((need, missing))
    })?;
    Some(
        Error::usage(format!("{} {}, and {missing} is missing", need.option, need.does))
            .expected(format!("{} with {missing}", need.option))
            .next(need.next),
    )
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::super::Cli;
    use super::*;

    /// The arguments that the parser misses in a command line.
    fn missing(words: &[String]) -> Option<(clap::Error, Vec<String>)> {
        let error = Cli::try_parse_from(words).err()?;
        match (error.kind(), error.get(ContextKind::InvalidArg)) {
            (ErrorKind::MissingRequiredArgument, Some(ContextValue::Strings(missing))) => {
                let missing = missing.clone();
                Some((error, missing))
            }
            _ => None,
        }
    }

    #[test]
    fn every_option_that_needs_another_one_says_so() {
        let mut explained = 0;
        for command in Cli::command().get_subcommands() {
            let bare = vec!["lt".to_owned(), command.get_name().to_owned()];
            let always = missing(&bare).map_or(Vec::new(), |(_, missing)| missing);
            for arg in command.get_arguments() {
                let names = [
                    arg.get_long().map(|long| format!("--{long}")),
                    arg.get_short().map(|short| format!("-{short}")),
                ];
                for name in names.into_iter().flatten() {
                    let mut words = [&bare[..], std::slice::from_ref(&name)].concat();
                    if arg.get_action().takes_values() {
                        let possible = arg.get_possible_values();
                        words.push(possible.first().map_or("1", |value| value.get_name()).to_owned());
                    }
                    let Some((error, missing)) = missing(&words) else { continue };
                    // Some options only replace an argument that the command needs.
                    if missing.iter().all(|missing| always.contains(missing)) {
                        continue;
                    }
                    let told = explain(&error, &words).unwrap_or_else(|| panic!("{words:?}: {error}"));
                    let text = told.to_string();
                    assert!(text.contains(&name) && text.contains("next: "), "{words:?}: {text}");
                    explained += 1;
                }
            }
        }
        assert_eq!(explained, NEEDS.len());
    }

    #[test]
    fn an_argument_that_a_command_always_needs_is_left_to_the_parser() {
        let words = ["lt", "export", "--prompt", "x"].map(str::to_owned);
        let (error, _) = missing(&words).unwrap();
        assert!(explain(&error, &words).is_none());
    }
}
