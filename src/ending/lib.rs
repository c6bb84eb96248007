//! How this process ends. Whatever ends it that can be caught, the terminal is given back, temporary folders go, and
//! one message says what happened.
//!
//! | what | does |
//! |---|---|
//! | SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGXCPU, … | asks the work to stop ([`stop::process`]); what has not ended soon after is ended from outside |
//! | SIGTSTP, SIGCONT | gives the terminal to the shell, and takes it again |
//! | SIGXFSZ | nothing: the write that was too long fails, which is an error like others |
//! | SIGBUS in a file that became shorter | [`lost`] |
//! | memory that the system does not give | [`memory`] |
//! | SIGABRT, SIGSEGV, SIGILL, SIGFPE | gives the terminal back and ends as they do |
//!
//! The terminal is one for the process, and so is this. An output directory that the end of the process must not leave
//! half written is [`replace`]'s.

pub mod folder;
pub mod remove;
pub mod replace;
pub mod scratch;

#[cfg(unix)]
mod last;
#[cfg(unix)]
pub mod lost;
#[cfg(unix)]
pub mod memory;
#[cfg(unix)]
mod signals;
#[cfg(unix)]
mod terminal;

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use llama_trace_core::error::{Error, Result};
use llama_trace_core::stop::{self, Stop};

#[cfg(unix)]
pub use terminal::{SCREEN, Taken, give_back, on_screen, take};

/// The signal that asked the process to end; 0 for none.
static ASKED: AtomicI32 = AtomicI32::new(0);
/// Whether somebody has begun to say how it ends.
static CLAIMED: AtomicBool = AtomicBool::new(false);
/// What SIGINT stops, where that is not the process.
static INTERRUPTED: Mutex<Option<Stop>> = Mutex::new(None);
static SUSPENDED: AtomicBool = AtomicBool::new(false);
static CONTINUED: AtomicBool = AtomicBool::new(false);
static CTRL_C: AtomicBool = AtomicBool::new(false);

/// Watches over the process from here on: to be called before anything is under way. Once is enough.
///
/// # Errors
/// [`Error::Usage`] where signals cannot be caught.
pub fn watch() -> Result<()> {
    static WATCHED: OnceLock<Result<()>> = OnceLock::new();
    let watch = || {
        #[cfg(unix)]
        let watched = signals::watch().and_then(|()| last::start()).and_then(|()| lost::watch());
        #[cfg(not(unix))]
        let watched =
            signal_hook::flag::register(signal_hook::consts::SIGINT, stop::process().flag()).map(drop);
        watched.map_err(|error| {
            // A thread that does not start for lack of memory says no more than one too many.
            #[cfg(unix)]
            drop(std::hint::black_box(Vec::<u8>::with_capacity(last::KEPT)));
            let (room, next) = match no_file(&error) {
                true => ("the files", "raise the limit on open files (ulimit -n)"),
                false => ("the thread", "raise the limit on processes (ulimit -u), or end other programs"),
            };
            Error::usage("signals cannot be caught")
                .expected(format!("room for {room} that waiting for them takes"))
                .found(error)
                .next(next)
        })
    };
    WATCHED.get_or_init(watch).clone()
}

/// Whether the system has no room for one more open file.
fn no_file(error: &std::io::Error) -> bool {
    #[cfg(unix)]
    return matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
    #[cfg(not(unix))]
    false
}

/// The name of the signal that asked the process to end.
pub fn asked() -> Option<&'static str> {
    name(ASKED.load(Ordering::SeqCst))
}

/// The error of a process that a signal asked to end, and of no other.
///
/// # Errors
/// [`Error::Interrupted`], which names it.
pub fn check() -> Result<()> {
    asked().map_or(Ok(()), |signal| Err(Error::interrupted(format!("stopped by {signal}"))))
}

/// `error`, with the signal that caused it where it does not say.
#[must_use]
pub fn explain(error: Error) -> Error {
    let error = match asked() {
        Some(signal) if matches!(error, Error::Interrupted(_)) && signal != "SIGINT" => {
            let says = error.to_string().contains(signal);
            if says { error } else { error.found(signal) }
        }
        _ => error,
    };
    still_removed(error)
}

/// `error`, with what another process is doing still.
fn still_removed(error: Error) -> Error {
    match remove::going_on() {
        Some(what) => error.next(format!("nothing to do; {what}")),
        None => error,
    }
}

/// This program, to be started once more.
///
/// # Errors
/// Where the system does not say what it is.
pub fn program() -> std::io::Result<std::path::PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() }
}

/// SIGINT asks `stop`, and does not end the process any more; none is as before.
pub fn interrupts(stop: Option<Stop>) {
    *INTERRUPTED.lock().unwrap_or_else(PoisonError::into_inner) = stop;
}

/// Whether SIGTSTP came, once for each: whoever has the screen gives it back and stops the process.
pub fn suspended() -> bool {
    SUSPENDED.swap(false, Ordering::SeqCst)
}

/// Whether the process went on after it was stopped, once for each: whoever has the screen takes it again.
pub fn continued() -> bool {
    CONTINUED.swap(false, Ordering::SeqCst)
}

/// Whether Ctrl-C was pressed while the screen was taken, once for each.
pub fn ctrl_c() -> bool {
    CTRL_C.swap(false, Ordering::SeqCst)
}

/// Whether it is for the caller to say how the process ends; only the first one is told so, and must end it.
fn claim() -> bool {
    !CLAIMED.swap(true, Ordering::SeqCst)
}

/// Says in the caller's stead how the process ends, where a signal has not begun to already; then this does not
/// return, and the process ends as that says.
pub fn say(tell: impl FnOnce()) {
    if claim() {
        return tell();
    }
    loop {
        std::thread::park();
    }
}

/// Ends the process now, from any thread: with the terminal given back, temporary folders gone or going, and `error`'s message
/// and exit code. Nothing else is finished first.
pub fn now(error: &Error) -> ! {
    if !claim() {
        loop {
            std::thread::park();
        }
    }
    scratch::remove_all();
    #[cfg(unix)]
    signals::leave(&still_removed(error.clone()));
    #[cfg(not(unix))]
    std::process::exit(i32::from(error.exit_code()))
}

/// The signals that ask the process to end.
#[cfg(unix)]
const ENDING: [(i32, &str); 10] = [
    (signal_hook::consts::SIGINT, "SIGINT"),
    (signal_hook::consts::SIGTERM, "SIGTERM"),
    (signal_hook::consts::SIGHUP, "SIGHUP"),
    (signal_hook::consts::SIGQUIT, "SIGQUIT"),
    (signal_hook::consts::SIGUSR1, "SIGUSR1"),
    (signal_hook::consts::SIGUSR2, "SIGUSR2"),
    (signal_hook::consts::SIGALRM, "SIGALRM"),
    (signal_hook::consts::SIGVTALRM, "SIGVTALRM"),
    (signal_hook::consts::SIGPROF, "SIGPROF"),
    (signal_hook::consts::SIGXCPU, "SIGXCPU"),
];

#[cfg(not(unix))]
const ENDING: [(i32, &str); 1] = [(signal_hook::consts::SIGINT, "SIGINT")];

fn name(signal: i32) -> Option<&'static str> {
    ENDING.iter().find(|(number, _)| *number == signal).map(|(_, name)| *name)
}
