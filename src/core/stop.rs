//! Asking work to stop: a flag that every long loop looks at between its blocks.
//!
//! There are two kinds. A [`Stop`] belongs to one piece of work, as a backend's passes, and stops nothing else.
//! [`process`] belongs to the whole process: Ctrl-C sets it, every [`Stop`] looks at it too, and loops that have no
//! `Stop` of their own (files, the network) look at it alone.
//!
//! Who stops work leaves nothing half done in sight: an operation that skipped a block returns
//! [`Error::Interrupted`], and what it was to write is not looked at.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

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

/// Waits for so long, or until the process is asked to stop.
///
/// # Errors
/// [`Error::Interrupted`] where it was.
pub fn sleep(time: Duration) -> Result<()> {
    let started = Instant::now();
    loop {
        check()?;
        let left = time.saturating_sub(started.elapsed());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(LOOK));
    }
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

    /// Runs `work`, which cannot look at a request by itself, on a thread of its own, and waits for it until it is
    /// asked to stop. What was begun then goes on by itself, and nobody sees its result. Where the system gives no
    /// thread, this one does the work.
    ///
    /// # Errors
    /// Those of `work`, and [`Error::Interrupted`] where it was asked to stop.
    pub fn unless_asked<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.within(Duration::MAX, interrupted, work)
    }

    /// As [`Self::unless_asked`], and for so long at most.
    ///
    /// # Errors
    /// As [`Self::unless_asked`], and what `late` makes where the time is over.
    pub fn within<T: Send + 'static>(
        &self,
        time: Duration,
        late: impl FnOnce() -> Error,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let work = Arc::new(Mutex::new(Some(work)));
        let take = |work: &Mutex<Option<_>>| work.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (sender, receiver) = channel();
        let started = Instant::now();
        let theirs = Arc::clone(&work);
        let thread = thread::Builder::new().spawn(move || {
            let result = take(&theirs).map(|work| work());
            // Nobody may wait for it any more.
            drop(sender.send(result));
        });
        let result = match thread {
            Err(_) => take(&work).map(|work| work()),
            Ok(thread) => loop {
                self.check()?;
                match receiver.recv_timeout(LOOK.min(time)) {
                    Ok(result) => break result,
                    Err(RecvTimeoutError::Timeout) if started.elapsed() >= time => return Err(late()),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => match thread.join() {
                        Ok(()) => break None,
                        Err(panic) => std::panic::resume_unwind(panic),
                    },
                }
            },
        };
        result.unwrap_or_else(|| Err(interrupted()))
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
