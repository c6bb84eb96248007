//! Asking work to stop: a flag that every long loop looks at between its blocks.
//!
//! There are two kinds. A [`Stop`] belongs to one piece of work, as a backend's passes, and stops nothing else.
//! [`process`] belongs to the whole process: Ctrl-C sets it, every [`Stop`] looks at it too, and loops that have no
//! `Stop` of their own (files, the network) look at it alone.
//!
//! Who stops work leaves nothing half done in sight: an operation that skipped a block returns
//! [`Error::Interrupted`], and what it was to write is not looked at.

#[cfg_attr(not(feature = "native"), path = "stop/in_place.rs")]
mod apart;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use crate::error::{Error, Result};
#[cfg(feature = "native")]
pub use apart::sleep;

/// A request to stop, which all clones share.
///
/// Who asks may be on any thread. Who clears must know that the work is over: work that looks at a request only
/// after it was cleared goes on.
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

/// How soon who waits sees that it was asked to stop.
pub const LOOK: Duration = Duration::from_millis(50);

/// [`Stop::check`] of [`process`], for work that has no [`Stop`] of its own.
///
/// # Errors
/// [`Error::Interrupted`] where the process was asked to stop.
pub fn check() -> Result<()> {
    process().check()
}

impl Stop {
    /// Asks the work to stop.
    pub fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Whether this work, or the whole process, was asked to stop.
    #[inline]
    pub fn asked(&self) -> bool {
        #[cfg(any(test, feature = "testing"))]
        self.looks.look(self);
        self.asked.load(Ordering::Relaxed) || PROCESS.asked.load(Ordering::Relaxed)
    }

    /// Takes the request back, once the work is over; not the one to the whole process.
    pub fn clear(&self) {
        self.asked.store(false, Ordering::Relaxed);
    }

    /// Ends the work by `?` where it was asked to stop.
    ///
    /// # Errors
    /// [`Error::Interrupted`] where it was.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.asked() { Err(interrupted()) } else { Ok(()) }
    }

    /// The flag itself, for a signal handler to set.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.asked)
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
