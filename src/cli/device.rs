//! The one place that knows which devices there are: from options to the backend that a command runs on. The commands
//! themselves are written for any backend.

use super::{CacheDtypeName, CpuArgs, DeviceName, threads};
use crate::backend::Backend;
use crate::backend::cpu::{Cpu, Kernel};
use crate::config::{CacheDtype, Precision};
use crate::error::{Error, Result};

/// A backend that the command line can start.
pub(super) trait Device: Backend + Sized + 'static {
    /// The backend in `precision`, as the options want it.
    ///
    /// # Errors
    /// [`Error::Usage`] where an option asks for something that this machine has not.
    fn start(args: &CpuArgs, precision: Precision) -> Result<Self>;
}

/// A command, for whichever device it is run on.
pub(super) trait Command {
    /// Runs it.
    ///
    /// # Errors
    /// The command's own.
    fn run<D: Device>(self) -> Result<()>;
}

/// Runs `command` on the device that was asked for.
///
/// # Errors
/// The command's own.
pub(super) fn run(command: impl Command) -> Result<()> {
    command.run::<Cpu>()
}

/// Runs `command` on the device of this name.
///
/// # Errors
/// The command's own.
pub(super) fn run_on(device: DeviceName, command: impl Command) -> Result<()> {
    match device {
        DeviceName::Cpu => command.run::<Cpu>(),
    }
}

impl Device for Cpu {
    fn start(args: &CpuArgs, precision: Precision) -> Result<Self> {
        let cpu = Self::with_kernel(kernel(args)?).with_precision(precision);
        Ok(match args.cache_dtype {
            None => cpu,
            Some(CacheDtypeName::F32) => cpu.with_cache_dtype(CacheDtype::F32),
            Some(CacheDtypeName::F16) => cpu.with_cache_dtype(CacheDtype::F16),
            Some(CacheDtypeName::Bf16) => cpu.with_cache_dtype(CacheDtype::Bf16),
        })
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
