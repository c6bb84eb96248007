//! A GPU of NVIDIA's: every operation is one launch or a few of kernels in CUDA C++ (`kernels/`, the names of
//! [`llama_trace_core::ops`]), compiled for the device when they are first used.
//!
//! ```text
//! Cuda (the operations) ─▶ Kernels (which, with what defined) ─▶ Queue (in order; passes are repeated) ─▶ Driver
//!                                                                     NVIDIA's, or in tests the processor ◀┘
//! ```
//!
//! **Order and bits.** Norms, what goes element by element, quantised activations and products in whole numbers have the
//! bits of [`llama_trace_core::ops`]. Products in floats and attention sum in other orders, which depend on the sizes and on the tokens
//! of a row's own span, never on the other spans, nor on who looks. Nothing is rounded that `ops/` does not round:
//! no TF32, no approximate division.
//!
//! `llama-trace help gpu` lists what GPUs have run, and what the emulation alone.

mod attention;
mod blas;
mod coming;
mod driver;
#[cfg(any(test, feature = "testing"))]
pub mod emulated;
mod fetching;
mod finding;
mod kernels;
mod libraries;
mod limits;
mod listing;
#[cfg(any(test, feature = "testing"))]
mod machine;
mod matrix;
mod memory;
mod noise;
mod norm;
mod nvidia;
pub mod nvrtc;
mod operations;
mod pass;
mod product;
mod proof;
pub mod ptx;
mod queue;
mod sampling;
pub mod sources;
mod store;
#[cfg(test)]
mod tests;
mod turning;
mod without;

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use driver::{Address, Arguments, Driver, Event, failed};
use kernels::{Kernel, Kernels};
use llama_trace_core::config::{CacheDtype, Precision};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::stop::Stop;
use llama_trace_engine::backend::cpu::Cpu;
use memory::{Growing, Memory};
use queue::Queue;
use sampling::Place;

pub use listing::KernelList;
pub use matrix::Matrix;
pub use memory::{Buffer, Vector};
pub use pass::Pass;
pub use product::Input;
pub use proof::Uses;

/// Bytes that kernels, the driver, its graphs and the parts of attention that somebody looks at take of the device's memory
/// beside what is asked for. All else that is recorded goes to the host's.
pub const OWN_BYTES: usize = 512 << 20;

/// A device, and the arithmetic that it computes in.
#[derive(Clone)]
pub struct Cuda {
    queue: Arc<Queue>,
    kernels: Arc<Kernels>,
    scratch: Arc<Mutex<Scratch>>,
    /// What makes weights ready that are stored in another number type than they are multiplied in.
    host: Cpu,
    precision: Precision,
    cache_dtype: CacheDtype,
    stop: Stop,
    architecture: &'static str,
    /// Whether groups of four warps multiply many rows: it was proved that they do it right.
    warpgroups: Arc<AtomicBool>,
    /// Whether its kernels were proved in this arithmetic.
    proved: Arc<AtomicBool>,
    /// Whether weights of products in whole numbers go through shared memory: it was proved that they come out right.
    streams: Arc<AtomicBool>,
}

/// Memory that operations use while they run, one after the other.
#[derive(Default)]
struct Scratch {
    partial: Growing,
    counters: Growing,
    /// Weights as many rows are multiplied with them, and their scales ([`product`]).
    weights: [Growing; 2],
    /// Weights widened to bfloat16.
    widened: [Growing; product::MOST_PRODUCTS],
    draw: Option<Place>,
}

impl Scratch {
    /// For attention over one token: sums of the splits, and a counter for each block, which its kernel leaves at 0.
    fn attention(
        &mut self,
        queue: &Arc<Queue>,
        floats: usize,
        counters: usize,
    ) -> Result<(Address, Address)> {
        Ok((self.partial.room(queue, floats * 4, false)?, self.counters.room(queue, counters * 4, true)?))
    }
}

/// The keys or the values of one layer of one sequence (capacity, G, C), in the number type of the cache.
pub struct Cache {
    memory: Memory,
    dtype: CacheDtype,
}

/// A moment in the device's work; none where it could not tell.
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
    /// Device number `number`, in float32.
    ///
    /// # Errors
    /// [`llama_trace_core::error::Error::Usage`] where there is no driver, no such device, or one that is too old.
    pub fn open(number: usize) -> Result<Self> {
        Ok(Self::over(Box::new(nvidia::Nvidia::open(number)?)))
    }

    /// Whether there is a driver that knows of a device, or cannot say: where not, nobody expects one to be used.
    pub fn is_there() -> bool {
        finding::is_there()
    }

    /// What the tests of every device run on: GPU number LLAMA_TRACE_GPU, and where that is not set the processor as a device
    /// with `bytes` bytes of memory. It multiplies as one that was proved does.
    #[cfg(any(test, feature = "testing"))]
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

    /// The processor as a device, with the kernels as the PTX that the program carries has them.
    #[cfg(any(test, feature = "testing"))]
    pub fn compact(bytes: usize) -> Option<Self> {
        Some(Self::over(Box::new(emulated::Emulated::new(bytes, usize::MAX)?.carried())))
    }

    /// The processor as a device that runs PTX.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn of_ptx(bytes: usize) -> Self {
        Self::over(Box::new(emulated::Emulated::of_ptx(bytes)))
    }

    /// The processor as a device with `bytes` bytes of memory; none, said aloud, where nothing compiles the kernels.
    #[cfg(any(test, feature = "testing"))]
    pub fn emulated(bytes: usize) -> Option<Self> {
        Self::lost_after(bytes, usize::MAX)
    }

    /// The same, but the device is lost after so many launches.
    #[cfg(any(test, feature = "testing"))]
    pub fn lost_after(bytes: usize, launches: usize) -> Option<Self> {
        Some(Self::over(Box::new(emulated::Emulated::new(bytes, launches)?)))
    }

    /// The same, but no kernel runs whose name begins so.
    #[cfg(any(test, feature = "testing"))]
    pub fn refusing(bytes: usize, kernels: &'static str) -> Option<Self> {
        Some(Self::over(Box::new(emulated::Emulated::new(bytes, usize::MAX)?.refusing(kernels))))
    }

    /// The same, and what the device is asked for.
    #[cfg(any(test, feature = "testing"))]
    pub fn logged(bytes: usize) -> Option<(Self, emulated::Log)> {
        let device = emulated::Emulated::new(bytes, usize::MAX)?;
        let log = device.log();
        Some((Self::over(Box::new(device)), log))
    }

    /// The processor as a device, and the kernels that it is asked for.
    #[cfg(any(test, feature = "testing"))]
    pub fn listed(bytes: usize) -> Option<(Self, KernelList)> {
        let device = emulated::Emulated::new(bytes, usize::MAX)?;
        let list = device.list();
        Some((Self::over(Box::new(device)), list))
    }

    /// How often launches were repeated that the device had taken down.
    #[cfg(any(test, feature = "testing"))]
    pub fn repeated(&self) -> usize {
        self.queue.repeated()
    }

    fn over(driver: Box<dyn Driver>) -> Self {
        let (major, minor) = driver.about().architecture;
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
            // One a process.
            architecture: Box::leak(format!("sm_{major}{minor}").into_boxed_str()),
            warpgroups: Arc::default(),
            proved: Arc::default(),
            streams: Arc::default(),
        }
    }

    /// The same in another arithmetic.
    #[must_use]
    pub fn with_precision(self, precision: Precision) -> Self {
        let host = self.host.with_precision(precision);
        Self { precision, host, ..self }.with_cache_dtype(precision.cache_dtype())
    }

    /// The same with keys and values cached in another number type than the precision's own.
    #[must_use]
    pub fn with_cache_dtype(self, cache_dtype: CacheDtype) -> Self {
        let kernels = Arc::new(Kernels::new(&self.queue, self.precision, cache_dtype));
        Self { kernels, cache_dtype, proved: Arc::default(), ..self }
    }

    /// The same, stopped by `stop` instead of a request of its own.
    #[must_use]
    pub fn with_stop(self, stop: Stop) -> Self {
        Self { host: self.host.with_stop(stop.clone()), stop, ..self }
    }

    /// The same arithmetic on a device that does nothing, and the list of the kernels that it is asked for. Those that the proof
    /// of `uses` runs are in it.
    pub fn listing(&self, uses: &Uses) -> (Self, KernelList) {
        let device = listing::Listing::of(self.queue.device());
        let list = device.list();
        let cuda = Self::over(Box::new(device)).with_precision(self.precision);
        let cuda = cuda.with_cache_dtype(self.cache_dtype);
        cuda.warpgroups.store(cuda.queue.device().has_warpgroups(), Relaxed);
        cuda.streams.store(true, Relaxed);
        proof::run(&cuda, uses);
        (cuda, list)
    }

    /// Compiles the kernels of a list, or finds them compiled, side by side on `threads` threads; `done` is told of each. Those
    /// that cannot be had are an error when they are wanted.
    pub fn compile(&self, list: &KernelList, threads: usize, done: &(dyn Fn() + Sync)) {
        self.queue.device().make_ready(&list.kernels(), threads, &|| {
            done();
            self.stop.check().is_ok()
        });
    }

    /// Whether the kernels for `uses` compute on the device what they should: runs one of each kind beside the processor, where
    /// this very program did not see it before in this arithmetic. Gives why kernels are left out that are faster than others which
    /// do the same, where that was seen now.
    ///
    /// # Errors
    /// Where there is no compiler for them, or it fails, or the device does.
    pub fn prove(&self, uses: &Uses) -> Result<Option<Error>> {
        if self.is_proved() {
            return Ok(None);
        }
        let why_not = proof::prove(self, uses)?;
        self.proved.store(true, Relaxed);
        Ok(why_not)
    }

    /// Whether its kernels were proved in this arithmetic.
    pub fn is_proved(&self) -> bool {
        self.proved.load(Relaxed)
    }

    /// Whether a compiler for this very device was found. Without one the driver compiles what the program carries, which is
    /// slower for several tokens at once.
    ///
    /// # Errors
    /// Why there is none, and how to get one.
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

    /// What goes element by element, 4 values a thread.
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
