//! Asking work to stop: a flag that every long loop looks at between its blocks.
//!
//! There are two kinds. A [`Stop`] belongs to one piece of work, as a backend's passes, and stops nothing else.
//! [`process`] belongs to the whole process: Ctrl-C sets it, every [`Stop`] looks at it too, and loops that have no
//! `Stop` of their own (files, the network) look at it alone.
//!
//! Who stops work leaves nothing half done in sight: an operation that skipped a block returns
//! [`Error::Interrupted`], and what it was to write is not looked at.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use crate::error::{Error, Result};

/// A request to stop, which all clones share.
///
/// Who asks may be on any thread. Who clears must know that the work is over: work that looks at a request only
/// after it was cleared goes on.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    asked: Arc<AtomicBool>,
}

static PROCESS: LazyLock<Stop> = LazyLock::new(Stop::default);

/// The request that stops everything in this process.
pub fn process() -> &'static Stop {
    &PROCESS
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_a_request_and_others_do_not() {
        let (stop, other) = (Stop::default(), Stop::default());
        let clone = stop.clone();
        clone.ask();
        assert!(stop.asked() && matches!(stop.check(), Err(Error::Interrupted(_))));
        assert!(other.check().is_ok());
        stop.clear();
        assert!(clone.check().is_ok());
    }
}
