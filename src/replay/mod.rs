//! Where a viewer's frames come from: kept from the run, derived from kept ones, or run again by the live
//! model a layer at a time. The viewer sees only [`crate::trace::Source`].

pub mod derive;
mod live;
mod store;

pub use live::Live;
