//! Work that is shared out among threads. With `native` this is rayon; without it the work is done in place, in order.
//!
//! Both forms give the same bits, because each piece of work writes only to its own places.

#[cfg(any(test, not(feature = "native")))]
pub mod in_place;
#[cfg(feature = "native")]
mod shared;

#[cfg(not(feature = "native"))]
pub use in_place::{ahead, count, join, prelude};
#[cfg(feature = "native")]
pub use shared::{ahead, count, join, prelude};
