//! The base crate of llama-trace: the error type, a model's sizes, the operations of the forward pass as plain
//! functions, the stages and their addresses, and the rules by which each number is computed.
//!
//! It uses no files, devices or terminals.
//!
//! # Without an operating system
//!
//! The feature `native` is on by default. It enables what an operating system gives a process, and a web page lacks:
//! threads, files, signals, a clock, a terminal. They are one feature, because no supported target has only some of
//! them. The crates that depend on this one have a feature of the same name, which enables this feature.
//!
//! Without the feature, work is done in place instead of on threads ([`threads`]), the time comes from a clock that the
//! program sets ([`time`]), and files are bytes in memory (`files` of llama-trace-formats). Everything that needs an
//! operating system is left out. A module with two forms chooses its form where it is declared; no other code asks for
//! the feature.

#[cfg(target_endian = "big")]
compile_error!("weights and dumps are little-endian and are read in place");

pub mod chapters;
pub mod config;
pub mod edit;
pub mod error;
pub mod explain;
pub mod lesson;
pub mod memory;
pub mod ops;
pub mod stop;
pub mod tensor;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod threads;
pub mod time;
pub mod trace;
