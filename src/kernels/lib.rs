//! The CUDA kernels, and what their device must be able to do. The kernels are the `.cu` and `.cuh` files beside this
//! one, and have the names of [`llama_trace_core::ops`].
//!
//! | to read about | open |
//! |---|---|
//! | the embedded sources, and the defines of each file | [`sources`] |
//! | the compiler | [`nvrtc`]; [`libraries`] finds it |
//! | the kernels for machines without a compiler | [`ptx`] |
//! | the operations of a device, and the arguments of a launch | [`driver`] |
//!
//! This crate has no device. It does not know which kernel a pass launches, and with which arguments: llama-trace-cuda
//! does. Two crates implement [`driver::Driver`]: llama-trace-cuda and, for tests, llama-trace-emulator. It is a part of
//! llama-trace, and not an interface for other programs.

pub mod driver;
pub mod libraries;
pub mod nvrtc;
pub mod ptx;
pub mod sources;

/// The folder of the kernels' files on the machine that compiled this crate. Tests compile these files for the CPU.
pub const FOLDER: &str = env!("CARGO_MANIFEST_DIR");
