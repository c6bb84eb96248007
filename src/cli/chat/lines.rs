//! The source of a chat's lines: an editor in a terminal, or plain standard input.

use std::io::{BufRead, Read, stdin};

#[cfg(unix)]
use super::editor::{Editor, Ended};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::stop::Stop;

/// The maximum length of a turn, in bytes. It is more than any context holds.
const MAX_LINE: usize = 8 << 20;
/// After a turn that is too long, at most this many bytes are searched for the end of the line. If it is not
/// among them, the line counts as endless.
const MAX_REST: u64 = 256 << 20;

/// The next line.
pub(super) enum Line {
    Text(String),
    /// The error for a line that cannot be a turn. The next line may be a valid one.
    Wrong(Error),
    /// Ctrl-C at the prompt.
    #[cfg_attr(not(unix), expect(dead_code, reason = "a console ends the line itself"))]
    Interrupted,
    End,
}

/// The source of the lines.
pub(super) enum Lines {
    /// Input and output are a terminal. Arrow keys edit the line and walk through the history. The history is only in
    /// memory.
    #[cfg(unix)]
    Editor(Box<Editor>),
    /// All other input. There is no prompt and no editing.
    Plain,
}

impl Lines {
    /// Opens the source of the lines. Ctrl-C sets `stop` while the model answers a line.
    #[cfg_attr(not(unix), allow(unused_variables, reason = "a console edits its lines itself"))]
    pub(super) fn open(stop: &Stop) -> Self {
        #[cfg(unix)]
        if let Some(editor) = Editor::open(stop, MAX_LINE) {
            return Self::Editor(Box::new(editor));
        }
        Self::Plain
    }

    pub(super) fn is_editor(&self) -> bool {
        !matches!(self, Self::Plain)
    }

    pub(super) fn next(&mut self) -> Result<Line> {
        match self {
            #[cfg(unix)]
            Self::Editor(editor) => match editor.read() {
                Ok(Ended::Text(line)) if line.len() > MAX_LINE => Ok(Line::Wrong(too_long())),
                Ok(Ended::Text(line)) => Ok(Line::Text(line)),
                Ok(Ended::Interrupted) => Ok(Line::Interrupted),
                Ok(Ended::Input) => Ok(Line::End),
                Err(error) => Err(Error::terminal("the terminal cannot be read from").found(error)),
            },
            Self::Plain => plain(&mut stdin().lock()),
        }
    }
}

fn too_long() -> Error {
    Error::prompt("a turn is longer than any model can read")
        .at("standard input")
        .expected(format!("lines of at most {MAX_LINE} bytes"))
        .found("more")
        .next("send a shorter turn")
}

/// The next line of `input`, unedited.
fn plain(input: &mut impl BufRead) -> Result<Line> {
    let failed = |error| Error::prompt("a turn cannot be read").at("standard input").found(error);
    let mut line = Vec::new();
    // Reads one byte more than allowed, to notice a line that is too long.
    let read = input.take(MAX_LINE as u64 + 1).read_until(b'\n', &mut line).map_err(failed)?;
    if read == 0 {
        return Ok(Line::End);
    }
    if read > MAX_LINE && line.last() != Some(&b'\n') {
        return if skip_line(input).map_err(failed)? { Ok(Line::Wrong(too_long())) } else { Err(too_long()) };
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

/// Skips the rest of a line. Returns whether the end of the line or of the input was found.
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
