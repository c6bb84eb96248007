//! Parsing of a chat line.

use llama_trace_core::error::{Error, Result};

/// The text of `/help`.
pub(super) const HELP: &str = "\
/reset            forget every turn; the system message stays
/system           show the system message
/system TEXT      replace the system message, \"\" for none; the turns stay
/regenerate       answer the last question again
/step             open the tracer on the conversation up to the last answer
/help             show this list
/quit             leave, as Ctrl-D does
Ctrl-C stops an answer. A line that should begin with / is written with //.";

/// A parsed line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// A turn for the model.
    Say(String),
    Reset,
    ShowSystem,
    SetSystem(Option<String>),
    Regenerate,
    Step,
    Help,
    Quit,
}

/// Parses a line; none if it is blank.
///
/// # Errors
/// [`Error::Usage`] if the line begins with a slash but is not a command.
pub(super) fn parse(line: &str) -> Result<Option<Command>> {
    let line = line.trim();
    let Some(command) = line.strip_prefix('/') else {
        return Ok((!line.is_empty()).then(|| Command::Say(line.into())));
    };
    if command.starts_with('/') {
        return Ok(Some(Command::Say(command.into())));
    }
    let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    let rest = rest.trim();
    let command = match (name, rest) {
        ("system", "") => Command::ShowSystem,
        ("system", "\"\"") => Command::SetSystem(None),
        ("system", text) => Command::SetSystem(Some(text.into())),
        ("reset", "") => Command::Reset,
        ("regenerate", "") => Command::Regenerate,
        ("step", "") => Command::Step,
        ("help", "") => Command::Help,
        ("quit" | "exit", "") => Command::Quit,
        _ => {
            return Err(Error::usage("there is no such command")
                .expected("/reset, /system TEXT, /regenerate, /step, /help or /quit")
                .found(format!("`{line}`"))
                .next("to send this line to the model, begin it with //"));
        }
    };
    Ok(Some(command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_has_every_command() {
        let page = include_str!("../../../chapters/reference/chat.md");
        for line in HELP.lines().filter(|line| line.starts_with('/')) {
            let command = line.split("  ").next().unwrap_or_default();
            assert!(page.contains(&format!("| `{command}` |")), "{command}");
        }
        assert!(page.contains("`//`"));
    }

    #[test]
    fn lines_are_said_or_done() {
        let read = |line| parse(line).unwrap();
        assert_eq!(read("  hi there \n"), Some(Command::Say("hi there".into())));
        assert_eq!(read(" \t"), None);
        assert_eq!(read("//etc"), Some(Command::Say("/etc".into())));
        assert_eq!(read("/reset"), Some(Command::Reset));
        assert_eq!(read("/system  Be brief. "), Some(Command::SetSystem(Some("Be brief.".into()))));
        assert_eq!(read("/system"), Some(Command::ShowSystem));
        assert_eq!(read("/system \"\""), Some(Command::SetSystem(None)));
        for wrong in ["/", "/rest", "/reset now", "/Quit"] {
            assert_eq!(parse(wrong).unwrap_err().exit_code(), 2, "{wrong}");
        }
    }
}
