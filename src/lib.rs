//! llama-trace.

pub mod checkpoint;
pub mod config;
pub mod error;
pub mod tokenizer;
