//! No threads, of which none is to be kept awake.

/// Nothing to do.
pub(super) fn keep_awake() {}
