//! Ctrl-C while something is under way that should end in order, in commands that it otherwise ends at once.
//!
//! A handler once set cannot be taken back to the system's own. So the one set here stays, and when nothing
//! is under way any more it does what the system would; commands with handlers of their own remove it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use signal_hook::SigId;
use signal_hook::consts::SIGINT;

use crate::error::{Error, Result};

/// What ends the program at Ctrl-C when nothing is under way.
static DEFAULT: Mutex<Option<SigId>> = Mutex::new(None);

/// Ctrl-C is caught while this lives.
pub(super) struct Caught {
    pressed: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
    handler: SigId,
}

impl Caught {
    pub(super) fn new() -> Result<Self> {
        let failed = |error: std::io::Error| Error::terminal("Ctrl-C cannot be caught").found(error);
        let (pressed, over) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let handler = signal_hook::flag::register(SIGINT, Arc::clone(&pressed)).map_err(failed)?;
        let default = signal_hook::flag::register_conditional_default(SIGINT, Arc::clone(&over));
        replace(Some(default.map_err(failed)?));
        Ok(Self { pressed, over, handler })
    }

    pub(super) fn is_set(&self) -> bool {
        self.pressed.load(Ordering::Relaxed)
    }
}

impl Drop for Caught {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        signal_hook::low_level::unregister(self.handler);
    }
}

/// Leaves Ctrl-C to whoever has registered for it since.
pub(super) fn hand_over() {
    replace(None);
}

fn replace(new: Option<SigId>) {
    let mut default = DEFAULT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(old) = std::mem::replace(&mut *default, new) {
        signal_hook::low_level::unregister(old);
    }
}
