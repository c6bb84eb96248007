//! GPUs in a build without the feature `cuda`: there are none.

use std::convert::Infallible;

use super::Room;
use crate::cli::CpuArgs;
use llama_trace_core::config::Precision;
use llama_trace_core::error::{Error, Result};
use llama_trace_engine::model::Model;
use llama_trace_formats::checkpoint::Checkpoint;

/// No GPU.
pub(in crate::cli) type Cuda = Infallible;

/// The memory that a GPU takes for itself: 0, because there is no GPU.
pub(super) const OWN_BYTES: usize = 0;

/// Opens GPU number `number`.
///
/// # Errors
/// Always [`Error::Usage`].
pub(super) fn open(_: usize, _: &CpuArgs, _: &Checkpoint, _: Precision, _: Room) -> Result<Cuda> {
    Err(Error::not_built("CUDA", "cuda"))
}

/// The GPU on which the model fits: none.
pub(super) fn suitable(_: &CpuArgs, _: &Checkpoint, _: Precision, _: Room) -> Option<Cuda> {
    None
}

/// Loads the model on a GPU.
///
/// # Errors
/// None.
pub(super) fn load(cuda: &Cuda, _: &Checkpoint) -> Result<Model> {
    match *cuda {}
}
