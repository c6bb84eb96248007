//! Where the lines of a chat come from: an editor in a terminal, or standard input as it is.

use std::io::{BufRead, IsTerminal, Read, stdin, stdout};

use rustyline::DefaultEditor;
use rustyline::config::Config;
use rustyline::error::ReadlineError;

use crate::error::{Error, Result};

/// The longest turn that is read; no context holds as much.
const MAX_LINE: u64 = 8 << 20;

/// The next of them.
pub(super) enum Line {
    Text(String),
    /// Ctrl-C at the prompt.
    Interrupted,
    End,
}

/// Where lines come from.
pub(super) enum Lines {
    /// A terminal on both sides: arrows edit the line and go through the earlier ones, which are kept in
    /// memory only.
    Editor(Box<DefaultEditor>),
    /// Anything else: no prompt and no editing.
    Plain,
}

impl Lines {
    pub(super) fn open() -> Result<Self> {
        let able =
            std::env::var("TERM").is_ok_and(|term| !matches!(&*term, "dumb" | "cons25" | "emacs" | ""));
        if !(stdin().is_terminal() && stdout().is_terminal() && (able || cfg!(windows))) {
            return Ok(Self::Plain);
        }
        let config = Config::builder().auto_add_history(true).build();
        let editor = DefaultEditor::with_config(config)
            .map_err(|error| Error::terminal("the terminal cannot be read from").found(error))?;
        Ok(Self::Editor(Box::new(editor)))
    }

    pub(super) fn is_editor(&self) -> bool {
        matches!(self, Self::Editor(_))
    }

    pub(super) fn next(&mut self) -> Result<Line> {
        match self {
            Self::Editor(editor) => match editor.readline("> ") {
                Ok(line) => Ok(Line::Text(line)),
                Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
                Err(ReadlineError::Eof) => Ok(Line::End),
                Err(error) => Err(Error::terminal("the terminal cannot be read from").found(error)),
            },
            Self::Plain => {
                let mut line = Vec::new();
                // One byte more than allowed, so that an input without an end is noticed.
                let read = stdin().lock().take(MAX_LINE + 1).read_until(b'\n', &mut line);
                let read = read.map_err(|error| {
                    Error::prompt("a turn cannot be read").at("standard input").found(error)
                })?;
                if read == 0 {
                    return Ok(Line::End);
                }
                if read as u64 > MAX_LINE {
                    return Err(Error::prompt("a turn is longer than any that a model could read")
                        .at("standard input")
                        .expected(format!("lines of at most {MAX_LINE} bytes"))
                        .found("more")
                        .next("say something shorter"));
                }
                String::from_utf8(line).map(Line::Text).map_err(|_| {
                    Error::prompt("a turn is not a text")
                        .at("standard input")
                        .expected("UTF-8, one turn a line")
                        .next("convert the input to UTF-8")
                })
            }
        }
    }
}
