//! The clock. With `native` it is the system's; without it one that is given ([`set_clock`]).

#[cfg(any(test, not(feature = "native")))]
pub mod given;

#[cfg(not(feature = "native"))]
pub use given::{Instant, set_clock, since_1970};
#[cfg(feature = "native")]
pub use std::time::Instant;
