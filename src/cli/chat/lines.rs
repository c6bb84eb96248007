//! Where the lines of a chat come from: an editor in a terminal, or standard input as it is.

use std::io::{BufRead, IsTerminal, Read, stdin, stdout};

use rustyline::Editor;
use rustyline::completion::Completer;
use rustyline::config::Config;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::MemHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};

#[cfg(unix)]
use crate::ending::{self, Taken};
use crate::error::{Error, Result};
use crate::stop::Stop;

/// The longest turn that is read; no context holds as much.
const MAX_LINE: u64 = 8 << 20;
/// How much more a line may have for its end to be looked for. One that is longer still has none.
const MAX_REST: u64 = 256 << 20;

/// The next of them.
pub(super) enum Line {
    Text(String),
    /// A line that cannot be a turn, and why; the next one may be.
    Wrong(Error),
    /// Ctrl-C at the prompt.
    Interrupted,
    End,
}

/// Takes back what was asked to stop when a line ends, as long as the editor has the terminal: from then on Ctrl-C is a
/// signal, and stops the answer to this line.
pub(super) struct Ends(Stop);

impl Validator for Ends {
    fn validate(&self, _: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        self.0.clear();
        Ok(ValidationResult::Valid(None))
    }
}

impl Completer for Ends {
    type Candidate = String;
}

impl Hinter for Ends {
    type Hint = String;
}

impl Highlighter for Ends {}

impl rustyline::Helper for Ends {}

/// What lines are edited by.
type LineEditor = Editor<Ends, MemHistory>;

/// A line of the editor, which has the terminal meanwhile.
fn read_line(editor: &mut LineEditor) -> rustyline::Result<String> {
    #[cfg(unix)]
    ending::take(Taken::Editor);
    let line = editor.readline("> ");
    // The editor has left it by itself.
    #[cfg(unix)]
    ending::give_back(|| {});
    line
}

/// Where lines come from.
pub(super) enum Lines {
    /// A terminal on both sides: arrows edit the line and go through the earlier ones, which are kept in
    /// memory only.
    Editor(Box<LineEditor>),
    /// Anything else: no prompt and no editing.
    Plain,
}

impl Lines {
    /// `stop` is what Ctrl-C asks while a line is answered.
    pub(super) fn open(stop: &Stop) -> Result<Self> {
        let able =
            std::env::var("TERM").is_ok_and(|term| !matches!(&*term, "dumb" | "cons25" | "emacs" | ""));
        if !(stdin().is_terminal() && stdout().is_terminal() && (able || cfg!(windows))) {
            return Ok(Self::Plain);
        }
        let config = Config::builder().auto_add_history(true).build();
        let mut editor = LineEditor::with_history(config.clone(), MemHistory::with_config(&config))
            .map_err(|error| Error::terminal("the terminal cannot be read from").found(error))?;
        editor.set_helper(Some(Ends(stop.clone())));
        Ok(Self::Editor(Box::new(editor)))
    }

    pub(super) fn is_editor(&self) -> bool {
        matches!(self, Self::Editor(_))
    }

    pub(super) fn next(&mut self) -> Result<Line> {
        match self {
            Self::Editor(editor) => match read_line(editor) {
                Ok(line) => Ok(Line::Text(line)),
                Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
                Err(ReadlineError::Eof) => Ok(Line::End),
                Err(error) => Err(Error::terminal("the terminal cannot be read from").found(error)),
            },
            Self::Plain => plain(&mut stdin().lock()),
        }
    }
}

/// The next line of `input` as it is.
fn plain(input: &mut impl BufRead) -> Result<Line> {
    let failed = |error| Error::prompt("a turn cannot be read").at("standard input").found(error);
    let mut line = Vec::new();
    // One byte more than allowed, so that an input without an end is noticed.
    let read = input.take(MAX_LINE + 1).read_until(b'\n', &mut line).map_err(failed)?;
    if read == 0 {
        return Ok(Line::End);
    }
    if read as u64 > MAX_LINE && line.last() != Some(&b'\n') {
        let error = Error::prompt("a turn is longer than any that a model could read")
            .at("standard input")
            .expected(format!("lines of at most {MAX_LINE} bytes"))
            .found("more")
            .next("say something shorter");
        return if skip_line(input).map_err(failed)? { Ok(Line::Wrong(error)) } else { Err(error) };
    }
    Ok(match String::from_utf8(line) {
        Ok(text) => Line::Text(text),
        Err(_) => Line::Wrong(
            Error::prompt("a turn is not a text")
                .at("standard input")
                .expected("UTF-8, one turn a line")
                .next("convert the input to UTF-8"),
        ),
    })
}

/// Passes over the rest of a line, and says whether its end or that of the input was found.
fn skip_line(input: &mut impl BufRead) -> std::io::Result<bool> {
    let mut passed = 0;
    while passed < MAX_REST {
        let bytes = input.fill_buf()?;
        let end = bytes.iter().position(|&byte| byte == b'\n');
        let (count, last) = (end.map_or(bytes.len(), |end| end + 1), end.is_some() || bytes.is_empty());
        input.consume(count);
        if last {
            return Ok(true);
        }
        passed += count as u64;
    }
    Ok(false)
}
