//! What this machine can do at most: bytes read and numbers multiplied in a second, on all threads.

use std::hint::black_box;
use std::time::Instant;

use rayon::prelude::*;

use crate::backend::cpu::{Kernel, Multiplied};

/// Bytes that are read to measure the bandwidth: several times the last-level cache of common machines.
const READ_BYTES: usize = 512 << 20;

/// A model smaller than this may stay in a cache, and then its speed says nothing about the memory's.
pub(super) const CACHE_SIZED: usize = 128 << 20;

/// Times that each loop runs; the best counts, since a limit is what can be reached.
const TRIES: usize = 5;

/// Rounds of the multiply loop of one thread and try.
const ROUNDS: usize = 4 << 20;

/// The limits, measured.
pub(super) struct Limits {
    /// Bytes a second.
    pub(super) read_bandwidth: f64,
    /// Floating-point operations a second.
    pub(super) multiply_rate: f64,
}

impl Limits {
    /// Measures with the loops of `kernel`, for products made of `multiplied`.
    pub(super) fn measure(kernel: Kernel, multiplied: Multiplied) -> Self {
        let threads = rayon::current_num_threads();
        let memory = vec![1_u8; READ_BYTES];
        let best = |work: &(dyn Fn() + Sync)| {
            let tries = (0..TRIES).map(|_| {
                let started = Instant::now();
                work();
                started.elapsed().as_secs_f64()
            });
            tries.fold(f64::INFINITY, f64::min)
        };
        // Long runs for each thread let the prefetcher work; short parts let a fast thread help a slow one.
        let read = |parts: usize| {
            best(&|| {
                memory.par_chunks(READ_BYTES / parts).for_each(|part| {
                    black_box(kernel.read_limit(part));
                });
            })
        };
        let read_time =
            [threads, 4 * threads, 16 * threads].map(read).into_iter().fold(f64::INFINITY, f64::min);
        let multiply_time = best(&|| {
            (0..threads).into_par_iter().for_each(|_| {
                black_box(kernel.multiply_limit(multiplied, ROUNDS));
            });
        });
        Self {
            read_bandwidth: READ_BYTES as f64 / read_time,
            multiply_rate: (ROUNDS * threads) as f64 * kernel.multiply_round(multiplied) / multiply_time,
        }
    }
}
