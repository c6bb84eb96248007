//! The clock: the system's with `native`, otherwise one that the program sets (`set_clock`).

#[cfg(any(test, not(feature = "native")))]
pub mod given;

#[cfg(not(feature = "native"))]
pub use given::{Instant, set_clock, since_1970};
#[cfg(feature = "native")]
pub use std::time::Instant;
