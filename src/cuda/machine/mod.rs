//! The machine that PTX is written for, as far as the kernels use it: runs what a compiler made of them, instruction by
//! instruction, where no GPU is. For tests alone.
//!
//! The emulation (`kernels/emulate.hpp`) runs the sources, and puts C++ in the place of their assembly. Here the assembly runs
//! too, as NVIDIA's manual has it (PTX ISA 8.0): the layouts of `mma`, `ldmatrix` and `wgmma`, copies that are under way until
//! they are waited for, lanes that part and meet. What has no defined result ends the test: an access that is not aligned or
//! in nobody's memory, a lane that is missing where all of a warp take part, a barrier that not all reach.
//!
//! ```text
//! text (statements) ─▶ program (instructions; operations: what each computes) ─▶ warp (32 lanes) ─▶ run (blocks)
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
