//! The base crate of llama-trace: the error type, a model's sizes, the operations of the forward pass as plain
//! functions, the stages and their addresses, and the rules by which each number is computed.
//!
//! It knows no file, no device and no terminal.
//!
//! # Without a system
//!
//! The feature `native`, which is on by default, is everything that a system gives a process and a web page has not:
//! threads, files, signals, a clock, a terminal. It is one feature because these come together: there is no target with
//! some of them that this is built for. Crates above have a feature of the same name, which switches this one on.
//! Without it threads are work done in place ([`threads`]), moments are those of a clock that is given ([`time`]), and
//! files are bytes in memory (`files` of llama-trace-formats). What has no meaning without a system is not there.
//! A module with two forms chooses between them where it is declared; no other code asks for the feature.

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
pub mod threads;
pub mod time;
pub mod trace;
