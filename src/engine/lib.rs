//! The model: the operations of the devices, the forward pass built from them, and text generation.
//!
//! This crate knows nothing about the terminal. A viewer is only a probe to it: the crate asks the probe which stages
//! to record.

pub mod backend;
pub mod generate;
pub mod model;
pub mod patch;
