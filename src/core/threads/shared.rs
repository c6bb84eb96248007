//! The threads of a system.

use std::thread;

/// The parallel iterators of rayon.
pub mod prelude {
    pub use rayon::prelude::*;
}

pub use rayon::{current_num_threads as count, join};

/// Begins `work` on a thread of its own, and waits for it never: for what is done later, should nobody do it ahead.
pub fn ahead(work: impl FnOnce() + Send + 'static) {
    // Without a thread it is done later.
    let _ = thread::Builder::new().spawn(work);
}
