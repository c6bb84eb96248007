//! The end of this process. Every ending that can be caught restores the terminal, removes temporary folders, and
//! prints one message about the cause.
//!
//! | event | action |
//! |---|---|
//! | SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGXCPU, … | asks the work to stop ([`stop::process`]); ends the process if it does not stop soon |
//! | SIGTSTP, SIGCONT | gives the terminal to the shell, and takes it again |
//! | SIGXFSZ | nothing: the write beyond the limit fails, which is an error like others |
//! | SIGBUS in a file that became shorter | [`lost`] |
//! | failed allocation | [`memory`] |
//! | SIGABRT, SIGSEGV, SIGILL, SIGFPE | restores the terminal, then the default action |
//!
//! Windows has only Ctrl-C of these. A mapped file cannot be shortened there. A failed allocation or a crash ends the
//! process at once.
//!
//! A process has one terminal, so this state is global. [`replace`] writes an output directory so that the end of the
//! process does not leave it half written.

pub mod folder;
pub mod remove;
pub mod replace;
pub mod scratch;

#[cfg(unix)]
mod cleanup_thread;
#[cfg(not(unix))]
mod ctrl_c;
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
/// Whether a thread has claimed the last message of the process.
static CLAIMED: AtomicBool = AtomicBool::new(false);
/// The work that SIGINT stops, if that is not the whole process.
static INTERRUPTED: Mutex<Option<Stop>> = Mutex::new(None);
static SUSPENDED: AtomicBool = AtomicBool::new(false);
static CONTINUED: AtomicBool = AtomicBool::new(false);
static CTRL_C: AtomicBool = AtomicBool::new(false);

/// Installs the handlers. Must be called before any work starts; calling it once is enough.
///
/// # Errors
/// [`Error::Usage`] if signals cannot be caught.
pub fn watch() -> Result<()> {
    static WATCHED: OnceLock<Result<()>> = OnceLock::new();
    let watch = || {
        #[cfg(unix)]
        let watched = signals::watch().and_then(|()| cleanup_thread::start()).and_then(|()| lost::watch());
        #[cfg(not(unix))]
        let watched = ctrl_c::watch();
        watched.map_err(|error| {
            // If the thread does not start for lack of memory, the error looks like too many threads. This allocation
            // then fails with the right message.
            #[cfg(unix)]
            drop(std::hint::black_box(Vec::<u8>::with_capacity(cleanup_thread::KEPT)));
            let (room, next) = match no_file(&error) {
                true => ("the files", "raise the limit on open files (ulimit -n)"),
                false => ("the thread", "raise the limit on processes (ulimit -u), or end other programs"),
            };
            Error::usage("signals cannot be caught")
                .expected(format!("room for {room} that signal handling needs"))
                .found(error)
                .next(next)
        })
    };
    WATCHED.get_or_init(watch).clone()
}

/// Whether the limit on open files is reached.
#[cfg(unix)]
fn no_file(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

#[cfg(not(unix))]
fn no_file(_: &std::io::Error) -> bool {
    false
}

/// Returns the name of the signal that asked the process to end.
pub fn asked() -> Option<&'static str> {
    name(ASKED.load(Ordering::SeqCst))
}

/// Returns an error if a signal asked the process to end.
///
/// # Errors
/// [`Error::Interrupted`] with the signal's name.
pub fn check() -> Result<()> {
    asked().map_or(Ok(()), |signal| Err(Error::interrupted(format!("stopped by {signal}"))))
}

/// Adds the signal that caused `error`, if the message does not name it.
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

/// Adds to `error` that another process is still removing folders, if this is so.
fn still_removed(error: Error) -> Error {
    match remove::going_on() {
        Some(what) => error.next(format!("nothing to do; {what}")),
        None => error,
    }
}

/// Returns the path of this program, to start it once more.
///
/// # Errors
/// If the system does not report it.
pub fn program() -> std::io::Result<std::path::PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() }
}

/// Makes SIGINT ask `stop` instead of ending the process; `None` restores the default.
pub fn interrupts(stop: Option<Stop>) {
    *INTERRUPTED.lock().unwrap_or_else(PoisonError::into_inner) = stop;
}

/// Whether SIGTSTP came since the last call. The owner of the screen then gives the screen back and stops the process.
pub fn suspended() -> bool {
    SUSPENDED.swap(false, Ordering::SeqCst)
}

/// Whether the process was continued since the last call. The owner of the screen then takes the screen again.
pub fn continued() -> bool {
    CONTINUED.swap(false, Ordering::SeqCst)
}

/// Whether Ctrl-C was pressed on the viewer's screen since the last call.
pub fn ctrl_c() -> bool {
    CTRL_C.swap(false, Ordering::SeqCst)
}

/// Claims the last message of the process. Returns true for the first caller only, which must then end the process.
fn claim() -> bool {
    !CLAIMED.swap(true, Ordering::SeqCst)
}

/// Runs `tell`, which prints the last message. If the message of a signal has been claimed already, this does not
/// return: the process ends with that message.
pub fn say(tell: impl FnOnce()) {
    if claim() {
        return tell();
    }
    loop {
        std::thread::park();
    }
}

/// Ends the process now, from any thread, with `error`'s message and exit code. The terminal is restored, and temporary
/// folders are removed or handed over. No other work is finished first.
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
    {
        use std::io::Write;
        // If standard error is gone, the message is lost.
        let _ = writeln!(std::io::stderr(), "error: {}", still_removed(error.clone()));
        std::process::exit(i32::from(error.exit_code()))
    }
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
