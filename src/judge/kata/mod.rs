//! Judges a stage that a student wrote. A program gets the inputs of some cases as files, and writes an output for each.
//! [`judge`] compares the outputs with the rules of [`llama_trace_core::explain`] in float64, and names the mistake that
//! would give wrong values. The mistakes are those of [`crate::diff`].
//!
//! | item | content |
//! |---|---|
//! | [`KATAS`] | the stages, with their inputs and numbers |
//! | [`Run`] | a run of a model by its rules alone, from which cases take their inputs |
//! | [`Case`] | the inputs and the right output of one stage |
//! | [`Output`] | `.npy` files, with checks before anything is read |
//! | [`judge`] | the verdict |
//! | [`skeleton`] | programs to be completed, in Python and Rust |

mod case;
mod cases;
mod judge;
mod npy;
mod run;
mod rust;
mod skeleton;
mod table;
#[cfg(test)]
mod tests;

pub use case::{Case, Input, Values};
pub use cases::{of_model, random, whole_pass};
pub use judge::{Judgement, Wrong, judge};
pub use npy::{Output, most_bytes};
pub use run::Run;
pub use skeleton::{Language, skeleton};
pub use table::{KATAS, Kata, Number, Port, kata};
