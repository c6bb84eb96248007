//! Tests of correctness: a model against its references, and one run against another.
//!
//! It knows no command line.

pub mod check;
pub mod diff;
