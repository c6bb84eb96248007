//! Writing text to standard output as it comes: what can go wrong, and what of it is an error.

use std::io::ErrorKind;

use crate::error::{Error, Result};

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
