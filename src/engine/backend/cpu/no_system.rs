//! Properties of the machine in a build without an operating system: all are unknown.

/// Returns `None`: the free memory is unknown.
pub fn free() -> Option<usize> {
    None
}

/// Returns `None`: the size of the last-level cache is unknown.
pub(super) fn last_level_cache() -> Option<usize> {
    None
}
