//! Keeps rayon's threads awake during a pass. A pass of one token has some hundred parallel parts, and many of them
//! take only a few microseconds. Rayon's idle threads soon fall asleep, and waking a thread takes longer than such a
//! part.

use std::cell::Cell;
use std::num::NonZero;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use rayon::Yield;

/// How long an idle thread looks for work before it may sleep. It is longer than the serial work between two parallel
/// parts.
const PATIENCE: Duration = Duration::from_micros(200);

thread_local! {
    static AWAKE: Cell<bool> = const { Cell::new(false) };
}

/// Keeps the other threads of the pool awake until they find no work for [`PATIENCE`]. Does nothing if there are more
/// threads than cores, because an idle thread would then take a core from a busy one.
pub(super) fn keep_awake() {
    static CORES: OnceLock<usize> = OnceLock::new();
    let threads = rayon::current_num_threads();
    let Some(here) = rayon::current_thread_index().filter(|_| threads > 1) else { return };
    // The number of cores is queried only once, and not for a pool of one thread.
    if threads > *CORES.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get)) {
        return;
    }
    rayon::spawn_broadcast(move |context| {
        // The calling thread is busy. A thread that already runs the loop below may run this closure within that loop.
        if context.index() == here || AWAKE.replace(true) {
            return;
        }
        let mut idle_since = Instant::now();
        while idle_since.elapsed() < PATIENCE {
            match rayon::yield_now() {
                Some(Yield::Executed) => idle_since = Instant::now(),
                _ => std::hint::spin_loop(),
            }
        }
        AWAKE.set(false);
    });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rayon::ThreadPoolBuilder;

    use super::*;

    #[test]
    fn threads_that_stay_awake_do_the_work_and_sleep_in_the_end() {
        for threads in [1, 2, 3] {
            let pool = ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let done = AtomicUsize::new(0);
            let work = || _ = done.fetch_add(1, Ordering::Relaxed);
            // If the loops were nested, this number of passes would overflow the stack.
            const PASSES: usize = 100_000;
            pool.install(|| {
                for _ in 0..PASSES {
                    keep_awake();
                    rayon::join(work, work);
                }
            });
            assert_eq!(done.into_inner(), 2 * PASSES);
            let deadline = Instant::now() + Duration::from_secs(60);
            while pool.broadcast(|_| AWAKE.get()).contains(&true) {
                assert!(Instant::now() < deadline, "a thread of {threads} is still awake");
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
