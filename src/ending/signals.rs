//! The thread that handles signals: requests to stop, to suspend or to continue.
#![allow(unsafe_code)]

use std::io;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

#[cfg(not(target_vendor = "apple"))]
use libc::SI_USER;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTSTP, SIGXFSZ};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::raw::WithRawSiginfo;
use signal_hook::low_level;

use super::{ASKED, CONTINUED, CTRL_C, ENDING, INTERRUPTED, SUSPENDED, Taken, name, stop, terminal};
use llama_trace_core::error::Error;

/// The time that work has to stop by itself.
const GRACE: Duration = Duration::from_millis(300);
/// The longest time that the end of the process may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest time to write the last message: a terminal may be stopped, a pipe full, the machine busy.
const SAYING: Duration = Duration::from_secs(2);

pub(super) fn watch() -> io::Result<()> {
    share_arenas();
    terminal::remember();
    // Catching the signal is enough: the write beyond the limit then returns an error.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    // Under nohup SIGHUP is ignored, and must stay so.
    let ending =
        ENDING.iter().map(|(signal, _)| *signal).filter(|&signal| signal != SIGHUP || !is_ignored(signal));
    let mut signals = SignalsInfo::<WithRawSiginfo>::new(ending.chain([SIGTSTP, SIGCONT]))?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        for info in signals.forever() {
            match info.si_signo {
                SIGCONT => CONTINUED.store(true, Ordering::SeqCst),
                SIGTSTP => suspend(),
                // The event loop handles it as a key.
                SIGINT if is_key(&info) && terminal::taken() == Some(Taken::Screen) => {
                    CTRL_C.store(true, Ordering::SeqCst);
                }
                SIGINT => match &*INTERRUPTED.lock().unwrap_or_else(PoisonError::into_inner) {
                    Some(stop) => stop.ask(),
                    None => end(SIGINT),
                },
                signal => end(signal),
            }
        }
    })?;
    Ok(())
}

/// Limits the C library to two arenas for all threads. Otherwise it reserves 64 MiB of address space for each thread,
/// also for waiting ones. With limited address space, a file then could not be mapped.
fn share_arenas() {
    // SAFETY: it takes two numbers, and no other thread is running yet.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

/// The code of a signal that a process sent. libc has none for Apple; this is from Apple's <sys/signal.h>.
#[cfg(target_vendor = "apple")]
const SI_USER: i32 = 0x10001;

/// Returns whether the terminal sent the signal because of a key.
fn is_key(info: &libc::siginfo_t) -> bool {
    if cfg!(target_os = "linux") { info.si_code > 0 } else { info.si_code != SI_USER }
}

fn is_ignored(signal: i32) -> bool {
    // SAFETY: a zeroed action is valid. Without a new action, the call only writes the current action to `action`.
    let action = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        (libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0).then_some(action)
    };
    action.is_some_and(|action| action.sa_sigaction == libc::SIG_IGN)
}

/// Stops the process as SIGTSTP does, with the terminal restored for the shell.
fn suspend() {
    // If the process cannot be stopped, it goes on.
    let stop = || drop(low_level::emulate_default_handler(SIGTSTP));
    match terminal::taken() {
        Some(Taken::Screen) => SUSPENDED.store(true, Ordering::SeqCst),
        Some(Taken::Editor) => terminal::without_editor(stop),
        None => stop(),
    }
}

/// Asks all work to stop, and ends the process if it does not.
fn end(signal: i32) {
    ASKED.store(signal, Ordering::SeqCst);
    stop::process().ask();
    // Meanwhile the process usually ends by itself, and this thread with it.
    thread::sleep(GRACE);
    drop(thread::Builder::new().name("last resort".into()).spawn(|| {
        thread::sleep(PATIENCE);
        exit(Error::interrupted("").exit_code());
    }));
    super::now(&Error::interrupted(format!("stopped by {}", name(signal).unwrap_or("a signal"))));
}

/// Restores the terminal, prints `error`, and ends the process.
pub(super) fn leave(error: &Error) -> ! {
    let message = format!("error: {error}\n");
    terminal::restore_screen();
    terminal::restore_settings();
    let (sender, said) = mpsc::channel();
    // Bypasses the standard library's error output: another thread may hold its lock forever.
    let say = move || {
        let _ = rustix::io::write(rustix::stdio::stderr(), message.as_bytes());
        let _ = sender.send(());
    };
    if thread::Builder::new().spawn(say).is_ok() {
        let _ = said.recv_timeout(SAYING);
    }
    exit(error.exit_code())
}

/// Ends the process without flushing other threads' output: it would appear on the restored screen.
pub(super) fn exit(code: u8) -> ! {
    // SAFETY: it takes a number and does not return.
    unsafe { libc::_exit(code.into()) }
}
