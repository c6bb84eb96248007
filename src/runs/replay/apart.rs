//! A worker on its own thread, which waits for requests.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::serve::{Reply, Serves, Serving};
use llama_trace_core::error::{Error, Result};

/// The worker.
pub(super) struct Apart(JoinHandle<()>);

impl Apart {
    /// Starts a thread called `name`, which answers requests with the [`Serving`] that `make` returns. An error names
    /// the `purpose` of the thread.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(super) fn begin<W: Serves>(
        (name, purpose): (&str, &str),
        make: impl FnOnce() -> Option<Serving<W>> + Send + 'static,
    ) -> Result<Self> {
        let work = move || {
            let Some(mut serving) = make() else { return };
            loop {
                let first = match serving.waits().map(Receiver::recv) {
                    None => None,
                    Some(Ok(request)) => Some(request),
                    Some(Err(_)) => return,
                };
                if !serving.step(first) {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name(name.into()).spawn(work);
        thread.map(Self).map_err(|error| Error::no_thread(purpose, &error))
    }

    /// Does nothing, because the thread does the work.
    pub(super) fn step(&mut self) {}

    /// Waits for the thread's end. Returns whether it ended without a panic.
    pub(super) fn end(self) -> bool {
        self.0.join().is_ok()
    }
}

/// The next reply, if one comes within `most`.
pub(super) fn next(replies: &Receiver<Reply>, most: Duration) -> Option<Reply> {
    match replies.recv_timeout(most) {
        Ok(reply) => Some(reply),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => {
            thread::sleep(most);
            None
        }
    }
}
