//! Checkpoints and tokenizers in the published file formats: bytes in, tensors and ids out.
//!
//! This crate knows no devices and does not compute with the tensors. Without its feature `native`, there is no disk:
//! files are bytes in memory (see the crate llama-trace-core).

pub mod checkpoint;
pub mod files;
pub mod tokenizer;
