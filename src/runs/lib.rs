//! Runs that can be looked at: of a live model, recorded ones, and those in a trace file.
//!
//! It knows no screen: whoever looks asks a source for frames.

pub mod record;
pub mod replay;
