//! The end of a process without memory: one message, exit code 4, and the usual cleanup of terminal and folders.
//! Nothing is allocated before the message is written. Then the thread that removes the folders uses the memory
//! reserve.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{CLAIMED, cleanup_thread, signals, terminal};
use llama_trace_core::memory::{answered, purpose};

/// The system's allocator. A failed allocation ends the process, unless its caller handles the failure
/// ([`llama_trace_core::memory::answering`]).
#[derive(Debug)]
pub struct Memory;

/// The exit code of [`llama_trace_core::error::Error::Prompt`], which other messages about memory have too.
const CODE: u8 = 4;

const MESSAGE: [&str; 4] = [
    "error: there is not enough memory",
    "\n     where: ",
    "\n  expected: room for ",
    " bytes more\n      next: raise the limit on memory (ulimit -v), end other programs, or ask for less at once\n",
];

/// The longest time for the removal of folders.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whether the process ends for lack of memory.
static ENDING: AtomicBool = AtomicBool::new(false);

// SAFETY: every block comes from the system's allocator and goes back to it, with its original layout. Only a failed
// allocation is handled differently, and nothing unwinds.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's conditions are the same.
        given(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        given(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        given(unsafe { System.realloc(old, layout, size) }, size)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}

#[inline]
fn given(block: *mut u8, size: usize) -> *mut u8 {
    // Once the process ends, the rest of the memory is for the thread that removes its folders.
    if block.is_null() && !answered() || ENDING.load(Ordering::Relaxed) && !cleanup_thread::is_it() {
        end(size);
    }
    block
}

/// Ends the process if the system has no memory for a thread's first allocations.
pub(super) fn end_where_short() {
    // glibc asks for 1 MiB at once if its heap cannot grow. This asks for twice as much: other threads may have freed
    // some memory since that failed.
    const ROOM: usize = 2 << 20;
    // SAFETY: a new mapping at an address that the system chooses. Its pages are never accessed.
    let room = unsafe {
        libc::mmap(ptr::null_mut(), ROOM, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANON, -1, 0)
    };
    if room == libc::MAP_FAILED {
        end(ROOM);
    }
    // SAFETY: the mapping is ours, and nothing refers to it.
    unsafe { libc::munmap(room, ROOM) };
}

/// Ends the process after a failed allocation of `size` bytes. Does not allocate.
#[cold]
fn end(size: usize) -> ! {
    if cleanup_thread::is_it() {
        signals::exit(CODE);
    }
    if !ENDING.swap(true, Ordering::SeqCst) {
        // Other threads must not print another last message.
        CLAIMED.store(true, Ordering::SeqCst);
        terminal::restore_screen();
        terminal::restore_settings();
        let mut digits = [0; 20];
        let [what, place, expected, next] = MESSAGE;
        let (place, purpose) = if purpose().is_empty() { ("", "") } else { (place, purpose()) };
        for part in [what, place, purpose, expected, written(size, &mut digits), next] {
            // A failed write cannot be reported.
            let _ = rustix::io::write(rustix::stdio::stderr(), part.as_bytes());
        }
        if cleanup_thread::wake(CODE) {
            let started = Instant::now();
            while started.elapsed() < PATIENCE {
                // SAFETY: it takes a number and waits.
                unsafe { libc::usleep(10_000) };
            }
        }
        signals::exit(CODE);
    }
    loop {
        // SAFETY: it takes no arguments and waits.
        unsafe { libc::pause() };
    }
}

/// Writes `number` into `digits`.
fn written(mut number: usize, digits: &mut [u8; 20]) -> &str {
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    std::str::from_utf8(&digits[first..]).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_without_memory() {
        for number in [0, 7, 10, 4096, usize::MAX] {
            assert_eq!(written(number, &mut [0; 20]), number.to_string());
        }
    }

    #[test]
    fn the_exit_code_is_that_of_other_messages_about_memory() {
        assert_eq!(CODE, llama_trace_core::memory::no_memory(1).exit_code());
    }
}
