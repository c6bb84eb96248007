//! The compute threads: how many there are, and starting fewer if the system refuses some.

use std::ffi::OsStr;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use rayon::{ThreadBuilder, ThreadPoolBuilder};

use super::tell;
use llama_trace_core::error::{Error, Result};
use llama_trace_formats::files::printable;

/// Maximum number of threads: more than the cores of any machine.
const MAX: usize = 1024;

/// The environment variable that sets rayon's number of threads.
const VARIABLE: &str = "RAYON_NUM_THREADS";

/// Whether the threads were started. A process starts them only once.
static STARTED: AtomicBool = AtomicBool::new(false);

/// Starts the threads, unless they are started already. Their number is the given one, or else the number in
/// [`VARIABLE`], or else one for each core. If the system refuses some of them, fewer are used.
pub(super) fn start(asked: Option<usize>) -> Result<()> {
    if STARTED.load(Ordering::Relaxed) {
        return Ok(());
    }
    if let Some(threads) = asked
        && !(1..=MAX).contains(&threads)
    {
        return Err(Error::usage("the number of threads is out of range")
            .expected(format!("--threads from 1 to {MAX}"))
            .found(threads)
            .next("give another number, or leave --threads out for one thread per core"));
    }
    let wanted = match asked {
        Some(threads) => threads,
        None => of_variable(std::env::var_os(VARIABLE).as_deref())
            .unwrap_or_else(|| thread::available_parallelism().map_or(1, NonZero::get)),
    };
    let spawn = |run| thread::Builder::new().spawn(run).map(drop);
    let mut threads = started(wanted, spawn)?;
    if threads.len() < wanted {
        let count = threads.len();
        tell(format_args!("The system refuses to start {wanted} threads: computing on {count}."));
    }
    let pool = ThreadPoolBuilder::new().num_threads(threads.len()).spawn_handler(|thread| {
        // For each closure there is a waiting thread.
        let _ = threads.pop().map(|start| start.send(thread));
        Ok(())
    });
    match pool.build_global() {
        // If no number was given, the existing threads are used.
        Err(error) if asked.is_some_and(|threads| threads != rayon::current_num_threads()) => {
            Err(Error::usage("the threads cannot be started").found(error).next("ask for fewer threads"))
        }
        _ => {
            STARTED.store(true, Ordering::Relaxed);
            Ok(())
        }
    }
}

/// The number in [`VARIABLE`]; none if it is unset, not a number, or 0 (rayon's default).
fn of_variable(value: Option<&OsStr>) -> Option<usize> {
    let value = value.filter(|value| !value.is_empty())?.to_string_lossy();
    match value.parse() {
        Ok(threads) if threads > MAX => {
            tell(format_args!("{VARIABLE}={threads} is too many: computing on {MAX} threads."));
            Some(MAX)
        }
        Ok(threads) => Some(threads).filter(|&threads| threads > 0),
        Err(_) => {
            tell(format_args!(
                "{VARIABLE}={} is not a number from 1 to {MAX}: computing on one thread for each core.",
                printable(&value)
            ));
            None
        }
    }
}

/// Up to `wanted` threads, each of which waits for a closure to run. Rayon itself would fail for good at the first
/// thread that the system refuses.
fn started(
    wanted: usize,
    mut spawn: impl FnMut(Box<dyn FnOnce() + Send>) -> std::io::Result<()>,
) -> Result<Vec<SyncSender<ThreadBuilder>>> {
    let mut threads = Vec::new();
    for _ in 0..wanted {
        let (start, started): (_, Receiver<ThreadBuilder>) = sync_channel(1);
        // A surplus thread ends when its sender is dropped.
        let run = move || {
            if let Ok(thread) = started.recv() {
                thread.run();
            }
        };
        match spawn(Box::new(run)) {
            Ok(()) => threads.push(start),
            Err(error) if threads.is_empty() => {
                return Err(Error::no_thread("to compute with", &error));
            }
            Err(_) => {
                // The run also needs a few other threads, so half of the started ones are given up.
                threads.truncate(threads.len().div_ceil(2));
                break;
            }
        }
    }
    Ok(threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of started threads if the system allows `possible` threads.
    fn threads(wanted: usize, possible: usize) -> Result<usize> {
        let mut left = possible;
        let spawn = |_| {
            let given = left > 0;
            left = left.saturating_sub(1);
            given.then_some(()).ok_or_else(|| std::io::ErrorKind::WouldBlock.into())
        };
        started(wanted, spawn).map(|threads| threads.len())
    }

    #[test]
    fn fewer_threads_than_wanted_leave_room_for_others() {
        assert_eq!([threads(4, 9).unwrap(), threads(4, 4).unwrap()], [4, 4]);
        assert_eq!([threads(9, 6).unwrap(), threads(9, 1).unwrap()], [3, 1]);
    }

    #[test]
    fn no_thread_at_all_is_an_error_that_says_so() {
        let error = threads(2, 0).unwrap_err();
        assert!(matches!(error, Error::Usage(_)) && error.to_string().contains("no thread can be started"));
    }
}
