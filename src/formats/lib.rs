//! Checkpoints and tokenizers in the published file formats: bytes in, tensors and ids out.
//!
//! This crate knows nothing about devices and does not compute with what it reads.

pub mod checkpoint;
pub mod files;
pub mod tokenizer;
