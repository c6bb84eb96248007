//! Runs that a viewer can query: of a live model, recorded ones, and those in a trace file.
//!
//! It knows no screen. A viewer asks a source for frames.

pub mod record;
pub mod replay;
