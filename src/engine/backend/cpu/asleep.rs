//! The thread pool of a build without native threads: there are no threads to keep awake.

/// Nothing to do.
pub(super) fn keep_awake() {}
