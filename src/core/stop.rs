//! Cancellation: a flag that every long loop checks between its blocks.
//!
//! There are two kinds. A [`Stop`] cancels one piece of work, such as a backend's passes. [`process`] cancels the whole
//! process: Ctrl-C sets it, and every [`Stop`] checks it too. Loops without a `Stop` of their own (files, the network)
//! check only [`process`].
//!
//! Cancelled work leaves no partial result in use. An operation that skipped a block returns [`Error::Interrupted`],
//! and its output is not read.

#[cfg_attr(not(feature = "native"), path = "stop/in_place.rs")]
mod apart;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use crate::error::{Error, Result};
#[cfg(feature = "native")]
pub use apart::sleep;

/// A request to stop, shared by all clones.
///
/// Any thread may set it. Clear it only after the work has ended: work that checks the flag after it was cleared
/// continues.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    asked: Arc<AtomicBool>,
    #[cfg(any(test, feature = "testing"))]
    looks: Arc<testing::Looks>,
}

static PROCESS: LazyLock<Stop> = LazyLock::new(Stop::default);

/// The request that stops everything in this process.
pub fn process() -> &'static Stop {
    &PROCESS
}

/// The interval at which waiting code checks for a request.
pub const LOOK: Duration = Duration::from_millis(50);

/// [`Stop::check`] of [`process`], for work that has no [`Stop`] of its own.
///
/// # Errors
/// [`Error::Interrupted`] if the process was asked to stop.
pub fn check() -> Result<()> {
    process().check()
}

impl Stop {
    /// Asks the work to stop.
    pub fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Returns whether this work, or the whole process, was asked to stop.
    #[inline]
    pub fn asked(&self) -> bool {
        #[cfg(any(test, feature = "testing"))]
        self.looks.look(self);
        self.asked.load(Ordering::Relaxed) || PROCESS.asked.load(Ordering::Relaxed)
    }

    /// Clears the request after the work has ended. A request to the whole process stays.
    pub fn clear(&self) {
        self.asked.store(false, Ordering::Relaxed);
    }

    /// Returns an error if the work was asked to stop.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if it was.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.asked() { Err(interrupted()) } else { Ok(()) }
    }
}

#[cold]
fn interrupted() -> Error {
    Error::interrupted("interrupted")
}

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
