//! GPUs in a build without the feature `cuda`: there are none.

use crate::cli::CpuArgs;
use llama_trace_core::config::Precision;
use llama_trace_core::error::{Error, Result};
pub(in crate::cli) use llama_trace_engine::backend::cpu::Cpu as Cuda;
use llama_trace_formats::checkpoint::Checkpoint;

/// The memory that a GPU takes for itself: 0, because there is no GPU.
pub(super) const OWN_BYTES: usize = 0;

/// Checks that this build supports GPUs.
///
/// # Errors
/// Always [`Error::Usage`].
pub(in crate::cli) fn built() -> Result<()> {
    Err(Error::not_built("CUDA", "cuda"))
}

/// Returns whether a GPU suits the run: always false.
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
