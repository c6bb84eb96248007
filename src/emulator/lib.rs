//! The CPU as a CUDA device, so that tests of the CUDA kernels need no GPU. It runs a kernel in one of two forms:
//!
//! ```text
//! .cu, .cuh (llama-trace-kernels) ─ emulate.hpp, a C++ compiler ─▶ a library ───┐
//!                                 ─ NVRTC, or embedded ─▶ PTX ─▶ `machine` ─────┴─▶ Emulated, a Driver
//! ```
//!
//! Only tests use this crate; no build of the program contains it. It does not know the backend (llama-trace-cuda),
//! whose feature `testing` makes backends on this device. It is a part of llama-trace, and not an interface for other
//! programs.

mod compile;
mod emulated;
mod machine;

pub use compile::compilation;
pub use emulated::{Asked, Emulated, Launched, Loaded, Log};
