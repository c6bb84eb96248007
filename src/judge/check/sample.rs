//! The rows of the matrices that are recomputed.

use std::ops::Range;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The minimum number of recomputed rows of a matrix.
pub const ROWS: usize = 256;

/// Length of a run of consecutive rows, which fills the kernels' tiles.
pub const TOGETHER: usize = 64;

/// A selection of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sample {
    /// All rows.
    All,
    /// [`ROWS`] rows of each matrix that has more than twice as many, selected by this seed; all rows of smaller
    /// matrices.
    Seeded(u64),
}

/// Random numbers that are equal on every machine.
pub(super) struct Random(ChaCha8Rng);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// A random number from 0 to `end` − 1.
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0.random_range(0..end.max(1))
    }
}

impl Sample {
    /// The selected rows of matrix number `number` with `count` rows: runs in order, spread over the matrix.
    pub fn of(self, number: usize, count: usize) -> Vec<Range<usize>> {
        let runs = ROWS / TOGETHER;
        match self {
            Self::Seeded(seed) if count > 2 * ROWS => {
                let mut random = Random::new(seed.wrapping_add(number as u64));
                let parts = (0..runs).map(|run| run * count / runs..(run + 1) * count / runs);
                let one = |part: Range<usize>| {
                    let first = part.start + random.below(part.len() - TOGETHER + 1);
                    first..first + TOGETHER
                };
                parts.map(one).collect()
            }
            _ => (0..count).step_by(TOGETHER).map(|first| first..count.min(first + TOGETHER)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_as_many_rows_as_it_promises_in_order_and_the_same_for_a_seed() {
        for count in [1, 63, 64, 65, 511, 512, 513, 2048, 128_256] {
            let (sample, all) = (Sample::Seeded(7).of(3, count), Sample::All.of(3, count));
            let rows = |runs: &[Range<usize>]| runs.iter().map(ExactSizeIterator::len).sum::<usize>();
            assert_eq!((rows(&sample) >= count.min(ROWS), rows(&all)), (true, count), "{count}");
            for runs in [&sample, &all] {
                assert!(runs.windows(2).all(|pair| pair[0].end <= pair[1].start), "{count}: {runs:?}");
                assert!(runs.iter().all(|run| run.end <= count && !run.is_empty()), "{count}: {runs:?}");
            }
            assert_eq!(sample, Sample::Seeded(7).of(3, count));
        }
        assert_ne!(Sample::Seeded(7).of(3, 9999), Sample::Seeded(7).of(4, 9999));
    }
}
