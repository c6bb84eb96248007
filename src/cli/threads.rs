//! The threads that compute: how many there are, and what happens where the system gives fewer.

use std::ffi::OsStr;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use rayon::{ThreadBuilder, ThreadPoolBuilder};

use super::tell;
use llama_trace_core::error::{Error, Result};
use llama_trace_formats::files::printable;

/// The most threads that are started: more than any machine has cores.
const MAX: usize = 1024;

/// Where rayon, which shares the work out, is told their number.
const VARIABLE: &str = "RAYON_NUM_THREADS";

/// Whether they were started: they are for all that a process does.
static STARTED: AtomicBool = AtomicBool::new(false);

/// Starts as many threads as were asked for, or as [`VARIABLE`] says, or one for each core, unless they were started before.
/// Where the system gives fewer, these must do.
pub(super) fn start(asked: Option<usize>) -> Result<()> {
    if STARTED.load(Ordering::Relaxed) {
        return Ok(());
    }
    if let Some(threads) = asked
        && !(1..=MAX).contains(&threads)
    {
        return Err(Error::usage("so many threads cannot compute")
            .expected(format!("--threads from 1 to {MAX}"))
            .found(threads)
            .next("give another number, or none: one thread for each core"));
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
        tell(format_args!("The system does not let {wanted} threads start: computing on {count}."));
    }
    let pool = ThreadPoolBuilder::new().num_threads(threads.len()).spawn_handler(|thread| {
        // There is one for each, which waits for this.
        let _ = threads.pop().map(|start| start.send(thread));
        Ok(())
    });
    match pool.build_global() {
        // Without a number that was asked for, the threads that are there already do.
        Err(error) if asked.is_some_and(|threads| threads != rayon::current_num_threads()) => {
            Err(Error::usage("the threads cannot be started").found(error).next("ask for fewer"))
        }
        _ => {
            STARTED.store(true, Ordering::Relaxed);
            Ok(())
        }
    }
}

/// The number that [`VARIABLE`] says; none where it says none, or 0 as rayon has it.
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
                "{VARIABLE}={} is no number from 1 to {MAX}: computing on one thread for each core.",
                printable(&value)
            ));
            None
        }
    }
}

/// Up to `wanted` threads, each of which waits for what it is to run. Rayon would give up at the first that cannot be
/// started, and for good.
fn started(
    wanted: usize,
    mut spawn: impl FnMut(Box<dyn FnOnce() + Send>) -> std::io::Result<()>,
) -> Result<Vec<SyncSender<ThreadBuilder>>> {
    let mut threads = Vec::new();
    for _ in 0..wanted {
        let (start, started): (_, Receiver<ThreadBuilder>) = sync_channel(1);
        // One that is not needed ends when its sender goes.
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
                // The last of what the system gives is not for these: the run has other threads.
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

    /// How many threads there are where the system lets `possible` start.
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
