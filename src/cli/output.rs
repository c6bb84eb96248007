//! Writing text to standard output as it comes: what of it reaches a terminal, what can go wrong, and what
//! of that is an error.

use std::borrow::Cow;
use std::io::{ErrorKind, IsTerminal, StdoutLock, Write, stdout};

use llama_trace_core::error::{Error, Result, printable_json, printable_text};
use llama_trace_formats::tokenizer::{Piece, TextStream};

/// Why a text that is printed as it comes has ended early.
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

/// Standard output for what a model says. A vocabulary is a file that somebody else wrote: its tokens may
/// hold escape sequences, which must not drive the terminal, and bytes that are no UTF-8. A pipe gets every byte
/// as it is.
pub(super) struct Text {
    out: StdoutLock<'static>,
    terminal: bool,
}

impl Text {
    pub(super) fn open() -> Self {
        Self { out: stdout().lock(), terminal: stdout().is_terminal() }
    }

    /// Whether somebody watches.
    pub(super) fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Prints `text` at once.
    pub(super) fn print(&mut self, text: &str) -> std::io::Result<()> {
        let text = if self.terminal { printable_text(text) } else { Cow::Borrowed(text) };
        self.write(text.as_bytes())
    }

    /// Prints what a token adds at once: its text on a terminal, its bytes elsewhere.
    pub(super) fn print_piece(&mut self, piece: &Piece) -> std::io::Result<()> {
        if self.terminal { self.print(&piece.text) } else { self.write(&piece.bytes) }
    }

    /// Prints what `stream` still held back, and returns it. A pipe has its bytes already.
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

/// Standard output for lines of ours with names and words of others in them, which must not drive the terminal:
/// neither now nor when they are read from a file.
pub(super) struct Lines {
    out: StdoutLock<'static>,
    /// The line under way.
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

/// A line of more bytes is not kept until its end.
const MAX_LINE: usize = 64 << 10;

impl Lines {
    /// Writes what there is of the line, without the last character where only a part of it has come.
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

/// Prints a JSON array, a line for each of its elements.
pub(super) fn array(elements: impl Iterator<Item = serde_json::Value>) -> std::io::Result<()> {
    let mut out = Lines::json();
    let mut before = "[";
    for element in elements {
        writeln!(out, "{before}{element}")?;
        before = ",";
    }
    writeln!(out, "{}]", if before == "[" { before } else { "" })
}

/// The end of a command that printed a text.
pub(super) fn end(result: std::result::Result<(), Failure>) -> Result<()> {
    match result {
        // Whoever read the output has seen enough: `llama-trace … | head`.
        Err(Failure::Write(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(Failure::Write(error)) => {
            Err(Error::output("the text cannot be written").at("standard output").found(error))
        }
        Err(Failure::Run(error)) => Err(error),
        Ok(()) => Ok(()),
    }
}
