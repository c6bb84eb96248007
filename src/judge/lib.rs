//! What is right: a model against its references, and one run against another, that of another runtime among them.
//!
//! It knows no command line.

pub mod capture;
pub mod check;
pub mod diff;
pub mod recorded;
pub mod suggest;
