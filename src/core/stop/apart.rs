//! Waiting for work on a separate thread.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{LOOK, Stop, check, interrupted};
use crate::error::{Error, Result};

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

impl Stop {
    /// Runs `work`, which cannot check for a request itself, on a separate thread. Waits until `work` ends or a request
    /// comes. After a request, the thread continues, and its result is dropped. If the system gives no thread, the
    /// calling thread does the work.
    ///
    /// # Errors
    /// Those of `work`, and [`Error::Interrupted`] if a request came.
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
}
