//! Threads of the operating system.

use std::thread;

/// The parallel iterators of rayon.
pub mod prelude {
    pub use rayon::prelude::*;
}

pub use rayon::{current_num_threads as count, join};

/// Starts `work` on a new thread and does not wait for it. For work that can also be done later.
pub fn ahead(work: impl FnOnce() + Send + 'static) {
    // If no thread can be started, the work is done later.
    let _ = thread::Builder::new().spawn(work);
}
