//! Work in place, where there is no thread for it: it is done before anybody could ask it to stop.

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

    /// Runs `work`, however long it takes.
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
