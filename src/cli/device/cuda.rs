//! NVIDIA GPUs.

use std::sync::{Mutex, PoisonError};

use super::Device;
use crate::cli::room::Needs;
use crate::cli::{CpuArgs, DeviceName, ready, tell, threads};
use llama_trace_core::config::Precision;
use llama_trace_core::error::{Error, Result};
pub(super) use llama_trace_cuda::OWN_BYTES;
pub(in crate::cli) use llama_trace_cuda::{Cuda, KernelList, Uses};
use llama_trace_engine::backend::Backend;
use llama_trace_engine::model::Model;
use llama_trace_formats::checkpoint::Checkpoint;

/// Checks that this build supports GPUs.
///
/// # Errors
/// None.
pub(in crate::cli) fn built() -> Result<()> {
    Ok(())
}

/// Returns whether there is a GPU on which the model of `open` fits with a context of `context` tokens. Another model
/// takes `beside` bytes of the GPU's memory. Reports the choice of the device, if there was one.
///
/// # Errors
/// The errors of `open`.
pub(in crate::cli) fn suits(
    args: &CpuArgs,
    context: Option<usize>,
    beside: usize,
    open: impl FnOnce() -> Result<(Checkpoint, Precision)>,
) -> Result<bool> {
    let Ok(cuda) = Cuda::open(0) else {
        if Cuda::is_there() {
            tell(format_args!(
                "Computing on the processor: the GPU cannot be used (--device cuda says why)."
            ));
        }
        return Ok(false);
    };
    let (checkpoint, precision) = open()?;
    let cuda = arranged(cuda, args, precision);
    let fits = cuda.check_room(&checkpoint, context, beside).is_ok();
    let takes = fits && ready::make(&cuda, &checkpoint).is_ok();
    let name = cuda.device_name();
    match (takes, fits) {
        (true, _) => {
            tell(format_args!("Computing on {name} (--device cuda); --device cpu uses the processor."));
        }
        (false, true) => tell(format_args!(
            "Computing on the processor: the kernels cannot be prepared on {name} (--device cuda says why)."
        )),
        (false, false) => tell(format_args!(
            "Computing on the processor: the model does not fit on {name} (--device cuda says what would fit)."
        )),
    }
    if takes {
        keep_chosen(cuda);
    }
    Ok(takes)
}

impl Device for Cuda {
    const IS_PROCESSOR: bool = false;

    fn start(args: &CpuArgs, precision: Precision) -> Result<Self> {
        if args.wants_processor() {
            return Err(Error::usage("--cpu-kernel and --huge-pages work only on the processor")
                .found(format!("--device {}", args.device))
                .next("leave them out, or give --device cpu"));
        }
        // The weights are prepared on these threads.
        threads::start(args.threads)?;
        let number = match args.device {
            DeviceName::Cuda(number) => number,
            _ => 0,
        };
        let cache = args.cache().unwrap_or(precision.cache_dtype());
        let is = |cuda: &Self| (cuda.precision(), cuda.cache_dtype()) == (precision, cache);
        let chosen = CHOSEN.lock().unwrap_or_else(PoisonError::into_inner).take();
        match chosen {
            Some(cuda) if number == 0 && is(&cuda) => Ok(cuda),
            _ => Ok(arranged(Self::open(number)?, args, precision)),
        }
    }

    fn load(self, checkpoint: &Checkpoint) -> Result<Model<Self>> {
        ready::load(&self, checkpoint)
    }

    fn check_room(&self, checkpoint: &Checkpoint, context: Option<usize>, beside: usize) -> Result<()> {
        let needs = Needs::of(checkpoint, self.precision(), self.cache_dtype(), context, OWN_BYTES);
        match self.free_memory() {
            Some(free) => needs
                .check(free.saturating_sub(beside), checkpoint)
                .map_err(|error| error.at(self.device_name())),
            None => Ok(()),
        }
    }
}

/// The device that `--device auto` chose, until the run starts on it.
static CHOSEN: Mutex<Option<Cuda>> = Mutex::new(None);

/// Keeps the chosen device, with its kernels ready, for the run.
fn keep_chosen(cuda: Cuda) {
    *CHOSEN.lock().unwrap_or_else(PoisonError::into_inner) = Some(cuda);
}

/// The device in `precision`, set up by the options.
fn arranged(cuda: Cuda, args: &CpuArgs, precision: Precision) -> Cuda {
    let cuda = cuda.with_precision(precision);
    match args.cache() {
        None => cuda,
        Some(dtype) => cuda.with_cache_dtype(dtype),
    }
}
