//! NVIDIA's driver, loaded at run time. The program is built without CUDA, and runs without it on other devices.
//!
//! All work goes into one stream, which keeps the order of the calls.
#![allow(unsafe_code)]

mod modules;
mod pinned;

use std::cmp::Reverse;
use std::collections::HashSet;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use cudarc::driver::sys::{self, CUevent, CUfunction, CUgraphExec, CUmodule, CUresult, CUstream};

use super::blas::Blas;
use super::features::{self, DisabledFeatures};
use super::probe_driver::{Found, check, find};
use super::store::Store;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::memory::no_memory;
use llama_trace_kernels::driver::{
    About, Address, Driver, Event, Function, Graph, Launch, LibraryProduct, Room, Untried, failed,
};
use llama_trace_kernels::nvrtc::{Nvrtc, Version, WARPGROUPS};
use llama_trace_kernels::sources::Module;
use modules::Loaded;
use pinned::Pinned;

/// The first architecture with programmatic dependent launch: a kernel may start before the previous kernel has ended.
const OVERLAPS: (u32, u32) = (9, 0);

/// Bytes of dynamic shared memory that a launch may use without an opt-in. CUDA's limit is 48 KiB for dynamic and
/// static shared memory together. The kernels have at most 21 KiB of static shared memory (`stream_gated_q8_16`).
const SHARED: u32 = 24 << 10;

/// One NVIDIA device.
pub(super) struct Nvidia {
    about: About,
    driver: Version,
    disabled: DisabledFeatures,
    untried: Untried,
    /// Whether the driver has refused an early start: a launch with an early start failed, and the same launch without
    /// it succeeded.
    refuses_early: AtomicBool,
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: CUstream,
    /// The stream for copies that overlap the work in the other stream.
    beside: CUstream,
    pinned: Mutex<Pinned>,
    /// Pinned buffers for large copies; empty before the first large copy.
    pairs: Mutex<Vec<Pinned>>,
    loaded: Mutex<Loaded>,
    nvrtc: OnceLock<Result<Nvrtc>>,
    /// The reason why NVRTC's code was not used for the first kernel that was taken from the embedded PTX.
    carried: OnceLock<Error>,
    store: Store,
}

// SAFETY: the handles and the pinned memory belong to the driver and not to a thread. Any thread may call the driver's
// functions if its current context is that of the handles (`enter`). Mutable state in here is behind locks.
unsafe impl Send for Nvidia {}
// SAFETY: as above.
unsafe impl Sync for Nvidia {}

impl Nvidia {
    /// Opens device number `number`.
    ///
    /// # Errors
    /// [`Error::Usage`] if there is no driver or no such device, or if the driver or the device is too old.
    pub(super) fn open(number: usize) -> Result<Self> {
        Self::begin(find(number)?)
    }

    /// Creates the context, the streams and the pinned memory.
    fn begin(Found { about, driver, device }: Found) -> Result<Self> {
        let disabled = DisabledFeatures::of_environment()?;
        let untried = features::untried_of_environment()?;
        // If a step fails, dropping `new` releases everything that was created before.
        let mut new = Self {
            about,
            driver,
            disabled,
            untried,
            refuses_early: AtomicBool::new(false),
            device,
            context: ptr::null_mut(),
            stream: ptr::null_mut(),
            beside: ptr::null_mut(),
            pinned: Mutex::new(Pinned::NONE),
            pairs: Mutex::default(),
            loaded: Mutex::default(),
            nvrtc: OnceLock::new(),
            carried: OnceLock::new(),
            store: Store::of_user(),
        };
        let pinned = new.pinned.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the device exists. Each pointer is to a variable for a handle of its kind. The context is current
        // when its objects are created.
        unsafe {
            check(sys::cuDevicePrimaryCtxRetain(&raw mut new.context, device), "be opened")?;
            check(sys::cuCtxSetCurrent(new.context), "be opened")?;
            let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            check(sys::cuStreamCreate(&raw mut new.stream, flags), "create a stream")?;
            check(sys::cuStreamCreate(&raw mut new.beside, flags), "create a stream")?;
            pinned.pin()?;
        }
        Ok(new)
    }

    /// Returns the key under which an answer is stored. Except for the kernels' sources, it names everything that the
    /// answer depends on: `what`, the executable, the device, the driver, the compiler and the switched-off features.
    /// `None` if the executable cannot be identified.
    fn identity(&self, what: &str) -> Option<String> {
        let program = std::env::current_exe().ok()?.metadata().ok()?;
        let built = program.modified().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
        let compiler = self.nvrtc().map(Nvrtc::version).ok();
        let Self { about, driver, disabled, .. } = self;
        Some(format!("{what} {about:?} {driver:?} {compiler:?} {disabled:?} {} {built:?}", program.len()))
    }

    /// Makes the context current for this thread.
    fn enter(&self) -> Result<()> {
        // SAFETY: the context lives as long as this value.
        check(unsafe { sys::cuCtxSetCurrent(self.context) }, "set its context")
    }

    fn loaded(&self) -> MutexGuard<'_, Loaded> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the compiler.
    fn nvrtc(&self) -> Result<&Nvrtc> {
        self.nvrtc.get_or_init(|| Nvrtc::find(self.driver)).as_ref().map_err(Clone::clone)
    }

    /// Allows a kernel the dynamic shared memory of this launch.
    fn ask_for_shared(&self, launch: &Launch) -> Result<()> {
        let Launch { function, shared, .. } = *launch;
        if shared <= SHARED {
            return Ok(());
        }
        let mut loaded = self.loaded();
        if loaded.shared.get(&function.0).is_some_and(|most| shared <= *most) {
            return Ok(());
        }
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function was loaded, and stays loaded.
        let code = unsafe { sys::cuFuncSetAttribute(function.0 as CUfunction, attribute, shared as c_int) };
        check(code, "give a kernel its shared memory")?;
        loaded.shared.insert(function.0, shared);
        Ok(())
    }

    /// Launches a kernel. With `early`, it may start before the previous kernel has ended, unless the launch is `late`.
    fn launch_one(&self, launch: &Launch, early: bool) -> Result<()> {
        self.ask_for_shared(launch)?;
        let Launch { function, grid, block, shared, arguments, .. } = launch;
        let mut pointers = [ptr::null_mut::<c_void>(); 16];
        for (pointer, argument) in pointers.iter_mut().zip(arguments.each()) {
            *pointer = ptr::from_ref(argument).cast_mut().cast();
        }
        // SAFETY: an attribute of zeros is valid. The next lines set its kind and value.
        let mut overlap: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
        overlap.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        overlap.value.programmaticStreamSerializationAllowed = 1;
        let config = sys::CUlaunchConfig {
            gridDimX: grid[0],
            gridDimY: grid[1],
            gridDimZ: grid[2],
            blockDimX: block[0],
            blockDimY: block[1],
            blockDimZ: block[2],
            sharedMemBytes: *shared,
            hStream: self.stream,
            attrs: &raw mut overlap,
            // Each kernel waits for the results of the previous kernel. Before that wait, it only reads its weights.
            numAttrs: u32::from(early && !launch.late),
        };
        // SAFETY: the function was loaded from the sources of llama-trace-kernels, and the caller passes the arguments
        // that the kernel declares. Each argument begins at a word and lies completely in the words. The driver reads
        // the arguments before it returns. They point to memory that is freed in the order of the stream.
        let code = unsafe {
            sys::cuLaunchKernelEx(
                &raw const config,
                function.0 as CUfunction,
                pointers.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        check(code, "run a kernel")
    }

    /// Whether a kernel may start before the previous kernel has ended.
    fn overlaps(&self) -> bool {
        let refused = self.disabled.early || self.refuses_early.load(Ordering::Relaxed);
        self.about.architecture >= OVERLAPS && !refused
    }

    /// Captures these launches as a graph.
    fn captured(&self, launches: &[Launch], early: bool) -> Result<Graph> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is ours, and the caller keeps other users from it.
        check(unsafe { sys::cuStreamBeginCapture_v2(self.stream, mode) }, "capture a graph")?;
        let launched = launches.iter().try_for_each(|launch| self.launch_one(launch, early));
        let mut graph: sys::CUgraph = ptr::null_mut();
        // SAFETY: the capture was begun. It must be ended even if a launch failed.
        let ended = unsafe { sys::cuStreamEndCapture(self.stream, &raw mut graph) };
        let whole = launched.and(check(ended, "capture a graph"));
        let mut ready: CUgraphExec = ptr::null_mut();
        // SAFETY: the captured graph is complete if nothing failed. The instantiated graph does not need it any more.
        // Each handle is destroyed once.
        unsafe {
            let made = whole.and_then(|()| {
                check(sys::cuGraphInstantiateWithFlags(&raw mut ready, graph, 0), "capture a graph")?;
                check(sys::cuGraphUpload(ready, self.stream), "capture a graph")
            });
            if !graph.is_null() {
                sys::cuGraphDestroy(graph);
            }
            if made.is_err() && !ready.is_null() {
                sys::cuGraphExecDestroy(ready);
            }
            made.map(|()| Graph(ready as u64))
        }
    }
}

impl Drop for Nvidia {
    fn drop(&mut self) {
        if self.context.is_null() || self.enter().is_err() {
            return;
        }
        let pinned = self.pinned.get_mut().unwrap_or_else(PoisonError::into_inner);
        let pairs = self.pairs.get_mut().unwrap_or_else(PoisonError::into_inner);
        let loaded = self.loaded.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: nothing else uses these handles any more, and the work in the streams has ended. Handles that were
        // never created are null.
        unsafe {
            for stream in [self.stream, self.beside].into_iter().filter(|stream| !stream.is_null()) {
                sys::cuStreamSynchronize(stream);
                sys::cuStreamDestroy_v2(stream);
            }
            for module in loaded.alone.iter().chain(loaded.carried.values()) {
                sys::cuModuleUnload(*module as CUmodule);
            }
            pairs.iter_mut().chain([pinned]).for_each(|pinned| pinned.free());
            sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}

impl Driver for Nvidia {
    fn about(&self) -> &About {
        &self.about
    }

    fn room(&self) -> Result<Room> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both pointers are to variables for a size.
        check(unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) }, "report its free memory")?;
        Ok(Room { free, total })
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        self.enter()?;
        let mut at = 0;
        // SAFETY: the pointer is to a variable for an address.
        match unsafe { sys::cuMemAlloc_v2(&raw mut at, bytes) } {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(no_memory(bytes)),
            code => check(code, "allocate memory").map(|()| at),
        }
    }

    fn free(&self, at: Address) {
        if self.enter().is_ok() {
            // SAFETY: the memory was allocated by `allocate`, and no queued work uses it after both synchronisations.
            unsafe {
                sys::cuStreamSynchronize(self.stream);
                sys::cuStreamSynchronize(self.beside);
                sys::cuMemFree_v2(at);
            }
        }
    }

    fn clear(&self, at: Address, bytes: usize) -> Result<()> {
        self.enter()?;
        // SAFETY: the caller has allocated `bytes` bytes there.
        check(unsafe { sys::cuMemsetD8Async(at, 0, bytes, self.stream) }, "clear memory")
    }

    fn write(&self, from: &[u8], to: Address) -> Result<()> {
        self.write_pinned(from, to)
    }

    fn read(&self, from: Address, to: &mut [u8]) -> Result<()> {
        self.read_pinned(from, to)
    }

    fn pin(&self, bytes: usize) -> Result<Address> {
        self.enter()?;
        let mut memory: *mut c_void = ptr::null_mut();
        // SAFETY: the pointer is to a variable for a pointer. With unified addressing, which every supported device
        // has, the host's address is the device's.
        check(unsafe { sys::cuMemAllocHost_v2(&raw mut memory, bytes) }, "pin memory for copies")?;
        Ok(memory as Address)
    }

    fn unpin(&self, at: Address) {
        if self.enter().is_ok() {
            // SAFETY: the memory was allocated by `pin`, and no queued work writes there after both synchronisations.
            unsafe {
                sys::cuStreamSynchronize(self.stream);
                sys::cuStreamSynchronize(self.beside);
                sys::cuMemFreeHost(at as *mut c_void);
            }
        }
    }

    fn pinned(&self, at: Address, bytes: usize) -> &[u8] {
        // SAFETY: the caller has pinned `bytes` bytes there. No kernel writes to them during the borrow.
        unsafe { std::slice::from_raw_parts(at as *const u8, bytes) }
    }

    fn bring(&self, from: Address, to: Address, bytes: usize) -> Result<Event> {
        let Event(so_far) = self.mark()?;
        let (mut done, flags): (CUevent, _) = (ptr::null_mut(), sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
        // SAFETY: the caller has allocated `bytes` bytes at both places. The first event was recorded, and the driver
        // releases it only once it is reached. `done` is a variable for a handle, and the event exists when it is
        // recorded.
        unsafe {
            let copied = check(sys::cuStreamWaitEvent(self.beside, so_far as CUevent, 0), "copy");
            sys::cuEventDestroy_v2(so_far as CUevent);
            copied?;
            check(
                sys::cuMemcpyDtoHAsync_v2(to as *mut c_void, from, bytes, self.beside),
                "copy from its memory",
            )?;
            check(sys::cuEventCreate(&raw mut done, flags as u32), "copy")?;
            check(sys::cuEventRecord(done, self.beside), "copy")?;
        }
        Ok(Event(done as u64))
    }

    fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()> {
        self.enter()?;
        // SAFETY: the caller has allocated `bytes` bytes at both places.
        check(unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.stream) }, "copy")
    }

    fn function(&self, module: &Module, name: &str) -> Result<Function> {
        self.make(module, name).map(Function)
    }

    fn make_ready(&self, kernels: &[(Module, String)], threads: usize, goes_on: &(dyn Fn() -> bool + Sync)) {
        // Without NVRTC, the driver compiles a whole module at once. Then one kernel of each module is enough.
        let mut modules = HashSet::new();
        let compiles = self.nvrtc().is_ok();
        let wanted = |(module, _): &&(Module, String)| compiles || modules.insert(module.clone());
        let mut jobs: Vec<_> = kernels.iter().filter(wanted).collect();
        // The longest sources take the most time, so they are compiled first.
        jobs.sort_by_key(|(module, _)| Reverse(module.source().text.len()));
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some((module, name)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                // An error is returned when the kernel is launched.
                let _ = self.make(module, name);
                if !goes_on() {
                    break;
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads.min(jobs.len()) {
                // If the system cannot start a thread, fewer threads compile.
                let _ = std::thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        kernels[jobs.len()..].iter().all(|_| goes_on());
    }

    fn remembered(&self, what: &str) -> Option<bool> {
        self.store.remembered(&self.identity(what)?)
    }

    fn remember(&self, what: &str, answer: bool) {
        if let Some(identity) = self.identity(what) {
            self.store.remember(&identity, answer);
        }
    }

    fn launch(&self, launches: &[Launch]) -> Result<()> {
        self.enter()?;
        launches.iter().try_for_each(|launch| {
            let overlaps = self.overlaps();
            self.launch_one(launch, overlaps).or_else(|error| {
                // A driver that refuses early starts may accept a plain launch.
                let other = if overlaps { self.launch_one(launch, false) } else { Err(error) };
                self.refuses_early.fetch_or(overlaps && other.is_ok(), Ordering::Relaxed);
                other
            })
        })
    }

    fn capture(&self, launches: &[Launch]) -> Result<Graph> {
        self.enter()?;
        if self.disabled.graphs {
            return Err(failed("capture a graph", features::DISABLED));
        }
        let overlaps = self.overlaps();
        // Drivers before CUDA 12.3 do not capture kernels that may begin early. A graph without early starts is still
        // better than none.
        self.captured(launches, overlaps).or_else(|error| match overlaps {
            true => self.captured(launches, false),
            false => Err(error),
        })
    }

    fn launch_graph(&self, graph: Graph) -> Result<()> {
        self.enter()?;
        // SAFETY: the graph was made by `capture`, and not destroyed. Its launches equal the launches that the caller
        // wants now.
        check(unsafe { sys::cuGraphLaunch(graph.0 as CUgraphExec, self.stream) }, "launch a graph")
    }

    fn destroy_graph(&self, graph: Graph) {
        if self.enter().is_ok() {
            // SAFETY: the graph was made by `capture`. The driver waits until it is not in use.
            let _ = unsafe { sys::cuGraphExecDestroy(graph.0 as CUgraphExec) };
        }
    }

    fn compiles(&self) -> Result<()> {
        self.nvrtc()?;
        self.carried.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    fn has_warpgroups(&self) -> bool {
        self.about.architecture == WARPGROUPS && !self.disabled.wgmma && self.nvrtc().is_ok()
    }

    fn splits_attention(&self) -> bool {
        !self.disabled.split
    }

    fn streams(&self) -> bool {
        !self.disabled.streams && self.nvrtc().is_ok()
    }

    fn untried(&self) -> Untried {
        // These kernels are not embedded as PTX.
        if self.untried == Untried::default() || self.nvrtc().is_err() {
            return Untried::default();
        }
        self.untried
    }

    fn library_product(&self, side: usize) -> Option<LibraryProduct<'_>> {
        self.enter().ok()?;
        let blas = Blas::find(side, self.driver.0)?;
        Some(Box::new(move |places| {
            self.enter()?;
            // SAFETY: the context is current and the stream belongs to it. The caller has allocated the matrices and
            // the workspace.
            unsafe { blas.multiply(places, self.stream.cast()) }
        }))
    }

    fn mark(&self) -> Result<Event> {
        self.enter()?;
        let mut event: CUevent = ptr::null_mut();
        // SAFETY: the pointer is to a variable for a handle. The event exists when it is recorded.
        unsafe {
            check(sys::cuEventCreate(&raw mut event, 0), "record an event")?;
            check(sys::cuEventRecord(event, self.stream), "record an event")?;
        }
        Ok(Event(event as u64))
    }

    fn reached(&self, event: Event) -> Result<bool> {
        self.enter()?;
        // SAFETY: the event was made by `mark`, and not released.
        match unsafe { sys::cuEventQuery(event.0 as CUevent) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => check(code, "finish its work").map(|()| true),
        }
    }

    fn between(&self, from: Event, to: Event) -> Duration {
        let mut milliseconds = 0.0;
        if self.enter().is_ok() {
            // SAFETY: both events were made by `mark`, and not released.
            let _ =
                unsafe { sys::cuEventElapsedTime(&raw mut milliseconds, from.0 as CUevent, to.0 as CUevent) };
        }
        Duration::from_secs_f32(milliseconds.max(0.0) / 1e3)
    }

    fn release(&self, event: Event) {
        if self.enter().is_ok() {
            // SAFETY: the event was made by `mark`, and is not used again.
            let _ = unsafe { sys::cuEventDestroy_v2(event.0 as CUevent) };
        }
    }
}
