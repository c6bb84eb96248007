//! The limits of this machine: bytes read and numbers multiplied per second, with all threads.

use std::hint::black_box;

use super::kernel::{Kernel, Multiplied};
use super::system::last_level_cache;
use crate::backend::Limits;
use llama_trace_core::error::Result;
use llama_trace_core::memory::grow;
use llama_trace_core::stop;
use llama_trace_core::threads;
use llama_trace_core::threads::prelude::*;
use llama_trace_core::time::Instant;

/// The minimum number of bytes that the bandwidth measurement reads: several times the last-level cache of common
/// machines.
const READ_BYTES: usize = 512 << 20;

/// The minimum number of bytes that the measurement reads for each byte of the last-level cache. With this number, few
/// reads hit the cache.
const READ_FOR_CACHED: usize = 4;

/// The number of runs of each loop. The fastest run counts, because it shows the limit.
const TRIES: usize = 3;

/// Rounds of the multiply loop per thread and run.
const ROUNDS: usize = 4 << 20;

/// The number of rounds, and the number of bytes read, between two checks of the stop request.
const FEW_ROUNDS: usize = 1 << 16;
const PIECE: usize = 16 << 20;

/// Measures the limits with the loops of `kernel`, for products of the type `multiplied`. Reads `mapped`, the weights
/// in a mapped file, if there are enough of them. Otherwise allocates at most `most` bytes of ordinary memory, and
/// reads them.
///
/// # Errors
/// Returns [`llama_trace_core::error::Error::Interrupted`] if the process was asked to stop, and an error if there is
/// not enough memory.
pub(super) fn measure(
    kernel: Kernel,
    multiplied: Multiplied,
    mapped: &[&[u8]],
    most: usize,
) -> Result<Limits> {
    let threads = threads::count();
    let enough = READ_BYTES.max(READ_FOR_CACHED * last_level_cache().unwrap_or(0));
    let mut ordinary = Vec::new();
    let (memory, name): (&[&[u8]], _) = if mapped.iter().map(|part| part.len()).sum::<usize>() >= enough {
        (mapped, "the mapped file")
    } else {
        // Writes the memory first. The system provides new memory page by page, which takes longer than reading it.
        let taken = enough.min(most);
        grow(&mut ordinary, taken).map_err(|error| {
            error
                .at("the memory whose speed is measured")
                .next("raise the limit on memory (ulimit -v), or end other programs")
        })?;
        while ordinary.len() < taken {
            stop::check()?;
            ordinary.resize(taken.min(ordinary.len() + PIECE), 1_u8);
        }
        (&[&ordinary], if taken < enough { "memory that a cache may hold" } else { "ordinary memory" })
    };
    let bytes: usize = memory.iter().map(|part| part.len()).sum();
    let best = |work: &(dyn Fn() -> Result<()> + Sync)| {
        let mut best = f64::INFINITY;
        for _ in 0..TRIES {
            let started = Instant::now();
            work()?;
            best = best.min(started.elapsed().as_secs_f64());
        }
        Result::Ok(best)
    };
    // Long parts for each thread help the prefetcher. Short parts let a fast thread help a slow thread. The best width
    // of a load and the best prefetch hint depend on the machine, so all are tried.
    let mut read_time = f64::INFINITY;
    let mut all = Kernel::available();
    all.dedup_by_key(|kernel| kernel.read_width());
    for loops in all {
        for ahead in [false, true] {
            for parts in [threads, 4 * threads, 16 * threads] {
                read_time = read_time.min(best(&|| {
                    memory
                        .par_iter()
                        .flat_map(|memory| memory.par_chunks(bytes.div_ceil(parts)))
                        .try_for_each(|part| {
                            for piece in part.chunks(PIECE) {
                                stop::check()?;
                                black_box(loops.read_limit(piece, ahead));
                            }
                            Ok(())
                        })
                })?);
            }
        }
    }
    let multiply_time = best(&|| {
        (0..threads).into_par_iter().try_for_each(|_| {
            for _ in 0..ROUNDS / FEW_ROUNDS {
                stop::check()?;
                black_box(kernel.multiply_limit(multiplied, FEW_ROUNDS));
            }
            Ok(())
        })
    })?;
    Ok(Limits {
        multiplied: multiplied.to_string(),
        read_bandwidth: bytes as f64 / read_time,
        memory: name,
        multiply_rate: (ROUNDS * threads) as f64 * kernel.multiply_round(multiplied) / multiply_time,
    })
}
