//! Properties of the machine, as the system reports them.

use std::fs;

/// Returns the free memory in bytes: the smaller of the system's number and the container's number.
pub fn free() -> Option<usize> {
    let system = field("/proc/meminfo", "MemAvailable:").map(|kibibytes| kibibytes.saturating_mul(1024));
    let container = || {
        let number =
            |name: &str| fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?.trim().parse().ok();
        let (most, used): (usize, usize) = (number("memory.max")?, number("memory.current")?);
        // Pages of files in the cache count as free, because the system drops them when memory is short.
        let files = field("/sys/fs/cgroup/memory.stat", "file ").unwrap_or(0);
        Some(most.saturating_sub(used.saturating_sub(files)))
    };
    system.into_iter().chain(container()).min()
}

/// Returns the number after `name` in the first line of the file that begins with `name`.
fn field(path: &str, name: &str) -> Option<usize> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// Returns the size of the first processor's last-level cache in bytes, if the system reports it.
pub(super) fn last_level_cache() -> Option<usize> {
    let sizes = (0..8).filter_map(|level| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{level}/size");
        let size = fs::read_to_string(path).ok()?;
        size.trim().strip_suffix('K')?.parse::<usize>().ok()
    });
    sizes.max().map(|kibibytes| kibibytes << 10)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_system_says_how_much_is_free() {
        assert!(free().is_some_and(|bytes| bytes > 1 << 20));
    }
}
