//! The base crate of llama-trace: the error type, a model's sizes, the operations of the forward pass as plain
//! functions, the stages and their addresses, and the rules by which each number is computed.
//!
//! It uses no files, devices or terminals.

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
