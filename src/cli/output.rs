//! Writing text to standard output piece by piece. The module decides what a terminal may get, and which failures are
//! errors.

use std::borrow::Cow;
use std::io::{ErrorKind, IsTerminal, StdoutLock, Write, stdout};
use std::path::Path;

use llama_trace_core::error::{Error, Result, printable_json, printable_text};
use llama_trace_formats::tokenizer::{Piece, TextStream};

/// Checks that `--out` is not `-`, which other options read as a standard stream.
pub(super) fn check_path(out: &Path) -> Result<()> {
    if out != Path::new("-") {
        return Ok(());
    }
    Err(Error::usage("this output cannot be written to standard output")
        .expected("--out with a path")
        .found("--out -")
        .next("give a path; ./- is a file with the name -"))
}

/// The reason why printing a text ended early.
pub(super) enum Failure {
    Run(Error),
    Write(std::io::Error),
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Write(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Run(error)
    }
}

/// Standard output for a model's text. A vocabulary is an untrusted file: its tokens may hold escape sequences and
/// bytes that are not UTF-8. A terminal gets neither of these; a pipe gets every byte unchanged.
pub(super) struct Text {
    out: StdoutLock<'static>,
    terminal: bool,
}

impl Text {
    pub(super) fn open() -> Self {
        Self { out: stdout().lock(), terminal: stdout().is_terminal() }
    }

    /// Returns whether standard output is a terminal.
    pub(super) fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Prints `text` and flushes.
    pub(super) fn print(&mut self, text: &str) -> std::io::Result<()> {
        let text = if self.terminal { printable_text(text) } else { Cow::Borrowed(text) };
        self.write(text.as_bytes())
    }

    /// Prints a token and flushes: its text on a terminal, its bytes elsewhere.
    pub(super) fn print_piece(&mut self, piece: &Piece) -> std::io::Result<()> {
        if self.terminal { self.print(&piece.text) } else { self.write(&piece.bytes) }
    }

    /// Prints the incomplete character that `stream` held back, and returns it. A pipe already got its bytes.
    pub(super) fn finish(&mut self, stream: &mut TextStream<'_>) -> std::io::Result<String> {
        let rest = stream.finish();
        if self.terminal {
            self.print(&rest)?;
        }
        Ok(rest)
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.out.write_all(bytes)?;
        self.out.flush()
    }
}

/// Standard output for the program's own lines. They may quote names and words of untrusted files. Control characters
/// in these are escaped, also if the output goes to a pipe or a file, because a terminal may show that output later.
pub(super) struct Lines {
    out: StdoutLock<'static>,
    /// The unfinished line.
    line: Vec<u8>,
    printable: fn(&str) -> Cow<'_, str>,
}

impl Lines {
    pub(super) fn text() -> Self {
        Self { out: stdout().lock(), line: Vec::new(), printable: printable_text }
    }

    pub(super) fn json() -> Self {
        Self { printable: printable_json, ..Self::text() }
    }
}

/// Maximum length of a line that is buffered as a whole, in bytes.
const MAX_LINE: usize = 64 << 10;

impl Lines {
    /// Writes the buffered part of the line, except an incomplete character at its end.
    fn write_characters(&mut self) -> std::io::Result<()> {
        let part = self.line.utf8_chunks().last().map_or(0, |chunk| chunk.invalid().len());
        let rest = self.line.split_off(self.line.len() - part);
        self.flush()?;
        self.line = rest;
        Ok(())
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let length = bytes.iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |end| end + 1);
        self.line.extend_from_slice(&bytes[..length]);
        if self.line.ends_with(b"\n") {
            self.flush()?;
        } else if self.line.len() > MAX_LINE {
            self.write_characters()?;
        }
        Ok(length)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let line = std::mem::take(&mut self.line);
        self.out.write_all((self.printable)(&String::from_utf8_lossy(&line)).as_bytes())?;
        self.out.flush()
    }
}

/// Prints a JSON array with one line for each element.
pub(super) fn array(elements: impl Iterator<Item = serde_json::Value>) -> std::io::Result<()> {
    let mut out = Lines::json();
    let mut before = "[";
    for element in elements {
        writeln!(out, "{before}{element}")?;
        before = ",";
    }
    writeln!(out, "{}]", if before == "[" { before } else { "" })
}

/// The result of a command that printed a text.
pub(super) fn end(result: std::result::Result<(), Failure>) -> Result<()> {
    match result {
        // The reader closed the pipe: `llama-trace … | head`.
        Err(Failure::Write(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(Failure::Write(error)) => {
            Err(Error::output("the text cannot be written").at("standard output").found(error))
        }
        Err(Failure::Run(error)) => Err(error),
        Ok(()) => Ok(()),
    }
}
