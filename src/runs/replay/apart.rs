//! Work on a thread of its own, which waits for requests.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::serve::{Reply, Serves, Serving};
use llama_trace_core::error::{Error, Result};

/// Who computes.
pub(super) struct Apart(JoinHandle<()>);

impl Apart {
    /// Answers on a new thread called `name`, for the `purpose` that a message names, as what `make` makes there.
    ///
    /// # Errors
    /// Where no thread can be started.
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

    /// Nothing: the thread does it.
    pub(super) fn step(&mut self) {}

    /// Waits for its end. Whether it came to one without a panic.
    pub(super) fn end(self) -> bool {
        self.0.join().is_ok()
    }
}

/// The next reply, where one comes within `most`. Where none will come it is none after that time; who asks is told.
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
