//! The promises of `--precision`: `bf16` is PyTorch's bfloat16 run, and `q8` is the arithmetic of llama2.c's version 2.
//! The references are under fixtures/precision.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "precision/bf16.rs"]
mod bf16;
mod common;
#[path = "precision/q8.rs"]
mod q8;
