//! Checkpoints and tokenizers as people have them: bytes in, tensors and ids out.
//!
//! It knows no device, and does not compute with what it reads.

pub mod checkpoint;
pub mod files;
pub mod tokenizer;
