//! Where a viewer's frames come from: kept from the run, derived from kept ones, or run again by the live
//! model a layer at a time; all of them within a budget of memory. The viewer sees only [`llama_trace_core::trace::Source`].

#[cfg_attr(not(feature = "native"), path = "in_place.rs")]
mod apart;
pub mod derive;
mod lens;
mod live;
mod made;
mod operands;
pub mod recorded;
mod sequences;
mod serve;
mod store;
mod together;
mod worker;

pub use live::{DEFAULT_MEMORY, LEAST_MEMORY, Live, Start};
pub use recorded::{Follows, Recorded};
pub use sequences::Sequences;
