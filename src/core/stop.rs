//! Cancellation: a flag that every long loop checks between its blocks.
//!
//! There are two kinds. A [`Stop`] cancels one piece of work, such as a backend's passes. [`process`] cancels the whole
//! process: Ctrl-C sets it, and every [`Stop`] checks it too. Loops without a `Stop` of their own (files, the network)
//! check only [`process`].
//!
//! Cancelled work leaves no partial result in use. An operation that skipped a block returns [`Error::Interrupted`],
//! and its output is not read.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

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

/// How often waiting code checks for a request.
pub const LOOK: Duration = Duration::from_millis(50);

/// Waits for `time`, or until the process is asked to stop.
///
/// # Errors
/// [`Error::Interrupted`] if the process was asked to stop.
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

/// [`Stop::check`] of [`process`], for work without its own [`Stop`].
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

    /// Whether this work, or the whole process, was asked to stop.
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

    /// Runs `work`, which cannot check a request itself, on its own thread, and waits until it ends or is asked to
    /// stop. After a request the thread continues, and its result is dropped. If the system gives no thread, the
    /// calling thread does the work.
    ///
    /// # Errors
    /// Those of `work`, and [`Error::Interrupted`] if it was asked to stop.
    pub fn unless_asked<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.within(Duration::MAX, interrupted, work)
    }

    /// [`Self::unless_asked`] with a time limit.
    ///
    /// # Errors
    /// Those of [`Self::unless_asked`], and the error of `late` after the time limit.
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
            // The receiver may be gone.
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
