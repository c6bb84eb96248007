//! No system that says something of the machine.

/// Bytes that programs may still take: nobody says.
pub fn free() -> Option<usize> {
    None
}

/// Bytes of the last-level cache: nobody says.
pub(super) fn last_level_cache() -> Option<usize> {
    None
}
