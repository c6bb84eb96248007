//! Turns options into a backend. Only this module names the devices; the commands are generic over them.

#[cfg_attr(not(feature = "cuda"), path = "device/no_cuda.rs")]
mod cuda;

use super::room::Needs;
use super::{CacheDtypeName, CpuArgs, threads};
use llama_trace_core::config::{CacheDtype, Precision};
use llama_trace_core::error::{Error, Result};
use llama_trace_engine::backend::Backend;
pub(super) use llama_trace_engine::backend::cpu::Cpu;
use llama_trace_engine::backend::cpu::Kernel;
use llama_trace_engine::model::Model;
use llama_trace_formats::checkpoint::Checkpoint;

use cuda::OWN_BYTES;
pub(super) use cuda::{Cuda, built, suits};
#[cfg(feature = "cuda")]
pub(super) use cuda::{KernelList, Uses};

/// A backend that the command line can start.
pub(super) trait Device: Backend + Sized + 'static {
    /// Whether this is the processor, which reads weights in their mapped file.
    const IS_PROCESSOR: bool;

    /// The backend in `precision`, set up by the options.
    ///
    /// # Errors
    /// [`Error::Usage`] if an option asks for something that this machine lacks.
    fn start(args: &CpuArgs, precision: Precision) -> Result<Self>;

    /// The model in `checkpoint` on this device, ready to run.
    ///
    /// # Errors
    /// The errors of [`Model::load`], and an error if the device computes wrong values.
    fn load(self, checkpoint: &Checkpoint) -> Result<Model<Self>> {
        Model::load(checkpoint, self)
    }

    /// Checks before loading that the weights and a context of `context` tokens fit. Another model takes `beside` bytes
    /// of the free memory.
    ///
    /// # Errors
    /// [`Error::Prompt`], which says what would fit.
    fn check_room(&self, checkpoint: &Checkpoint, context: Option<usize>, beside: usize) -> Result<()>;
}

impl CpuArgs {
    /// Returns whether an option is given that only the processor has.
    pub(super) fn wants_processor(&self) -> bool {
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

impl Device for Cpu {
    const IS_PROCESSOR: bool = true;

    fn start(args: &CpuArgs, precision: Precision) -> Result<Self> {
        let cpu = Self::with_kernel(kernel(args)?).with_precision(precision);
        Ok(match args.cache() {
            None => cpu,
            Some(dtype) => cpu.with_cache_dtype(dtype),
        })
    }

    fn check_room(&self, _: &Checkpoint, _: Option<usize>, _: usize) -> Result<()> {
        Ok(()) // weights stay in their files, and other memory is taken as it is written
    }
}

/// The same model on the processor in float32, as the reference for another device. Its weights stay in their files.
pub(super) fn beside<D: Device>(checkpoint: &Checkpoint) -> Result<Option<Model<Cpu>>> {
    if D::IS_PROCESSOR { Ok(None) } else { Model::load(checkpoint, Cpu::default()).map(Some) }
}

/// The GPU memory that a run of `checkpoint` needs with a context of `context` tokens.
pub(super) fn needs(checkpoint: &Checkpoint, precision: Precision, context: Option<usize>) -> Needs {
    Needs::of(checkpoint, precision, precision.cache_dtype(), context, OWN_BYTES)
}

/// Starts the compute threads, and returns the kernel that the options name.
fn kernel(args: &CpuArgs) -> Result<Kernel> {
    threads::start(args.threads)?;
    let Some(name) = &args.cpu_kernel else { return Ok(Kernel::default()) };
    let available = Kernel::available();
    let names: Vec<_> = available.iter().map(|kernel| kernel.name()).collect();
    let kernel = available.iter().find(|kernel| kernel.name() == name).ok_or_else(|| {
        Error::usage("this processor has no such kernel")
            .expected(names.join(", "))
            .found(format!("`{name}`"))
            .next("give one of these, or none: the fastest is the default")
    })?;
    Ok(*kernel)
}
