//! Tests of correctness: a model against its references, and one run against another, which may be from another
//! runtime.
//!
//! It knows no command line.

pub mod capture;
pub mod check;
pub mod diff;
pub mod recorded;
pub mod suggest;
