//! Keys, the mouse and pastes, read on a thread of their own: a sequence that was cut off keeps its reader waiting for
//! the rest, which may never come, and the event loop must not wait with it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};

use llama_trace_core::error::{Error, Result};
use llama_trace_ending as ending;

/// How often the thread looks whether it is over.
const LOOK: Duration = Duration::from_millis(30);

/// How long is waited for the thread.
const PATIENCE: Duration = Duration::from_millis(300);

/// The events of the terminal, until it is dropped.
pub(super) struct Keys {
    events: Receiver<io::Result<Event>>,
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Keys {
    pub(super) fn start() -> Result<Self> {
        let (sender, events) = mpsc::channel();
        let over = Arc::<AtomicBool>::default();
        let ended = Arc::clone(&over);
        let (listens, listening) = mpsc::channel();
        let thread = thread::Builder::new().name("keys".into()).spawn(move || {
            // From the first look on a new size of the window is heard.
            let _ = (event::poll(Duration::ZERO), listens.send(()));
            while !ended.load(Ordering::SeqCst) {
                let event = match event::poll(LOOK) {
                    Ok(false) => continue,
                    Ok(true) => event::read(),
                    Err(error) => Err(error),
                };
                let failed = event.is_err();
                if sender.send(event).is_err() || failed {
                    return;
                }
            }
        });
        let thread = thread.map_err(|error| Error::no_thread("to read the keys", &error))?;
        // Nothing is drawn before: a size that changes right after it would be missed. A sequence that was cut off keeps the
        // thread longer.
        let _ = listening.recv_timeout(PATIENCE);
        Ok(Self { events, over, thread })
    }

    /// The next event, where one comes within `wait`. Ctrl-C, which the terminal makes a signal, comes before others.
    pub(super) fn next(&self, wait: Duration) -> io::Result<Option<Event>> {
        let key = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        let ctrl_c = || ending::ctrl_c().then_some(Event::Key(key));
        if let Some(event) = ctrl_c() {
            return Ok(Some(event));
        }
        match self.events.recv_timeout(wait) {
            Ok(event) => event.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(ctrl_c()),
            Err(RecvTimeoutError::Disconnected) => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl Drop for Keys {
    /// Lets go of the terminal, for whoever reads it next. A thread that waits for the rest of a sequence cannot.
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let started = Instant::now();
        while !self.thread.is_finished() && started.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(2));
        }
    }
}
