//! Marks without a file.

use super::Marks;
use llama_trace_core::error::Result;

/// The absent file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct File;

impl File {
    /// Does nothing.
    pub(super) fn changed(&mut self, _: char) {}
}

impl Marks {
    /// Does nothing.
    ///
    /// # Errors
    /// None.
    pub fn save(&mut self) -> Result<()> {
        Ok(())
    }
}
