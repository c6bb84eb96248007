//! The thread that removes temporary folders and ends the process when no other thread can: inside a signal handler,
//! and out of memory. It has a memory reserve for this.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::io::{self, Read};
use std::os::fd::IntoRawFd;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use std::thread;

use super::{scratch, signals};

/// Bytes of reserved address space: for stacks, and for allocations of the C library when it reads a folder.
pub(super) const KEPT: usize = 4 << 20;

/// The pipe that wakes the thread.
static WAKE: AtomicI32 = AtomicI32::new(-1);
static RESERVE: AtomicPtr<libc::c_void> = AtomicPtr::new(ptr::null_mut());

thread_local! {
    static IS_IT: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether the current thread is the cleanup thread and has been woken.
pub(super) fn is_it() -> bool {
    IS_IT.get()
}

/// Starts the thread. If the reserve cannot be mapped, the process does not start: it could not remove its folders.
pub(super) fn start() -> io::Result<()> {
    keep()?;
    let (mut wake, waker) = io::pipe()?;
    thread::Builder::new().name("ending".into()).spawn(move || {
        let mut code = [0];
        if wake.read_exact(&mut code).is_ok() {
            IS_IT.set(true);
            release();
            scratch::remove_all();
            signals::exit(code[0]);
        }
    })?;
    WAKE.store(waker.into_raw_fd(), Ordering::SeqCst);
    Ok(())
}

/// Makes the thread end the process with this code; false if there is no thread yet. Async-signal-safe.
pub(super) fn wake(code: u8) -> bool {
    // SAFETY: the pointer leads to one byte. A failed write is reported.
    unsafe { libc::write(WAKE.load(Ordering::SeqCst), [code].as_ptr().cast(), 1) == 1 }
}

fn keep() -> io::Result<()> {
    // SAFETY: a new mapping at an address that the system chooses. Its pages are never accessed.
    let kept = unsafe {
        libc::mmap(ptr::null_mut(), KEPT, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANON, -1, 0)
    };
    if kept == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    RESERVE.store(kept, Ordering::SeqCst);
    Ok(())
}

fn release() {
    let kept = RESERVE.swap(ptr::null_mut(), Ordering::SeqCst);
    if !kept.is_null() {
        // SAFETY: the mapping is ours, and nothing refers to it.
        unsafe { libc::munmap(kept, KEPT) };
    }
}
