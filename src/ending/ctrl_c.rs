//! Ctrl-C on a system without Unix's signals. It is the only request to stop that such a system sends.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::Duration;

use signal_hook::consts::SIGINT;

use super::{ASKED, INTERRUPTED, stop};
use llama_trace_core::error::Error;

/// Interval at which the thread looks for a Ctrl-C. A signal handler must not ask the work to stop, because it may run
/// while any lock is held.
const LOOK: Duration = Duration::from_millis(20);
/// The time that work has to stop by itself.
const GRACE: Duration = Duration::from_millis(300);

/// Starts the thread that handles Ctrl-C.
pub(super) fn watch() -> io::Result<()> {
    let pressed = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGINT, pressed.clone())?;
    let handle = move || {
        loop {
            thread::sleep(LOOK);
            if !pressed.swap(false, Ordering::SeqCst) {
                continue;
            }
            let target = INTERRUPTED.lock().unwrap_or_else(PoisonError::into_inner).clone();
            match target {
                Some(stop) => stop.ask(),
                None => end(),
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(handle).map(drop)
}

/// Asks all work to stop, and ends the process if it does not.
fn end() {
    ASKED.store(SIGINT, Ordering::SeqCst);
    stop::process().ask();
    // Meanwhile the process usually ends by itself, and this thread with it.
    thread::sleep(GRACE);
    super::now(&Error::interrupted("stopped by SIGINT"));
}
