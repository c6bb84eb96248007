//! `llama-trace capture`: the scripts that write another runtime's stages.

use std::io::Write;

use super::args::RuntimeName;
use super::{CaptureArgs, output};
use llama_trace_core::error::Result;

/// Prints the script for a runtime.
pub(super) fn run(args: &CaptureArgs) -> Result<()> {
    let script = match args.runtime {
        RuntimeName::Transformers => include_str!("../../fixtures/capture/transformers.py"),
        RuntimeName::LlamaCpp => include_str!("../../fixtures/capture/llama-cpp.py"),
        RuntimeName::TransformerLens => include_str!("../../fixtures/capture/transformer-lens.py"),
        RuntimeName::Vllm => include_str!("../../fixtures/capture/vllm.py"),
    };
    output::end(std::io::stdout().write_all(script.as_bytes()).map_err(output::Failure::from))
}
