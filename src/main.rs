//! The command `llama-trace`.
fn main() {}
