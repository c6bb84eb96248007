//! Turns options into a backend: the one place that names the devices. The commands are generic over them.

use std::sync::{Mutex, PoisonError};

use super::room::Needs;
use super::{CacheDtypeName, CpuArgs, DeviceName, ready, threads};
use llama_trace_core::config::{CacheDtype, Precision};
use llama_trace_core::error::{Error, Result};
use llama_trace_cuda::OWN_BYTES;
pub(super) use llama_trace_cuda::{Cuda, KernelList, Uses};
use llama_trace_engine::backend::Backend;
pub(super) use llama_trace_engine::backend::cpu::Cpu;
use llama_trace_engine::backend::cpu::Kernel;
use llama_trace_engine::model::Model;
use llama_trace_formats::checkpoint::Checkpoint;

/// A backend that the command line can start.
pub(super) trait Device: Backend + Sized + 'static {
    /// Whether it is the processor, which reads weights in their mapped file.
    const IS_PROCESSOR: bool;

    /// The backend in `precision`, set up by the options.
    ///
    /// # Errors
    /// [`Error::Usage`] if an option asks for something that this machine lacks.
    fn start(args: &CpuArgs, precision: Precision) -> Result<Self>;

    /// The model in `checkpoint` on this device, ready to run.
    ///
    /// # Errors
    /// As [`Model::load`], and if the device computes wrong values.
    fn load(self, checkpoint: &Checkpoint) -> Result<Model<Self>> {
        Model::load(checkpoint, self)
    }

    /// Checks before loading that the weights and a context of `context` tokens fit, if `beside` bytes of the free memory are
    /// taken by another model.
    ///
    /// # Errors
    /// [`Error::Prompt`], which says what would fit.
    fn check_room(&self, checkpoint: &Checkpoint, context: Option<usize>, beside: usize) -> Result<()>;
}

impl CpuArgs {
    /// Whether an option of the processor alone is given.
    pub(super) fn wants_processor(&self) -> bool {
        self.cpu_kernel.is_some() || self.huge_pages
    }

    /// The number type of the KV cache, if given.
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

impl Device for Cuda {
    const IS_PROCESSOR: bool = false;

    fn start(args: &CpuArgs, precision: Precision) -> Result<Self> {
        if args.wants_processor() {
            return Err(Error::usage("--cpu-kernel and --huge-pages work only on the processor")
                .found(format!("--device {}", args.device))
                .next("leave them out, or give --device cpu"));
        }
        // Preparing the weights uses them.
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

/// The same model on the processor in float32: the reference for another device. Its weights stay in their files.
pub(super) fn beside<D: Device>(checkpoint: &Checkpoint) -> Result<Option<Model<Cpu>>> {
    if D::IS_PROCESSOR { Ok(None) } else { Model::load(checkpoint, Cpu::default()).map(Some) }
}

/// The device that `--device auto` chose, until the run starts on it.
static CHOSEN: Mutex<Option<Cuda>> = Mutex::new(None);

/// Keeps the chosen device, with its kernels ready, for the run.
pub(super) fn keep_chosen(cuda: Cuda) {
    *CHOSEN.lock().unwrap_or_else(PoisonError::into_inner) = Some(cuda);
}

/// The GPU memory that a run of `checkpoint` with a context of `context` tokens takes.
pub(super) fn needs(checkpoint: &Checkpoint, precision: Precision, context: Option<usize>) -> Needs {
    Needs::of(checkpoint, precision, precision.cache_dtype(), context, OWN_BYTES)
}

/// The device in `precision`, set up by the options.
pub(super) fn arranged(cuda: Cuda, args: &CpuArgs, precision: Precision) -> Cuda {
    let cuda = cuda.with_precision(precision);
    match args.cache() {
        None => cuda,
        Some(dtype) => cuda.with_cache_dtype(dtype),
    }
}

/// Starts the compute threads and returns the kernel asked for.
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
