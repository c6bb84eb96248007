//! Writing text to standard output as it comes: what of it reaches a terminal, what can go wrong, and what
//! of that is an error.

use std::borrow::Cow;
use std::io::{ErrorKind, IsTerminal, StdoutLock, Write, stdout};

use crate::error::{Error, Result};
use crate::tokenizer::{Piece, TextStream};

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
        let text = if self.terminal { harmless(text) } else { Cow::Borrowed(text) };
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

/// The text with its control characters written out, apart from line feeds and tabs.
fn harmless(text: &str) -> Cow<'_, str> {
    let drives = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(drives) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::new();
    for c in text.chars() {
        match drives(c) {
            true => shown.extend(c.escape_debug()),
            false => shown.push(c),
        }
    }
    Cow::Owned(shown)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_written_out() {
        assert!(matches!(harmless("\ta\n \"é'✨\u{301}"), Cow::Borrowed(_)));
        assert_eq!(harmless("a\u{1b}[2J\u{9b}é\u{7f}\r\n"), "a\\u{1b}[2J\\u{9b}é\\u{7f}\\r\n");
    }
}
