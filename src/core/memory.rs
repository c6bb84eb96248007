//! Large allocations that may fail. The functions of this module return an error, to which the caller adds the purpose
//! of the memory. Every other failed allocation ends the process cleanly, if the program uses the allocator of
//! `llama-trace-ending`.

use std::cell::Cell;
use std::thread::LocalKey;

use crate::error::{Error, Result};

thread_local! {
    static ANSWERED: Cell<bool> = const { Cell::new(false) };
    static PURPOSE: Cell<&'static str> = const { Cell::new("") };
}

/// Returns whether this thread handles a failed allocation itself.
pub fn answered() -> bool {
    ANSWERED.get()
}

/// The purpose of this thread's allocations ([`naming`]), or an empty text.
pub fn purpose() -> &'static str {
    PURPOSE.get()
}

/// Runs `ask`, which handles its failed allocations itself, as `try_reserve` does.
pub fn answering<T>(ask: impl FnOnce() -> T) -> T {
    with(&ANSWERED, true, ask)
}

/// Runs `work`. If it runs out of memory, the message names `purpose` as the place.
pub fn naming<T>(purpose: &'static str, work: impl FnOnce() -> T) -> T {
    with(&PURPOSE, purpose, work)
}

/// Runs `work` while `cell` has `value`; the old value is restored even after a panic.
fn with<V: Copy, T>(cell: &'static LocalKey<Cell<V>>, value: V, work: impl FnOnce() -> T) -> T {
    struct Before<V: Copy + 'static>(&'static LocalKey<Cell<V>>, V);
    impl<V: Copy> Drop for Before<V> {
        fn drop(&mut self) {
            self.0.set(self.1);
        }
    }
    let _before = Before(cell, cell.replace(value));
    work()
}

/// A vector of `count` copies of `value`.
///
/// # Errors
/// [`no_memory`] if the allocation fails.
pub fn filled<T: Copy>(value: T, count: usize) -> Result<Vec<T>> {
    let mut values = reserved(count)?;
    values.resize(count, value);
    Ok(values)
}

/// An empty vector with room for `count` values. The system supplies the pages as they are written.
///
/// # Errors
/// [`no_memory`] if the allocation fails.
pub fn reserved<T>(count: usize) -> Result<Vec<T>> {
    let mut values = Vec::new();
    grow(&mut values, count)?;
    Ok(values)
}

/// Reserves room in `values` for `count` values in all.
///
/// # Errors
/// [`no_memory`] if the allocation fails.
pub fn grow<T>(values: &mut Vec<T>, count: usize) -> Result<()> {
    let bytes = count.saturating_mul(size_of::<T>());
    let more = count.saturating_sub(values.len());
    answering(|| values.try_reserve_exact(more)).map_err(|_| no_memory(bytes))
}

/// The error of a failed allocation of `bytes` bytes. The caller adds their purpose.
pub fn no_memory(bytes: usize) -> Error {
    Error::prompt("there is not enough memory").expected(format!("room for {bytes} bytes more"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_machine_has_is_an_error_with_its_size() {
        let error = filled(0.0_f32, 1 << 60).unwrap_err().to_string();
        assert!(error.contains("there is not enough memory") && error.contains("4611686018427387904 bytes"));
        assert!(reserved::<f32>(usize::MAX).is_err());
        assert_eq!(filled(1.5_f32, 3).unwrap(), [1.5; 3]);
    }

    #[test]
    fn who_answers_does_so_until_it_is_done_or_panics() {
        assert!(!answered());
        answering(|| {
            answering(|| assert!(answered()));
            assert!(answered());
        });
        let panicked = std::panic::catch_unwind(|| answering(|| panic!("in the middle")));
        assert!(panicked.is_err() && !answered());
        assert_eq!((naming("a table", purpose), purpose()), ("a table", ""));
    }
}
