//! The model: the operations of the devices, the forward pass built from them, and text generation.
//!
//! It knows nothing about the terminal. It knows viewers only as a probe that it asks.

pub mod backend;
pub mod generate;
pub mod model;
