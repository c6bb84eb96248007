//! The sources of a viewer's frames. A frame is kept from the run, derived from kept frames, or recomputed layer by
//! layer by the live model. All frames stay within a memory budget. The viewer sees only
//! [`llama_trace_core::trace::Source`].

#[cfg_attr(not(feature = "native"), path = "in_place.rs")]
mod apart;
pub mod derive;
mod lens;
mod live;
mod operands;
pub mod recorded;
mod sequences;
mod serve;
mod store;
mod together;
mod token_pieces;
mod worker;

pub use live::{DEFAULT_MEMORY, LEAST_MEMORY, Live, Start};
pub use recorded::{Follows, Recorded};
pub use sequences::Sequences;
