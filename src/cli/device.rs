//! The one place that knows which devices there are: from options to a backend. The commands are written for any.

use super::progress::Progress;
use super::room::Needs;
use super::{CacheDtypeName, CpuArgs, DeviceName, tell, threads};
use crate::backend::Backend;
pub(super) use crate::backend::cpu::Cpu;
use crate::backend::cpu::Kernel;
pub(super) use crate::backend::cuda::Cuda;
use crate::backend::cuda::OWN_BYTES;
use crate::checkpoint::Checkpoint;
use crate::config::{CacheDtype, Precision};
use crate::error::{Error, Result};
use crate::model::Model;

/// A backend that the command line can start.
pub(super) trait Device: Backend + Sized + 'static {
    /// Whether it is the processor, which reads weights where they lie.
    const IS_PROCESSOR: bool;

    /// The backend in `precision`, as the options want it.
    ///
    /// # Errors
    /// [`Error::Usage`] where an option asks for something that this machine has not.
    fn start(args: &CpuArgs, precision: Precision) -> Result<Self>;

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
        let number = if let DeviceName::Cuda(number) = args.device { number } else { 0 };
        let cuda = arranged(Self::open(number)?, args, precision);
        made_ready(&cuda)?;
        if let Err(why) = cuda.compiles() {
            tell(format_args!(
                "The kernels are those that the program carries: slower for several tokens at once than those that NVRTC compiles for {}.\n{why}",
                cuda.device_name()
            ));
        }
        Ok(cuda)
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

/// Makes the kernels ready, with a bar where compiling them takes longer than a moment: once for a device and compiler.
///
/// # Errors
/// As [`Cuda::ready`].
pub(super) fn made_ready(cuda: &Cuda) -> Result<()> {
    let bar = Progress::new(Cuda::PROOFS, "kinds of kernels ready");
    let ready = cuda.ready(&mut || bar.add(1));
    bar.finish();
    ready
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
