//! The model: the devices' operations, the forward pass over them, and the generation of text.
//!
//! It knows no terminal, and nothing of those who look on but that they are asked.

pub mod backend;
pub mod generate;
pub mod model;
