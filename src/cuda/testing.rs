//! Devices for tests: the CPU in place of a GPU ([`llama_trace_emulator`]).

use std::sync::atomic::Ordering::Relaxed;

use super::{Cuda, KernelList};
use llama_trace_emulator::{Emulated, Log};
#[cfg(test)]
use llama_trace_kernels::driver::Untried;

impl Cuda {
    /// Returns the device of the tests: GPU number LLAMA_TRACE_GPU if that variable is set, otherwise the CPU emulation
    /// with `bytes` bytes of memory. Warpgroups and streamed weights are used as if they had passed the self-test.
    pub fn of_tests(bytes: usize) -> Option<Self> {
        let cuda = match std::env::var("LLAMA_TRACE_GPU") {
            Ok(number) => number
                .parse()
                .map(Self::open)
                .expect("LLAMA_TRACE_GPU is a number")
                .expect("a GPU with this number"),
            Err(_) if std::env::var_os("LLAMA_TRACE_PTX").is_some() => Self::of_ptx(bytes),
            Err(_) => Self::emulated(bytes)?,
        };
        cuda.warpgroups.store(cuda.queue.device().has_warpgroups(), Relaxed);
        cuda.streams.store(true, Relaxed);
        Some(cuda)
    }

    /// The same device, with these kernels.
    #[cfg(test)]
    pub(crate) fn trying(self, untried: Untried) -> Self {
        Self { untried, ..self }
    }

    /// Returns the CPU emulation of a device with as much shared memory as compute capability 9.0 has, and the list of
    /// the kernels that it loads. Kernels fail whose name begins with `refused`.
    #[cfg(test)]
    pub(crate) fn with_large_blocks(
        bytes: usize,
        refused: Option<&'static str>,
    ) -> Option<(Self, KernelList)> {
        let device = Emulated::new(bytes, usize::MAX)?.with_shared(227 << 10);
        let device = match refused {
            Some(kernels) => device.refusing(kernels),
            None => device,
        };
        let list = KernelList(device.loaded());
        Some((Self::over(Box::new(device)), list))
    }

    /// Returns the CPU emulation with the kernels as they are compiled for the embedded PTX.
    pub fn compact(bytes: usize) -> Option<Self> {
        Some(Self::over(Box::new(Emulated::new(bytes, usize::MAX)?.carried())))
    }

    /// Returns a device whose kernels are compiled to PTX and run by the PTX interpreter.
    pub(crate) fn of_ptx(bytes: usize) -> Self {
        Self::over(Box::new(Emulated::of_ptx(bytes)))
    }

    /// Returns the CPU emulation of a device with `bytes` bytes of memory. `None`, after printing a message, if no
    /// compiler for the kernels is found.
    pub fn emulated(bytes: usize) -> Option<Self> {
        Self::lost_after(bytes, usize::MAX)
    }

    /// Returns the CPU emulation of a device that is lost after `launches` launches.
    pub fn lost_after(bytes: usize, launches: usize) -> Option<Self> {
        Some(Self::over(Box::new(Emulated::new(bytes, launches)?)))
    }

    /// Returns the CPU emulation of a device on which every kernel fails whose name begins with `kernels`.
    pub fn refusing(bytes: usize, kernels: &'static str) -> Option<Self> {
        Some(Self::over(Box::new(Emulated::new(bytes, usize::MAX)?.refusing(kernels))))
    }

    /// Returns the CPU emulation of a device, and a log of all requests to it.
    pub fn logged(bytes: usize) -> Option<(Self, Log)> {
        let device = Emulated::new(bytes, usize::MAX)?;
        let log = device.log();
        Some((Self::over(Box::new(device)), log))
    }

    /// Returns the CPU emulation of a device, and the list of the kernels that it loads.
    pub fn listed(bytes: usize) -> Option<(Self, KernelList)> {
        let device = Emulated::new(bytes, usize::MAX)?;
        let list = KernelList(device.loaded());
        Some((Self::over(Box::new(device)), list))
    }

    /// Returns how often a captured graph was launched.
    pub fn repeated(&self) -> usize {
        self.queue.repeated()
    }
}
