//! Memory that may not be there: what is made returns an error instead of ending the process.

use std::fs;

use crate::backend::no_memory;
use crate::error::Result;

/// `count` times `value`.
pub(super) fn filled<T: Copy>(value: T, count: usize) -> Result<Vec<T>> {
    let mut values = reserved(count)?;
    values.resize(count, value);
    Ok(values)
}

/// Nothing yet, with room for `count` values. The system gives the memory as it is written.
pub(super) fn reserved<T>(count: usize) -> Result<Vec<T>> {
    let mut values = Vec::new();
    grow(&mut values, count)?;
    Ok(values)
}

/// Makes room in `values` for `count` in all.
pub(super) fn grow<T>(values: &mut Vec<T>, count: usize) -> Result<()> {
    let bytes = count.saturating_mul(size_of::<T>());
    values.try_reserve_exact(count.saturating_sub(values.len())).map_err(|_| no_memory(bytes))
}

/// Bytes that programs may still take, by the whole system's count and by that of the container.
pub(crate) fn free() -> Option<usize> {
    let system = field("/proc/meminfo", "MemAvailable:").map(|kibibytes| kibibytes.saturating_mul(1024));
    let container = || {
        let number =
            |name: &str| fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?.trim().parse().ok();
        let (most, used): (usize, usize) = (number("memory.max")?, number("memory.current")?);
        // Pages of files are given back where they stand in the way.
        let files = field("/sys/fs/cgroup/memory.stat", "file ").unwrap_or(0);
        Some(most.saturating_sub(used.saturating_sub(files)))
    };
    system.into_iter().chain(container()).min()
}

/// The number after `name` at the beginning of a line.
fn field(path: &str, name: &str) -> Option<usize> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
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
    #[cfg(target_os = "linux")]
    fn the_system_says_how_much_is_free() {
        assert!(free().is_some_and(|bytes| bytes > 1 << 20));
    }
}
