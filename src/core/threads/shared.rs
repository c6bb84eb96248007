//! Threads of the operating system.

use std::thread;

/// The parallel iterators of rayon.
pub mod prelude {
    pub use rayon::prelude::*;
}

pub use rayon::{current_num_threads as count, join};

/// Starts `work` on a new thread and does not wait for it. It must be work that the program otherwise does later, when
/// it needs the result.
pub fn ahead(work: impl FnOnce() + Send + 'static) {
    // Without a new thread, the program does the work later.
    let _ = thread::Builder::new().spawn(work);
}
