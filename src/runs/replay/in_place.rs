//! A worker without a thread: it does a piece of work whenever the viewer polls for replies.

use std::sync::mpsc::Receiver;
use std::time::Duration;

use super::serve::{Reply, Serves, Serving};
use llama_trace_core::error::Result;

/// The worker.
pub(super) struct Apart(Box<dyn FnMut()>);

impl Apart {
    /// A worker that answers requests with the [`Serving`] that `make` returns. `make` is called before the first piece
    /// of work.
    ///
    /// # Errors
    /// None.
    pub(super) fn begin<W: Serves + 'static>(
        _: (&str, &str),
        make: impl FnOnce() -> Option<Serving<W>> + Send + 'static,
    ) -> Result<Self> {
        // The closure is only called while the viewer exists.
        let (mut make, mut serving) = (Some(make), None);
        Ok(Self(Box::new(move || {
            if let Some(make) = make.take() {
                serving = make().map(Serving::in_steps);
            }
            let Some(serving) = &mut serving else { return };
            match serving.waits().map(Receiver::try_recv) {
                None => drop(serving.step(None)),
                Some(Ok(request)) => drop(serving.step(Some(request))),
                Some(Err(_)) => {}
            }
        })))
    }

    /// Does one piece of work, if there is one.
    pub(super) fn step(&mut self) {
        (self.0)();
    }

    /// Returns true: nothing is running.
    pub(super) fn end(self) -> bool {
        true
    }
}

/// The next reply, if there is one. Waiting would bring none, because no thread is working.
pub(super) fn next(replies: &Receiver<Reply>, _: Duration) -> Option<Reply> {
    replies.try_recv().ok()
}
