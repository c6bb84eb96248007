//! Work that is shared out among threads. With `native` this is rayon; without it the work is done in place, in order.
//!
//! Both forms make the same bits: what is shared out writes to places of its own.

#[cfg(any(test, not(feature = "native")))]
pub mod in_place;
#[cfg(feature = "native")]
mod shared;

#[cfg(not(feature = "native"))]
pub use in_place::{ahead, count, join, prelude};
#[cfg(feature = "native")]
pub use shared::{ahead, count, join, prelude};
