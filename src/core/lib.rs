//! The ground that all of llama-trace stands on: what an error says, what a model's sizes are, the operations of its
//! forward pass as plain functions, the stages and their addresses, and the rules by which each number follows from
//! others.
//!
//! It knows no file, no device and no terminal.

#[cfg(target_endian = "big")]
compile_error!("weights and dumps are little-endian and are read in place");

pub mod chapters;
pub mod config;
pub mod error;
pub mod explain;
pub mod memory;
pub mod ops;
pub mod stop;
pub mod tensor;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod trace;
