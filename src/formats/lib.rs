//! Checkpoints and tokenizers as people have them: bytes in, tensors and ids out.
//!
//! It knows no device, and does not compute with what it reads. Without its feature `native` there is no disk: files are
//! those that are given, in memory (see the crate llama-trace-core).

pub mod checkpoint;
pub mod files;
pub mod tokenizer;
