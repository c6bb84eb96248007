//! The sample of cases that a test run takes from a grid: a few, evenly spread. With `LLAMA_TRACE_TESTS=all` it takes
//! every case.

use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Cases skipped so far.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// Returns whether every case is to be tested.
///
/// # Panics
/// If `LLAMA_TRACE_TESTS` has another value than `all`.
pub fn takes_all() -> bool {
    let Some(value) = std::env::var_os("LLAMA_TRACE_TESTS") else { return false };
    assert!(value == "all", "LLAMA_TRACE_TESTS must be `all` or unset; it is {value:?}");
    true
}

/// At most `few` of the cases, evenly spread from the first to the last, or all of them. The number of skipped cases is
/// printed to stderr, which the test harness does not capture.
pub fn sampled<T>(what: &str, cases: impl IntoIterator<Item = T>, few: usize) -> Vec<T> {
    let all: Vec<T> = cases.into_iter().collect();
    if all.len() <= few || takes_all() {
        return all;
    }
    let left = all.len() - few;
    let so_far = LEFT.fetch_add(left, Ordering::Relaxed) + left;
    let _ = writeln!(
        std::io::stderr(),
        "{what}: {left} of {} cases run only with LLAMA_TRACE_TESTS=all; {so_far} skipped so far",
        all.len()
    );
    let mut taken = spread(all.len(), few).peekable();
    all.into_iter().enumerate().filter(|(i, _)| taken.next_if_eq(i).is_some()).map(|(_, case)| case).collect()
}

/// `few` numbers below `count`: the first, the last, and evenly spaced ones between. `few` is less than `count`.
fn spread(count: usize, few: usize) -> impl Iterator<Item = usize> {
    (0..few).map(move |i| if few == 1 { 0 } else { i * (count - 1) / (few - 1) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_spread_from_the_first_case_to_the_last() {
        assert_eq!(spread(10, 4).collect::<Vec<_>>(), [0, 3, 6, 9]);
        assert_eq!(spread(5, 4).collect::<Vec<_>>(), [0, 1, 2, 4]);
        assert_eq!(spread(7, 1).collect::<Vec<_>>(), [0]);
        assert_eq!(spread(3, 2).collect::<Vec<_>>(), [0, 2]);
        let few = sampled("numbers", 0..9, 3);
        assert_eq!(few, if takes_all() { (0..9).collect() } else { vec![0, 4, 8] });
        assert_eq!(sampled("numbers", 0..3, 3), [0, 1, 2]);
        assert_eq!(sampled("numbers", 0..2, 3), [0, 1]);
    }
}
