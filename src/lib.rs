//! llama-trace.

pub mod chapters;
pub mod config;
pub mod error;
pub mod trace;
pub mod tui;
