//! Stands for the module `awake` in a build without native threads: no threads have to be kept awake.

/// Does nothing.
pub(super) fn keep_awake() {}
