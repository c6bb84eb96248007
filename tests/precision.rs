//! Checks the promises of `--precision`: `bf16` computes as PyTorch does in bfloat16, and `q8` as llama2.c's version 2.
//! The references are under fixtures/precision.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "precision/bf16.rs"]
mod bf16;
mod common;
#[path = "precision/q8.rs"]
mod q8;
