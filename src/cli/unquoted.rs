//! Advice for a text without quotation marks. The shell splits such a text into words, and the parser refuses the
//! second word.

use clap::CommandFactory;
use clap::error::ErrorKind;

use super::Cli;

/// Maximum number of words of the text that the message repeats.
const SHOWN: usize = 12;

/// Advice for the refused command line `words`, if it has such a text. The first word is the program's name.
pub(super) fn next(kind: ErrorKind, words: &[String]) -> Option<String> {
    use ErrorKind::{ArgumentConflict, InvalidSubcommand, UnknownArgument};
    if !matches!(kind, ArgumentConflict | InvalidSubcommand | UnknownArgument) {
        return None;
    }
    let words = words.get(1..)?;
    let after = words.iter().position(|word| matches!(&**word, "--prompt" | "-p" | "tokenize"));
    let (option, text) = match after {
        Some(at) => (&*words[at], text_at(&words[at + 1..])),
        // `--step` takes no text.
        None => ("--prompt", text_at(words.strip_prefix(&["--step".to_owned()]).unwrap_or(words))),
    };
    // A single word is a misspelt command or an option's value.
    let several = text.iter().any(|word| word.contains(' ')) && after.is_none() || text.len() > 1;
    let command = |word: &String| Cli::command().find_subcommand(word).is_some();
    if !several || text.iter().any(command) {
        return None;
    }
    let mut shown = text.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(" ");
    if text.len() > SHOWN {
        shown += " …";
    }
    Some(format!("quote the text: {option} \"{shown}\""))
}

/// The words at the beginning, up to the first option.
fn text_at(words: &[String]) -> &[String] {
    &words[..words.iter().position(|word| word.starts_with('-')).unwrap_or(words.len())]
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn a_text_without_quotation_marks_is_told_apart_from_other_mistakes() {
        let told = |line: &str| {
            let words: Vec<String> = line.split('|').map(str::to_owned).collect();
            let error = Cli::try_parse_from(&words).unwrap_err();
            next(error.kind(), &words)
        };
        let quoted = Some(r#"quote the text: --prompt "Once upon a time""#.to_owned());
        for line in [
            "lt|--prompt|Once|upon|a|time",
            "lt|--step|--prompt|Once|upon|a|time|-n|3",
            "lt|log|--prompt|Once|upon|a|time",
            "lt|Once upon a time",
            "lt|--step|Once upon a time",
            "lt|Once|upon|a|time",
        ] {
            assert_eq!(told(line), quoted, "{line}");
        }
        assert_eq!(told("lt|-p|Once|upon").as_deref(), Some(r#"quote the text: -p "Once upon""#));
        assert_eq!(told("lt|tokenize|Once|upon").as_deref(), Some(r#"quote the text: tokenize "Once upon""#));
        let long = format!("lt|log|--prompt{}", "|word".repeat(40));
        assert!(told(&long).unwrap().ends_with(" word …\""));
        for line in [
            "lt|nonsense",
            "lt|exprot|--prompt|Once",
            "lt|log|--promt|Once",
            "lt|--prompt|Once|log",
            "lt|--prompt|Once|--ids|1",
            "lt|--prompt|Once upon|--stream|x",
        ] {
            assert_eq!(told(line), None, "{line}");
        }
    }
}
