//! Work without a thread: it ends before a request to stop could come.

use std::time::Duration;

use super::Stop;
use crate::error::{Error, Result};

impl Stop {
    /// Runs `work`.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn unless_asked<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        work()
    }

    /// Runs `work` without a time limit.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn within<T: Send + 'static>(
        &self,
        _: Duration,
        _: impl FnOnce() -> Error,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        work()
    }
}
