//! Who takes the terminal gives it back: when done, when something panics, and when a signal asks to stop.

use std::io::{self, IsTerminal, Write};
use std::panic::{self, PanicHookInfo};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
#[cfg(unix)]
use std::time::Duration;

use crossterm::cursor::{Hide, Show};
use crossterm::event::{
    DisableBracketedPaste, DisableMouseCapture, EnableBracketedPaste, EnableMouseCapture,
};
use crossterm::execute;
use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};

use crate::error::{Error, Result};

/// Whether the terminal is taken now. It is one for the process, and so is this.
static TAKEN: AtomicBool = AtomicBool::new(false);

type Hook = Box<dyn Fn(&PanicHookInfo<'_>) + Sync + Send + 'static>;

/// Holds the terminal in raw mode, on its alternate screen, with mouse and paste events, until dropped.
pub struct Guard {
    signal: Arc<AtomicUsize>,
    /// Once true, signals do again what they do in a program that does not catch them.
    released: Arc<AtomicBool>,
    /// What makes SIGINT end the program again once this is gone.
    #[cfg(unix)]
    interrupt: Option<signal_hook::SigId>,
    previous: Arc<Hook>,
    /// What other threads had to say while the screen was in use.
    elsewhere: Arc<Mutex<Vec<String>>>,
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard").field("signal", &self.signal).finish_non_exhaustive()
    }
}

/// The signals that end the program in order.
#[cfg(unix)]
const STOPPING: [(i32, &str); 3] = [
    (signal_hook::consts::SIGTERM, "SIGTERM"),
    (signal_hook::consts::SIGINT, "SIGINT"),
    (signal_hook::consts::SIGHUP, "SIGHUP"),
];

/// How often the watchdog looks, and so how long the event loop has to see a signal.
#[cfg(unix)]
const GRACE: Duration = Duration::from_secs(1);

impl Guard {
    /// Takes the terminal.
    ///
    /// # Errors
    /// [`Error::Terminal`] where it cannot be taken; it is as before then.
    pub fn take() -> Result<Self> {
        #[cfg_attr(not(unix), expect(unused_mut, reason = "only signals change it"))]
        let mut guard = Self {
            signal: Arc::default(),
            released: Arc::default(),
            #[cfg(unix)]
            interrupt: None,
            previous: Arc::new(panic::take_hook()),
            elsewhere: Arc::default(),
        };
        guard.set_hook();
        guard.catch_signals().and_then(|()| enter()).map_err(|error| failed(&error))?;
        Ok(guard)
    }

    /// The name of the signal that asked the program to stop.
    pub fn stopped_by(&self) -> Option<&'static str> {
        #[cfg(unix)]
        {
            let number = self.signal.load(Ordering::Relaxed);
            STOPPING.iter().find(|(signal, _)| usize::try_from(*signal) == Ok(number)).map(|(_, name)| *name)
        }
        #[cfg(not(unix))]
        None
    }

    /// Gives the terminal back, stops the process as Ctrl-Z does, and takes it again when it is continued.
    ///
    /// # Errors
    /// [`Error::Terminal`] where it cannot be taken again.
    pub fn suspend(&self) -> Result<()> {
        #[cfg(unix)]
        {
            leave();
            let stopped = signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGTSTP);
            stopped.and_then(|()| enter()).map_err(|error| failed(&error))?;
        }
        Ok(())
    }

    /// Gives the terminal back, and leaves SIGINT to whoever else has registered for it.
    pub fn leave_interrupts(self) {
        #[cfg(unix)]
        if let Some(interrupt) = self.interrupt {
            signal_hook::low_level::unregister(interrupt);
        }
    }

    /// A panic of this thread gives the terminal back before its message is written. One of another thread
    /// does not end the program, and its message waits until the screen is free.
    fn set_hook(&self) {
        let (previous, elsewhere, owner) =
            (self.previous.clone(), self.elsewhere.clone(), thread::current().id());
        panic::set_hook(Box::new(move |info| {
            if thread::current().id() == owner {
                leave();
                previous(info);
            } else if let Ok(mut messages) = elsewhere.lock() {
                messages.push(info.to_string());
            }
        }));
    }

    #[cfg(unix)]
    fn catch_signals(&mut self) -> io::Result<()> {
        use signal_hook::flag;
        for (signal, _) in STOPPING {
            let default = flag::register_conditional_default(signal, self.released.clone())?;
            if signal == signal_hook::consts::SIGINT {
                self.interrupt = Some(default);
            }
            flag::register_usize(signal, self.signal.clone(), usize::try_from(signal).unwrap_or(0))?;
        }
        self.watch()
    }

    /// Ends the program where the event loop cannot: when the terminal has gone, with a signal or without,
    /// reading events from it never returns.
    #[cfg(unix)]
    fn watch(&self) -> io::Result<()> {
        let (signal, released) = (self.signal.clone(), self.released.clone());
        let stopped = move || signal.load(Ordering::SeqCst) != 0;
        thread::Builder::new().name("watchdog".into()).spawn(move || {
            loop {
                let late = stopped();
                thread::sleep(GRACE);
                if released.load(Ordering::SeqCst) {
                    return;
                }
                let error = if late {
                    Error::interrupted("")
                } else if !io::stdin().is_terminal() {
                    Error::terminal("")
                } else {
                    continue;
                };
                leave();
                std::process::exit(i32::from(error.exit_code()));
            }
        })?;
        Ok(())
    }

    #[cfg(not(unix))]
    fn catch_signals(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        leave();
        // A signal that was caught ends the program in order; a second one must not cut that short.
        self.released.store(self.signal.load(Ordering::SeqCst) == 0, Ordering::SeqCst);
        if !thread::panicking() {
            drop(panic::take_hook());
            let previous = self.previous.clone();
            panic::set_hook(Box::new(move |info| previous(info)));
        }
        if let Ok(messages) = self.elsewhere.lock() {
            for message in messages.iter() {
                // Where the error output is gone too there is nobody left to tell.
                drop(writeln!(io::stderr(), "{message}"));
            }
        }
    }
}

fn enter() -> io::Result<()> {
    TAKEN.store(true, Ordering::SeqCst);
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen, EnableMouseCapture, EnableBracketedPaste, Hide)
}

/// Gives the terminal back as well as it can: what fails here has nowhere to be told.
fn leave() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        drop(execute!(io::stdout(), DisableBracketedPaste, DisableMouseCapture, LeaveAlternateScreen, Show));
        drop(disable_raw_mode());
    }
}

/// The error for a terminal that does not answer.
pub(super) fn failed(error: &io::Error) -> Error {
    Error::terminal("the terminal failed")
        .found(error)
        .next("use `llama-trace log` or `llama-trace export`, which need no terminal")
}
