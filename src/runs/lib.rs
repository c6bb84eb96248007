//! Runs that a viewer can query: runs of a live model, and runs that were recorded in a trace file or a folder.
//!
//! Nothing here draws on a screen. A viewer asks a source for frames.

pub mod begin;
pub mod record;
pub mod replay;
