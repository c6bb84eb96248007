//! The device of a run: the device that the options name, or with `--device auto` the GPU if the model fits on it.
//! Only this module names the devices; the commands know a [`Model`].

#[cfg_attr(not(feature = "cuda"), path = "device/no_cuda.rs")]
mod cuda;

use super::room::Needs;
use super::{CacheDtypeName, CpuArgs, DeviceName, threads};
use llama_trace_core::config::{CacheDtype, Precision};
use llama_trace_core::error::{Error, Result};
use llama_trace_engine::backend::cpu::{Cpu, Kernel};
use llama_trace_engine::model::Model;
use llama_trace_formats::checkpoint::Checkpoint;

pub(super) use cuda::Cuda;
use cuda::OWN_BYTES;
#[cfg(feature = "cuda")]
pub(super) use cuda::{KernelList, Uses};

/// The device of a run, set up by the options.
pub(super) enum Device {
    /// The processor, which reads weights in their mapped file.
    Cpu(Cpu),
    /// A GPU, with its number.
    Cuda(Cuda, usize),
}

/// The memory that a run needs besides its weights.
#[derive(Clone, Copy, Default)]
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only a GPU is asked for room"))]
pub(super) struct Room {
    /// Tokens of the context, if given.
    pub(super) context: Option<usize>,
    /// Bytes of a GPU's free memory that another model will take. `--device auto` leaves them free.
    pub(super) beside: usize,
}

impl Device {
    /// The device for `checkpoint` in `precision`, set up by the options. With `--device auto`, reports the choice if
    /// the machine has a GPU.
    ///
    /// # Errors
    /// [`Error::Usage`] if an option asks for something that this machine lacks. [`Error::Prompt`] if the model does
    /// not fit on the named device; the error says what would fit.
    pub(super) fn choose(
        args: &CpuArgs,
        checkpoint: &Checkpoint,
        precision: Precision,
        room: Room,
    ) -> Result<Self> {
        // The weights are prepared on these threads.
        threads::start(args.threads)?;
        match args.device {
            DeviceName::Cuda(number) => {
                Ok(Self::Cuda(cuda::open(number, args, checkpoint, precision, room)?, number))
            }
            DeviceName::Auto if !args.wants_processor() => {
                match cuda::suitable(args, checkpoint, precision, room) {
                    Some(cuda) => Ok(Self::Cuda(cuda, 0)),
                    None => processor(args, precision).map(Self::Cpu),
                }
            }
            _ => processor(args, precision).map(Self::Cpu),
        }
    }

    /// The name of the device as an option, never `auto`.
    pub(super) fn name(&self) -> DeviceName {
        match self {
            Self::Cpu(_) => DeviceName::Cpu,
            Self::Cuda(_, number) => DeviceName::Cuda(*number),
        }
    }

    /// The model in `checkpoint` on this device, ready to run.
    ///
    /// # Errors
    /// The errors of [`Model::load`], and an error if the device computes wrong values.
    pub(super) fn load(self, checkpoint: &Checkpoint) -> Result<Model> {
        match self {
            Self::Cpu(cpu) => Model::load(checkpoint, cpu),
            Self::Cuda(cuda, _) => cuda::load(&cuda, checkpoint),
        }
    }
}

impl CpuArgs {
    /// Returns whether an option is given that only the processor has.
    fn wants_processor(&self) -> bool {
        self.cpu_kernel.is_some() || self.huge_pages
    }

    /// The number type of the KV cache, if the option is given.
    fn cache(&self) -> Option<CacheDtype> {
        self.cache_dtype.map(|name| match name {
            CacheDtypeName::F32 => CacheDtype::F32,
            CacheDtypeName::F16 => CacheDtype::F16,
            CacheDtypeName::Bf16 => CacheDtype::Bf16,
        })
    }
}

/// The processor in `precision`, set up by the options.
fn processor(args: &CpuArgs, precision: Precision) -> Result<Cpu> {
    let cpu = Cpu::with_kernel(kernel(args)?).with_precision(precision);
    Ok(match args.cache() {
        None => cpu,
        Some(dtype) => cpu.with_cache_dtype(dtype),
    })
}

/// The same model on the processor in float32, as the reference for the device `name`. Its weights stay in their files.
/// `None` if that device is the processor.
pub(super) fn reference(name: DeviceName, checkpoint: &Checkpoint) -> Result<Option<Model>> {
    match name {
        DeviceName::Cuda(_) => Model::load(checkpoint, Cpu::default()).map(Some),
        _ => Ok(None),
    }
}

/// The GPU memory that a run of `checkpoint` needs with a context of `context` tokens.
pub(super) fn needs(checkpoint: &Checkpoint, precision: Precision, context: Option<usize>) -> Needs {
    Needs::of(checkpoint, precision, precision.cache_dtype(), context, OWN_BYTES)
}

/// The kernel that the options name.
fn kernel(args: &CpuArgs) -> Result<Kernel> {
    let Some(name) = &args.cpu_kernel else { return Ok(Kernel::default()) };
    let available = Kernel::selectable();
    let names: Vec<_> = available.iter().map(|kernel| kernel.name()).collect();
    let kernel = available.iter().find(|kernel| kernel.name() == name).ok_or_else(|| {
        Error::usage("this processor has no such kernel")
            .expected(names.join(", "))
            .found(format!("`{name}`"))
            .next("give one of these, or none: the fastest is the default")
    })?;
    Ok(*kernel)
}
