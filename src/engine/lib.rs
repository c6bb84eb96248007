//! The model: the operations of the devices, the forward pass built from them, and text generation.
//!
//! It knows nothing about the terminal. To it, a viewer is only a probe, which it asks for the stages to record.

pub mod backend;
pub mod generate;
pub mod model;
