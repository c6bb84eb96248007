//! Tests of correctness: a model is compared with its references, and a run with another run, which may be from another
//! runtime.
//!
//! This crate knows nothing of the command line.

pub mod capture;
pub mod check;
pub mod diff;
pub mod kata;
pub mod recorded;
pub mod suggest;
