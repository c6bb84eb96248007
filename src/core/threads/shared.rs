//! Threads of the operating system.

use std::thread;

/// The parallel iterators of rayon.
pub mod prelude {
    pub use rayon::prelude::*;
}

pub use rayon::{current_num_threads as count, join};

/// Starts `work` on its own thread without waiting for it: for work that is done later if it is not done ahead.
pub fn ahead(work: impl FnOnce() + Send + 'static) {
    // Without a thread the work is done later.
    let _ = thread::Builder::new().spawn(work);
}
