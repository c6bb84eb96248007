//! Where a viewer's frames come from: kept from the run, derived from kept ones, or run again by the live
//! model a layer at a time; all of them within a budget of memory. The viewer sees only [`crate::trace::Source`].

pub mod derive;
mod live;
mod sequences;
mod store;
mod worker;

pub use live::{DEFAULT_MEMORY, LEAST_MEMORY, Live, Start};
pub use sequences::Sequences;
