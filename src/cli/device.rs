//! The one place that knows which devices there are: from options to a backend. The commands are written for any.

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
    /// Whether it is the processor, which reads weights where they lie.
    const IS_PROCESSOR: bool;

    /// The backend in `precision`, as the options want it.
    ///
    /// # Errors
    /// [`Error::Usage`] where an option asks for something that this machine has not.
    fn start(args: &CpuArgs, precision: Precision) -> Result<Self>;

    /// The model in `checkpoint` on this device, ready to run.
    ///
    /// # Errors
    /// As [`Model::load`], and where the device does not compute what it should.
    fn load(self, checkpoint: &Checkpoint) -> Result<Model<Self>> {
        Model::load(checkpoint, self)
    }

    /// Checks before anything is loaded that there is room for the weights, and for a context of `context` tokens, where
    /// others will take `beside` bytes of what is free.
    ///
    /// # Errors
    /// [`Error::Prompt`] with what would fit, where there is none.
    fn check_room(&self, checkpoint: &Checkpoint, context: Option<usize>, beside: usize) -> Result<()>;
}

impl CpuArgs {
    /// Whether an option is given that only the processor knows.
    pub(super) fn wants_processor(&self) -> bool {
        self.cpu_kernel.is_some() || self.huge_pages
    }

    /// The number type of the cache that was asked for.
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
        Ok(()) // weights stay in their files, and the system gives memory as it is written
    }
}

impl Device for Cuda {
    const IS_PROCESSOR: bool = false;

    fn start(args: &CpuArgs, precision: Precision) -> Result<Self> {
        if args.wants_processor() {
            return Err(Error::usage("--cpu-kernel and --huge-pages are the processor's")
                .found(format!("--device {}", args.device))
                .next("leave them out, or give --device cpu"));
        }
        // What makes weights ready runs on them.
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

/// The same model on the processor in float32, which is what another device is held against. Its weights stay in their
/// files.
pub(super) fn beside<D: Device>(checkpoint: &Checkpoint) -> Result<Option<Model<Cpu>>> {
    if D::IS_PROCESSOR { Ok(None) } else { Model::load(checkpoint, Cpu::default()).map(Some) }
}

/// The device that was chosen because nobody named one, until it is started.
static CHOSEN: Mutex<Option<Cuda>> = Mutex::new(None);

/// Keeps a device that is ready for the run that it was chosen for.
pub(super) fn keep_chosen(cuda: Cuda) {
    *CHOSEN.lock().unwrap_or_else(PoisonError::into_inner) = Some(cuda);
}

/// What a run of `checkpoint` with a context of so many tokens takes of a GPU's memory.
pub(super) fn needs(checkpoint: &Checkpoint, precision: Precision, context: Option<usize>) -> Needs {
    Needs::of(checkpoint, precision, precision.cache_dtype(), context, OWN_BYTES)
}

/// The device in `precision`, as the options want it.
pub(super) fn arranged(cuda: Cuda, args: &CpuArgs, precision: Precision) -> Cuda {
    let cuda = cuda.with_precision(precision);
    match args.cache() {
        None => cuda,
        Some(dtype) => cuda.with_cache_dtype(dtype),
    }
}

/// Starts the threads, and finds the kernel.
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
