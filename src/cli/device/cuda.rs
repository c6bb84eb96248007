//! NVIDIA GPUs.

use super::Room;
use crate::cli::room::Needs;
use crate::cli::{CpuArgs, ready, tell};
use llama_trace_core::config::Precision;
use llama_trace_core::error::{Error, Result};
pub(super) use llama_trace_cuda::OWN_BYTES;
pub(in crate::cli) use llama_trace_cuda::{Cuda, KernelList, Uses};
use llama_trace_engine::backend::Backend;
use llama_trace_engine::model::Model;
use llama_trace_formats::checkpoint::Checkpoint;

/// Opens GPU number `number`, and checks before loading that the model fits.
///
/// # Errors
/// [`Error::Usage`] if there is no such GPU, or if an option works only on the processor. [`Error::Prompt`] if the
/// model does not fit; the error says what would fit.
pub(super) fn open(
    number: usize,
    args: &CpuArgs,
    checkpoint: &Checkpoint,
    precision: Precision,
    room: Room,
) -> Result<Cuda> {
    if args.wants_processor() {
        return Err(Error::usage("--cpu-kernel and --huge-pages work only on the processor")
            .found(format!("--device {}", args.device))
            .next("leave them out, or give --device cpu"));
    }
    let cuda = arranged(Cuda::open(number)?, args, precision);
    // The model may take all of the free memory. Only `--device auto` leaves room for another model.
    check_room(&cuda, checkpoint, Room { beside: 0, ..room })?;
    Ok(cuda)
}

/// Returns the GPU, with its kernels ready, if there is one on which the model fits. Reports the chosen device, if the
/// machine has a GPU.
pub(super) fn suitable(
    args: &CpuArgs,
    checkpoint: &Checkpoint,
    precision: Precision,
    room: Room,
) -> Option<Cuda> {
    let Ok(cuda) = Cuda::open(0) else {
        if Cuda::is_there() {
            tell(format_args!(
                "Computing on the processor: the GPU cannot be used (--device cuda says why)."
            ));
        }
        return None;
    };
    let cuda = arranged(cuda, args, precision);
    let name = cuda.device_name();
    if Model::check_family(&checkpoint.config, &cuda).is_err() {
        tell(format_args!(
            "Computing on the processor: {name} cannot run this model (--device cuda says why)."
        ));
        return None;
    }
    if check_room(&cuda, checkpoint, room).is_err() {
        tell(format_args!(
            "Computing on the processor: the model does not fit on {name} (--device cuda says what would fit)."
        ));
        return None;
    }
    if ready::make(&cuda, checkpoint).is_err() {
        tell(format_args!(
            "Computing on the processor: the kernels cannot be prepared on {name} (--device cuda says why)."
        ));
        return None;
    }
    tell(format_args!("Computing on {name} (--device cuda); --device cpu uses the processor."));
    Some(cuda)
}

/// Loads the model on the GPU.
///
/// # Errors
/// The errors of [`ready::load`].
pub(super) fn load(cuda: &Cuda, checkpoint: &Checkpoint) -> Result<Model> {
    ready::load(cuda, checkpoint)
}

/// Checks that the weights and the context fit into the free memory.
fn check_room(cuda: &Cuda, checkpoint: &Checkpoint, room: Room) -> Result<()> {
    let needs = Needs::of(checkpoint, cuda.precision(), cuda.cache_dtype(), room.context, OWN_BYTES);
    match cuda.free_memory() {
        Some(free) => needs
            .check(free.saturating_sub(room.beside), checkpoint)
            .map_err(|error| error.at(cuda.device_name())),
        None => Ok(()),
    }
}

/// The device in `precision`, set up by the options.
fn arranged(cuda: Cuda, args: &CpuArgs, precision: Precision) -> Cuda {
    let cuda = cuda.with_precision(precision);
    match args.cache() {
        None => cuda,
        Some(dtype) => cuda.with_cache_dtype(dtype),
    }
}
