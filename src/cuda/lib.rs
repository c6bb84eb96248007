//! An NVIDIA GPU. Every operation launches one or a few CUDA C++ kernels. They are in `kernels/`, and are named like
//! the operations of [`llama_trace_core::ops`]. Each kernel is compiled for the device at its first use.
//!
//! ```text
//! Cuda (the operations) ─▶ Kernels (which one, which defines) ─▶ Queue (in order; passes are repeated) ─▶ Driver
//!                                                                     NVIDIA's, or in tests the CPU emulation ◀┘
//! ```
//!
//! **Order of summation and bits.** Norms, element-wise operations, quantised activations and integer products are
//! bit-exact: they equal [`llama_trace_core::ops`]. Floating-point products and attention sum in another order. This
//! order depends on the sizes of the matrices, and on the numbers of tokens and keys of the row's own span. It does not
//! depend on other spans or on recording. Values are rounded only at the places where `ops/` rounds them: no TF32, no
//! approximate division.
//!
//! **Untried kernels.** A kernel that no GPU has run is never the default. The environment variable
//! `LLAMA_TRACE_CUDA_WITH` switches such kernels on (`features.rs`).
//!
//! `llama-trace help gpu` says on which GPUs this code has run, and which parts have run only in the emulation.

mod attention;
mod blas;
mod features;
mod fusable;
mod kernels;
mod limits;
mod listing;
mod matrix;
mod memory;
mod noise;
mod norm;
mod nvidia;
mod operations;
mod pass;
mod probe_driver;
mod product;
mod proof;
mod queue;
mod rope;
mod sampling;
mod stage_readback;
mod store;
#[cfg(any(test, feature = "testing"))]
mod testing;
#[cfg(test)]
mod tests;
mod token_readback;

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kernels::{Kernel, Kernels};
use llama_trace_core::config::{CacheDtype, Precision};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::stop::Stop;
use llama_trace_engine::backend::cpu::Cpu;
use llama_trace_kernels::driver::{Address, Arguments, Driver, Event, Untried, failed};
use memory::{Growing, Memory};
use queue::Queue;
use sampling::Place;

pub use listing::KernelList;
pub use matrix::Matrix;
pub use memory::{Buffer, Vector};
pub use pass::Pass;
pub use product::Input;
pub use proof::Uses;

/// Bytes of device memory for kernels, the driver, its graphs and the recorded parts of attention. They are needed in
/// addition to the memory that is allocated explicitly. All other recorded values go to host memory.
pub const OWN_BYTES: usize = 512 << 20;

/// A device, and the precision that it computes in.
#[derive(Clone)]
pub struct Cuda {
    queue: Arc<Queue>,
    kernels: Arc<Kernels>,
    scratch: Arc<Mutex<Scratch>>,
    /// Converts weights on the CPU if they are not multiplied in the number type in which they are stored.
    host: Cpu,
    precision: Precision,
    cache_dtype: CacheDtype,
    stop: Stop,
    architecture: &'static str,
    /// Whether products of many rows use warpgroups (four warps together). They do so only after a self-test of the
    /// results.
    warpgroups: Arc<AtomicBool>,
    /// Whether the kernels passed the self-test in this precision.
    proved: Arc<AtomicBool>,
    /// Whether integer products copy their weights to shared memory first. They do so only after a self-test of the
    /// results.
    streams: Arc<AtomicBool>,
    /// The kernels that are used although no GPU has run them yet.
    untried: Untried,
}

/// Scratch memory. The operations share it, one after the other.
#[derive(Default)]
struct Scratch {
    partial: Growing,
    counters: Growing,
    /// Weights unpacked for products with many rows, and their scales ([`product`]).
    weights: [Growing; 2],
    /// Weights widened to bfloat16.
    widened: [Growing; fusable::MOST_PRODUCTS],
    draw: Option<Place>,
}

impl Scratch {
    /// Returns scratch memory for attention over one token: the partial sums of the splits, and a counter for each
    /// block. The counters are 0; the kernel sets them to 0 again.
    fn attention(
        &mut self,
        queue: &Arc<Queue>,
        floats: usize,
        counters: usize,
    ) -> Result<(Address, Address)> {
        Ok((self.partial.room(queue, floats * 4, false)?, self.counters.room(queue, counters * 4, true)?))
    }
}

/// The keys or the values of one layer of one sequence: (capacity, G, C), in the cache's number type.
pub struct Cache {
    memory: Memory,
    dtype: CacheDtype,
}

/// A recorded event in the device's stream; `None` if the device could not record one.
pub struct Mark {
    queue: Arc<Queue>,
    event: Option<Event>,
}

impl Drop for Mark {
    fn drop(&mut self) {
        if let Some(event) = self.event {
            self.queue.device().release(event);
        }
    }
}

impl Cuda {
    /// Opens device number `number`, in float32.
    ///
    /// # Errors
    /// [`llama_trace_core::error::Error::Usage`] if there is no driver or no such device, or if the driver or the
    /// device is too old.
    pub fn open(number: usize) -> Result<Self> {
        Ok(Self::over(Box::new(nvidia::Nvidia::open(number)?)))
    }

    /// Whether there is a driver that reports at least one device, or that fails to report its devices.
    pub fn is_there() -> bool {
        probe_driver::is_there()
    }

    fn over(driver: Box<dyn Driver>) -> Self {
        let (major, minor) = driver.about().architecture;
        let untried = driver.untried();
        let queue = Arc::new(Queue::new(driver));
        let (precision, cache_dtype) = (Precision::F32, CacheDtype::F32);
        Self {
            kernels: Arc::new(Kernels::new(&queue, precision, cache_dtype)),
            queue,
            scratch: Arc::default(),
            host: Cpu::default(),
            precision,
            cache_dtype,
            stop: Stop::default(),
            // Leaks one short string for each device.
            architecture: Box::leak(format!("sm_{major}{minor}").into_boxed_str()),
            warpgroups: Arc::default(),
            proved: Arc::default(),
            streams: Arc::default(),
            untried,
        }
    }

    /// Returns the same device in another precision.
    #[must_use]
    pub fn with_precision(self, precision: Precision) -> Self {
        let host = self.host.with_precision(precision);
        Self { precision, host, ..self }.with_cache_dtype(precision.cache_dtype())
    }

    /// Returns the same device, with keys and values cached in another number type than the precision's own.
    #[must_use]
    pub fn with_cache_dtype(self, cache_dtype: CacheDtype) -> Self {
        let kernels = Arc::new(Kernels::new(&self.queue, self.precision, cache_dtype));
        Self { kernels, cache_dtype, proved: Arc::default(), ..self }
    }

    /// Returns the same device, stopped by `stop` instead of its own stop request.
    #[must_use]
    pub fn with_stop(self, stop: Stop) -> Self {
        Self { host: self.host.with_stop(stop.clone()), stop, ..self }
    }

    /// Returns the same configuration on a device that does nothing, and the list of the kernels that it loads. The
    /// list includes the kernels of the self-test for `uses` ([`Self::prove`]).
    pub fn listing(&self, uses: &Uses) -> (Self, KernelList) {
        let device = listing::Listing::of(self.queue.device());
        let list = device.list();
        let cuda = Self { untried: self.untried, ..Self::over(Box::new(device)) };
        let cuda = cuda.with_precision(self.precision).with_cache_dtype(self.cache_dtype);
        cuda.warpgroups.store(cuda.queue.device().has_warpgroups(), Relaxed);
        cuda.streams.store(true, Relaxed);
        proof::run(&cuda, uses);
        (cuda, list)
    }

    /// Compiles the kernels of a list, or loads their cached code, in parallel on `threads` threads. Calls `done` after
    /// each kernel. If a kernel cannot be compiled, the error is returned when the kernel is used.
    pub fn compile(&self, list: &KernelList, threads: usize, done: &(dyn Fn() + Sync)) {
        self.queue.device().make_ready(&list.kernels(), threads, &|| {
            done();
            self.stop.check().is_ok()
        });
    }

    /// Runs the self-test for `uses`: one kernel of each kind runs on the device, and its results are compared with the
    /// CPU's. The self-test is skipped if this executable has already passed it in this precision. Fast kernels that
    /// fail are replaced by slower ones with the same results. In this case, returns the reason.
    ///
    /// # Errors
    /// If there is no compiler for the kernels, or if the compiler or the device fails.
    pub fn prove(&self, uses: &Uses) -> Result<Option<Error>> {
        if self.is_proved() {
            return Ok(None);
        }
        let why_not = proof::prove(self, uses)?;
        self.proved.store(true, Relaxed);
        Ok(why_not)
    }

    /// Whether the kernels passed the self-test in this precision.
    pub fn is_proved(&self) -> bool {
        self.proved.load(Relaxed)
    }

    /// Checks that a compiler for this very device was found. Without such a compiler, the driver compiles the embedded
    /// PTX. Kernels from this PTX are slower for several tokens at once.
    ///
    /// # Errors
    /// The reason why there is no compiler, and how to get one.
    pub fn compiles(&self) -> Result<()> {
        self.queue.device().compiles()
    }

    /// The device's name for users.
    pub fn device_name(&self) -> &str {
        &self.queue.device().about().name
    }

    fn scratch(&self) -> MutexGuard<'_, Scratch> {
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Launches an element-wise kernel. Each thread computes 4 values.
    fn elements(&self, name: &'static str, count: usize, inputs: &[&Buffer], out: &Buffer) -> Result<()> {
        self.stop.check()?;
        let mut arguments = Arguments::new();
        for input in inputs {
            input.holds(count);
            arguments = arguments.address(input.at(0));
        }
        out.holds(count);
        let kernel = Kernel { file: "elementwise", name, weight: None };
        let arguments = arguments.long(count).address(out.at(0));
        self.kernels.launch(kernel, (count.div_ceil(512), 1), 128, 0, arguments)
    }
}
