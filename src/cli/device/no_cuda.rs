//! No GPU: what a build without the feature `cuda` says of one.

use crate::cli::CpuArgs;
use llama_trace_core::config::Precision;
use llama_trace_core::error::{Error, Result};
pub(in crate::cli) use llama_trace_engine::backend::cpu::Cpu as Cuda;
use llama_trace_formats::checkpoint::Checkpoint;

/// What no GPU takes for itself.
pub(super) const OWN_BYTES: usize = 0;

/// Whether this build knows GPUs.
///
/// # Errors
/// [`Error::Usage`]: it does not.
pub(in crate::cli) fn built() -> Result<()> {
    Err(Error::not_built("CUDA", "cuda"))
}

/// None suits anything.
///
/// # Errors
/// None.
pub(in crate::cli) fn suits(
    _: &CpuArgs,
    _: Option<usize>,
    _: usize,
    _: impl FnOnce() -> Result<(Checkpoint, Precision)>,
) -> Result<bool> {
    Ok(false)
}
