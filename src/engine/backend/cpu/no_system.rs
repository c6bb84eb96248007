//! The machine's properties without an operating system: they are unknown.

/// The free memory in bytes: unknown.
pub fn free() -> Option<usize> {
    None
}

/// The size of the last-level cache in bytes: unknown.
pub(super) fn last_level_cache() -> Option<usize> {
    None
}
