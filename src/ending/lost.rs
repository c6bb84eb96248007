//! Handlers of fault signals. One fault is not a defect of this program: another program shortens a memory-mapped file,
//! and a read past the new end raises SIGBUS.
//!
//! The handler writes a prepared message, wakes the thread that cleans up, and waits for the end. A handler may not
//! lock or allocate, and the failed read can never continue.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use libc::{c_int, c_void, siginfo_t};

use super::{cleanup_thread, memory, terminal};
use llama_trace_core::error::Error;

/// Faults after which the process cannot go on.
const FAULTS: [c_int; 5] = [libc::SIGBUS, libc::SIGABRT, libc::SIGSEGV, libc::SIGILL, libc::SIGFPE];

/// The actions of these signals before our handlers were installed.
static BEFORE: OnceLock<[libc::sigaction; FAULTS.len()]> = OnceLock::new();
static LOST: AtomicBool = AtomicBool::new(false);
/// The exit code of [`Error::Model`].
const CODE: u8 = 3;
/// The newest entry of a list that only grows: a handler may be reading any entry.
static NEWEST: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());

/// A range of memory-mapped bytes, and the message if they are lost.
struct Entry {
    start: usize,
    length: usize,
    message: Vec<u8>,
    watched: AtomicBool,
    older: AtomicPtr<Entry>,
}

/// Memory that is watched until this value is dropped.
pub struct Watched(&'static AtomicBool);

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watched")
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// From now on, the process ends with `error` if any of the `length` bytes at `start` is lost. The bytes are not read.
pub fn watch_memory(start: usize, length: usize, error: &Error) -> Watched {
    let message = format!("error: {error}\n").into_bytes();
    let older = AtomicPtr::new(ptr::null_mut());
    // The handler needs the entry until the process ends. An entry has a few hundred bytes, one for each opened file.
    let entry: &'static Entry =
        Box::leak(Box::new(Entry { start, length, message, watched: AtomicBool::new(true), older }));
    let new = ptr::from_ref(entry).cast_mut();
    let link = |newest: *mut Entry| {
        entry.older.store(newest, Ordering::SeqCst);
        Some(new)
    };
    // The update never fails: `link` always returns a new value.
    let _ = NEWEST.fetch_update(Ordering::SeqCst, Ordering::SeqCst, link);
    Watched(&entry.watched)
}

/// Returns the message for the file that is mapped at `address`.
fn message(address: usize) -> Option<&'static [u8]> {
    let mut next = &NEWEST;
    loop {
        // SAFETY: pointers in this list are null or to leaked entries. Only the atomics of an entry change.
        let entry: &'static Entry = unsafe { next.load(Ordering::SeqCst).as_ref() }?;
        let within = address.wrapping_sub(entry.start) < entry.length;
        if within && entry.watched.load(Ordering::SeqCst) {
            return Some(&entry.message);
        }
        next = &entry.older;
    }
}

/// Installs the handlers of faults.
pub(super) fn watch() -> io::Result<()> {
    // SAFETY: zeroed actions are valid, and they are filled in before use. The handler has the signature that
    // SA_SIGINFO requires, and only does what is safe in a handler (see there).
    unsafe {
        let mut before: [libc::sigaction; FAULTS.len()] = std::mem::zeroed();
        for (&signal, before) in FAULTS.iter().zip(&mut before) {
            if libc::sigaction(signal, ptr::null(), before) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        let _ = BEFORE.set(before);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as extern "C" fn(_, _, _) as usize;
        // The handler runs on the alternate stack that the standard library set up: the thread's own stack may have
        // overflowed.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        for signal in FAULTS {
            if libc::sigaction(signal, &raw const action, ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    Ok(())
}

/// Handles a fault. Uses only what is async-signal-safe: atomics, write, tcsetattr, sigaction, pause, mmap, and leaked
/// data.
extern "C" fn handle(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: with SA_SIGINFO the system passes the signal's information, with the address of a fault.
    let address = unsafe { (*info).si_addr() } as usize;
    if signal == libc::SIGBUS
        && let Some(message) = message(address)
    {
        if !LOST.swap(true, Ordering::SeqCst) {
            // Restore before the message: in raw mode a line feed does not return to the first column.
            terminal::restore_screen();
            terminal::restore_settings();
            // SAFETY: the pointer and the length are those of a leaked slice. A failed write is ignored.
            unsafe {
                libc::write(libc::STDERR_FILENO, message.as_ptr().cast(), message.len());
            }
            cleanup_thread::wake(CODE);
        }
        // Every other thread that reads the file comes here too, and waits for the end.
        loop {
            // SAFETY: it takes no arguments and waits.
            unsafe { libc::pause() };
        }
    }
    // The C library aborts if it has no memory for a new thread.
    if signal == libc::SIGABRT {
        memory::end_where_short();
    }
    terminal::restore_screen();
    terminal::restore_settings();
    let before = BEFORE.get().zip(FAULTS.iter().position(|&fault| fault == signal));
    if let Some((before, index)) = before {
        // SAFETY: this is the action from before. After the return, the fault or abort raises the signal again.
        unsafe { libc::sigaction(signal, &raw const before[index], ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_that_of_other_messages_about_models() {
        assert_eq!(CODE, Error::model("").exit_code());
    }

    #[test]
    fn a_message_is_found_for_as_long_as_its_memory_is_watched() {
        let at = 1 << 60;
        let first = watch_memory(at, 10, &Error::model("first"));
        let second = watch_memory(at + 10, 10, &Error::model("second"));
        let text = |address| message(address).map(String::from_utf8_lossy);
        assert_eq!(text(at).as_deref(), Some("error: first\n"));
        assert_eq!(text(at + 9).as_deref(), Some("error: first\n"));
        assert_eq!(text(at + 10).as_deref(), Some("error: second\n"));
        assert_eq!((text(at - 1), text(at + 20)), (None, None));
        drop(first);
        assert_eq!(text(at), None);
        drop(second);
    }
}
