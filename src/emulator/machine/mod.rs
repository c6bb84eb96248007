//! An interpreter of PTX, for the instructions that the kernels use. It runs the compiler's output without a GPU. For
//! tests only.
//!
//! The emulation (`emulate.hpp`) runs the sources with C++ in place of their inline assembly. The interpreter
//! also runs that assembly, as NVIDIA's manual defines it (PTX ISA 8.0): the layouts of `mma`, `ldmatrix` and `wgmma`,
//! asynchronous copies, divergence and reconvergence of lanes. Undefined behaviour ends the test: an access that is not
//! aligned or not in an allocation, a lane that is missing in a warp-wide instruction, a barrier that not all threads
//! reach.
//!
//! ```text
//! text (statements) ─▶ program (instructions; operations: arithmetic of each) ─▶ warp (32 lanes) ─▶ run (blocks)
//! ```
#![allow(unsafe_code)]

mod operations;
mod program;
mod run;
mod tensor;
#[cfg(test)]
mod tests;
mod text;
mod warp;

pub(super) use program::Program;
pub(super) use run::{Grid, run};
