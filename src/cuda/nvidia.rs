//! NVIDIA's driver, loaded when it is asked for: nothing of CUDA is needed to build this program, nor to run it elsewhere.
//!
//! Everything goes into one stream, so that it is done in the order in which it was asked for. Copies go through pinned
//! memory in two halves: while the device reads one, the other is filled. Large ones, as of weights, go through several such
//! pairs side by side, each filled by a thread of its own: one thread reads a mapped file at a fraction of the bus's rate.
#![allow(unsafe_code)]

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use cudarc::driver::sys::{self, CUevent, CUfunction, CUgraphExec, CUmodule, CUresult, CUstream};

use super::blas::Blas;
use super::driver::{About, Address, Driver, Event, Function, Graph, Launch, LibraryProduct, Room, failed};
use super::finding::{Found, check, find};
use super::nvrtc::{Nvrtc, Version, WARPGROUPS};
use super::ptx;
use super::sources::Module;
use super::store::Store;
use super::without::{self, Without};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::memory::no_memory;

/// The first that may start a kernel before the one before it has ended.
const OVERLAPS: (u32, u32) = (9, 0);

/// Bytes of each half of the pinned memory.
const HALF: usize = 4 << 20;

/// Pairs of halves that a large copy goes through.
const PAIRS: usize = 8;

/// Bytes of shared memory that a launch may have without asking: of 48 KiB, what no kernel has of its own
/// (`stream_gated_q8_16` has 21 KiB).
const SHARED: u32 = 24 << 10;

/// One device of NVIDIA's.
pub(super) struct Nvidia {
    about: About,
    driver: Version,
    without: Without,
    /// Whether the driver launched a kernel only when that might not begin early.
    refuses_early: AtomicBool,
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: CUstream,
    /// For copies beside the work in the other one.
    beside: CUstream,
    pinned: Mutex<Pinned>,
    /// More of them, for large copies, once there was one.
    pairs: Mutex<Vec<Pinned>>,
    loaded: Mutex<Loaded>,
    nvrtc: OnceLock<Result<Nvrtc>>,
    /// Why a kernel is the one that the program carries, of the first that is.
    carried: OnceLock<Error>,
    store: Store,
}

/// Two halves of memory that the device can read and write by itself.
struct Pinned {
    halves: [*mut u8; 2],
    /// When the device is done with each.
    done: [CUevent; 2],
    next: usize,
}

/// What was loaded, and stays so to the end of its device.
#[derive(Default)]
struct Loaded {
    /// Modules of one kernel each, which was compiled alone.
    alone: Vec<usize>,
    /// Modules that the program carries.
    carried: HashMap<Module, usize>,
    functions: HashMap<(Module, String), u64>,
    /// How much shared memory functions were told that they may have.
    shared: HashMap<u64, u32>,
}

// SAFETY: the handles and the pinned memory belong to the driver and not to a thread. Its functions may be called by
// any thread whose current context is the handles' (`enter`), and what changes in here is behind locks.
unsafe impl Send for Nvidia {}
// SAFETY: as above.
unsafe impl Sync for Nvidia {}

impl Pinned {
    /// None yet.
    const NONE: Self = Self { halves: [ptr::null_mut(); 2], done: [ptr::null_mut(); 2], next: 0 };

    /// Pins memory. What was pinned before something fails is given back with the device.
    ///
    /// # Safety
    /// The device's context is current.
    unsafe fn pin(&mut self) -> Result<()> {
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        for (half, done) in self.halves.iter_mut().zip(&mut self.done) {
            let mut memory: *mut c_void = ptr::null_mut();
            // SAFETY: the places are for handles of their kind, and the context is current.
            unsafe {
                check(sys::cuMemAllocHost_v2(&raw mut memory, HALF), "pin memory for copies")?;
                *half = memory.cast();
                check(sys::cuEventCreate(done, flags), "begin its work")?;
            }
        }
        Ok(())
    }

    /// Copies `part`, no more than a half, to the device by way of the half that is next; `part` may be changed afterwards.
    ///
    /// # Safety
    /// The device's context is current, and there is as much memory at `to`.
    unsafe fn write(&mut self, part: &[u8], to: Address, stream: CUstream) -> Result<()> {
        let half = self.next;
        self.next = 1 - half;
        // SAFETY: the half has room for the part, and the device is done with what was in it; the rest is the caller's word.
        unsafe {
            check(sys::cuEventSynchronize(self.done[half]), "copy")?;
            ptr::copy_nonoverlapping(part.as_ptr(), self.halves[half], part.len());
            let from = self.halves[half].cast_const().cast();
            check(sys::cuMemcpyHtoDAsync_v2(to, from, part.len(), stream), "take what is copied to it")?;
            check(sys::cuEventRecord(self.done[half], stream), "copy")
        }
    }
}

// SAFETY: the memory belongs to the driver and not to a thread, and who changes it has it alone.
unsafe impl Send for Pinned {}

impl Nvidia {
    /// Device number `number`.
    ///
    /// # Errors
    /// [`Error::Usage`] where there is no driver, no such device, or one of them is too old.
    pub(super) fn open(number: usize) -> Result<Self> {
        Self::begin(find(number)?)
    }

    /// Makes the context, the stream and the pinned memory.
    fn begin(Found { about, driver, device }: Found) -> Result<Self> {
        let without = Without::of_environment()?;
        // What was made before something fails is given back when this is dropped.
        let mut new = Self {
            about,
            driver,
            without,
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
        // SAFETY: the device is there; all places are for handles of their kind, and the context is current when what
        // belongs to it is made.
        unsafe {
            check(sys::cuDevicePrimaryCtxRetain(&raw mut new.context, device), "be opened")?;
            check(sys::cuCtxSetCurrent(new.context), "be opened")?;
            let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            check(sys::cuStreamCreate(&raw mut new.stream, flags), "begin its work")?;
            check(sys::cuStreamCreate(&raw mut new.beside, flags), "begin its work")?;
            pinned.pin()?;
        }
        Ok(new)
    }

    /// `what`, with all that it depends on but the sources: the program, the device, the driver, the compiler, and what is left
    /// out. None where the program cannot be told from others.
    fn identity(&self, what: &str) -> Option<String> {
        let program = std::env::current_exe().ok()?.metadata().ok()?;
        let built = program.modified().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
        let compiler = self.nvrtc().map(Nvrtc::version).ok();
        let Self { about, driver, without, .. } = self;
        Some(format!("{what} {about:?} {driver:?} {compiler:?} {without:?} {} {built:?}", program.len()))
    }

    /// Makes the context that of this thread.
    fn enter(&self) -> Result<()> {
        // SAFETY: the context is there as long as this value.
        check(unsafe { sys::cuCtxSetCurrent(self.context) }, "go on")
    }

    fn loaded(&self) -> MutexGuard<'_, Loaded> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pinned(&self) -> MutexGuard<'_, Pinned> {
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies many bytes to the device, through several pairs of halves side by side.
    fn write_side_by_side(&self, from: &[u8], to: Address) -> Result<()> {
        let mut pairs = self.pairs.lock().unwrap_or_else(PoisonError::into_inner);
        while pairs.len() < PAIRS {
            pairs.push(Pinned::NONE);
            let last = pairs.len() - 1;
            // SAFETY: the caller entered the context.
            unsafe { pairs[last].pin()? };
        }
        let next = AtomicUsize::new(0);
        let fill = |pair: &mut Pinned| {
            self.enter()?;
            loop {
                let first = next.fetch_add(HALF, Ordering::Relaxed);
                let Some(rest) = from.get(first..).filter(|rest| !rest.is_empty()) else { return Ok(()) };
                // SAFETY: the context is current, and the caller has as much memory at `to`.
                unsafe { pair.write(&rest[..HALF.min(rest.len())], to + first as u64, self.stream)? };
            }
        };
        std::thread::scope(|scope| {
            let (own, others) = pairs.split_first_mut().unwrap_or_else(|| unreachable!("there are some"));
            let fill = &fill;
            let begin = |pair| std::thread::Builder::new().spawn_scoped(scope, move || fill(pair)).ok();
            // Where the system gives no thread, there are fewer.
            let threads: Vec<_> = others.iter_mut().filter_map(begin).collect();
            let done = fill(own);
            let joined = threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            joined.fold(done, Result::and)
        })
    }

    /// The compiler.
    fn nvrtc(&self) -> Result<&Nvrtc> {
        self.nvrtc.get_or_init(|| Nvrtc::find(self.driver)).as_ref().map_err(Clone::clone)
    }

    /// A kernel of a module, compiled by NVRTC: its name in the code with a NUL, and the code.
    fn compiled(&self, module: &Module, name: &str) -> Result<Vec<u8>> {
        let nvrtc = self.nvrtc()?;
        let (source, architecture) = (module.source(), self.about.architecture);
        let compile = || {
            let (name, code) = nvrtc.kernel(source, architecture, name)?;
            Ok([name.as_bytes_with_nul(), &code].concat())
        };
        self.store.code((source, name), architecture, nvrtc.version(), compile)
    }

    /// A kernel of a module, compiled alone and loaded.
    fn alone(&self, module: &Module, name: &str) -> Result<(CUmodule, u64)> {
        let compiled = self.compiled(module, name)?;
        let named = CStr::from_bytes_until_nul(&compiled).map_err(|error| failed("load a kernel", error))?;
        // The driver wants code where words begin.
        let code = compiled[named.to_bytes_with_nul().len()..].to_vec();
        let handle = Self::load(module, &code)?;
        Self::function_of(handle, named).map(|function| (handle, function))
    }

    /// A module that the program carries, compiled by the driver and loaded.
    fn carried(&self, module: &Module, why: Error) -> Result<CUmodule> {
        let Some(code) = ptx::code(module, self.about.architecture) else { return Err(why) };
        let handle = Self::load(module, &code)?;
        self.carried.get_or_init(|| why);
        Ok(handle)
    }

    /// The kernel of this name in a module.
    fn function_of(module: CUmodule, name: &CStr) -> Result<u64> {
        let mut function: CUfunction = ptr::null_mut();
        // SAFETY: the module is loaded, and the name a string.
        let code = unsafe { sys::cuModuleGetFunction(&raw mut function, module, name.as_ptr()) };
        check(code, &format!("find the kernel `{}`", name.to_string_lossy()))?;
        Ok(function as u64)
    }

    /// A kernel, compiled and loaded where it is not yet. Nobody else waits while it is compiled.
    fn make(&self, module: &Module, name: &str) -> Result<u64> {
        let key = (module.clone(), name.to_owned());
        if let Some(&function) = self.loaded().functions.get(&key) {
            return Ok(function);
        }
        self.enter()?;
        // Without a compiler that knows the device, or where the driver does not take what that made, by the driver's own.
        let (function, handle) = match self.alone(module, name) {
            Ok((handle, function)) => (function, Some(handle)),
            Err(error) => {
                let known = self.loaded().carried.get(module).copied();
                let handle = match known {
                    Some(handle) => handle as CUmodule,
                    None => self.carried(module, error)?,
                };
                let name = CString::new(name).map_err(|error| failed("find a kernel", error))?;
                self.loaded().carried.insert(module.clone(), handle as usize);
                (Self::function_of(handle, &name)?, None)
            }
        };
        let mut loaded = self.loaded();
        loaded.alone.extend(handle.map(|handle| handle as usize));
        loaded.functions.insert(key, function);
        Ok(function)
    }

    /// Loads a whole cubin, the compiler's or a file's with its checksum, or PTX that ends with a NUL.
    fn load(module: &Module, code: &[u8]) -> Result<CUmodule> {
        let mut handle: CUmodule = ptr::null_mut();
        // SAFETY: the code is one of these, and the context is current.
        let result = unsafe { sys::cuModuleLoadData(&raw mut handle, code.as_ptr().cast()) };
        check(result, &format!("load the kernel `{}`", module.file)).map(|()| handle)
    }

    /// Has a kernel have as much shared memory as it is launched with.
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
        // SAFETY: the function was loaded, and stays so.
        let code = unsafe { sys::cuFuncSetAttribute(function.0 as CUfunction, attribute, shared as c_int) };
        check(code, "give a kernel its shared memory")?;
        loaded.shared.insert(function.0, shared);
        Ok(())
    }

    /// Launches a kernel; `early` where it may begin before the one before it has ended.
    fn launch_one(&self, launch: &Launch, early: bool) -> Result<()> {
        self.ask_for_shared(launch)?;
        let Launch { function, grid, block, shared, arguments, .. } = launch;
        let mut pointers = [ptr::null_mut::<c_void>(); 16];
        for (pointer, argument) in pointers.iter_mut().zip(arguments.each()) {
            *pointer = ptr::from_ref(argument).cast_mut().cast();
        }
        // SAFETY: an attribute of zeros is a valid one; this one then says which it is.
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
            // A kernel waits for the one before it by itself, before it reads what that wrote, except for its weights.
            numAttrs: u32::from(early && !launch.late),
        };
        // SAFETY: the function was loaded from the sources in `kernels/`, and whoever launches it gives the arguments
        // that stand there, each at the beginning of a word that holds all of it; the driver reads them before it
        // returns. Addresses in them are of memory that is freed in the order of the stream.
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

    /// Whether a kernel may begin before the one before it has ended.
    fn overlaps(&self) -> bool {
        let refused = self.without.early || self.refuses_early.load(Ordering::Relaxed);
        self.about.architecture >= OVERLAPS && !refused
    }

    /// The graph of these launches.
    fn taken_down(&self, launches: &[Launch], early: bool) -> Result<Graph> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is ours, and whoever calls this keeps others from it.
        check(unsafe { sys::cuStreamBeginCapture_v2(self.stream, mode) }, "take a pass down")?;
        let launched = launches.iter().try_for_each(|launch| self.launch_one(launch, early));
        let mut graph: sys::CUgraph = ptr::null_mut();
        // SAFETY: the capture was begun; it is ended even where a launch failed.
        let ended = unsafe { sys::cuStreamEndCapture(self.stream, &raw mut graph) };
        let whole = launched.and(check(ended, "take a pass down"));
        let mut ready: CUgraphExec = ptr::null_mut();
        // SAFETY: the graph is whole where nothing failed; what it is made into does not need it any more. What was made is
        // given back once.
        unsafe {
            let made = whole.and_then(|()| {
                check(sys::cuGraphInstantiateWithFlags(&raw mut ready, graph, 0), "take a pass down")?;
                check(sys::cuGraphUpload(ready, self.stream), "take a pass down")
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
        // SAFETY: nobody uses these any more, and the work in the stream is over. What was never made is null.
        unsafe {
            for stream in [self.stream, self.beside].into_iter().filter(|stream| !stream.is_null()) {
                sys::cuStreamSynchronize(stream);
                sys::cuStreamDestroy_v2(stream);
            }
            for module in loaded.alone.iter().chain(loaded.carried.values()) {
                sys::cuModuleUnload(*module as CUmodule);
            }
            for pinned in pairs.iter().chain([&*pinned]) {
                for memory in pinned.halves.into_iter().filter(|memory| !memory.is_null()) {
                    sys::cuMemFreeHost(memory.cast());
                }
                for event in pinned.done.into_iter().filter(|event| !event.is_null()) {
                    sys::cuEventDestroy_v2(event);
                }
            }
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
        // SAFETY: both are places for a size.
        check(unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) }, "say how much memory is free")?;
        Ok(Room { free, total })
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        self.enter()?;
        let mut at = 0;
        // SAFETY: a place for an address.
        match unsafe { sys::cuMemAlloc_v2(&raw mut at, bytes) } {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(no_memory(bytes)),
            code => check(code, "give memory").map(|()| at),
        }
    }

    fn free(&self, at: Address) {
        if self.enter().is_ok() {
            // SAFETY: the memory was given by `allocate`, and no work that was asked for still uses it.
            unsafe {
                sys::cuStreamSynchronize(self.stream);
                sys::cuStreamSynchronize(self.beside);
                sys::cuMemFree_v2(at);
            }
        }
    }

    fn clear(&self, at: Address, bytes: usize) -> Result<()> {
        self.enter()?;
        // SAFETY: the caller has as much memory there.
        check(unsafe { sys::cuMemsetD8Async(at, 0, bytes, self.stream) }, "clear memory")
    }

    fn write(&self, from: &[u8], to: Address) -> Result<()> {
        self.enter()?;
        if from.len() > 2 * HALF {
            return self.write_side_by_side(from, to);
        }
        let mut pinned = self.pinned();
        for (i, part) in from.chunks(HALF).enumerate() {
            // SAFETY: the context is current, and the caller has as much memory at `to`.
            unsafe { pinned.write(part, to + (i * HALF) as u64, self.stream)? };
        }
        Ok(())
    }

    fn read(&self, from: Address, to: &mut [u8]) -> Result<()> {
        self.enter()?;
        let mut pinned = self.pinned();
        let Pinned { halves, done, next, .. } = &mut *pinned;
        let ask = |half: usize, part: usize, bytes: usize| {
            // SAFETY: the half has room for the part, and nothing else goes into it before it was read; the caller has
            // as much memory at `from`.
            unsafe {
                check(sys::cuEventSynchronize(done[half]), "copy")?;
                let at = from + (part * HALF) as u64;
                check(
                    sys::cuMemcpyDtoHAsync_v2(halves[half].cast(), at, bytes, self.stream),
                    "give what it holds",
                )?;
                check(sys::cuEventRecord(done[half], self.stream), "copy")
            }
        };
        let parts = to.len().div_ceil(HALF);
        let length = |part: usize| HALF.min(to.len() - part * HALF);
        let lengths: Vec<_> = (0..parts).map(length).collect();
        if parts > 0 {
            ask(*next, 0, lengths[0])?;
        }
        for (part, to) in to.chunks_mut(HALF).enumerate() {
            let half = *next;
            *next = 1 - half;
            if part + 1 < parts {
                ask(*next, part + 1, lengths[part + 1])?;
            }
            // SAFETY: the device has written the part.
            unsafe {
                check(sys::cuEventSynchronize(done[half]), "finish its work")?;
                ptr::copy_nonoverlapping(halves[half].cast_const(), to.as_mut_ptr(), to.len());
            }
        }
        Ok(())
    }

    fn pin(&self, bytes: usize) -> Result<Address> {
        self.enter()?;
        let mut memory: *mut c_void = ptr::null_mut();
        // SAFETY: a place for a pointer. Every device that the kernels are for has the processor's addresses too.
        check(unsafe { sys::cuMemAllocHost_v2(&raw mut memory, bytes) }, "pin memory for copies")?;
        Ok(memory as Address)
    }

    fn unpin(&self, at: Address) {
        if self.enter().is_ok() {
            // SAFETY: the memory was given by `pin`, and nothing that is still to be done writes there.
            unsafe {
                sys::cuStreamSynchronize(self.stream);
                sys::cuStreamSynchronize(self.beside);
                sys::cuMemFreeHost(at as *mut c_void);
            }
        }
    }

    fn pinned(&self, at: Address, bytes: usize) -> &[u8] {
        // SAFETY: the caller has as much memory there, which no kernel writes to as long as this is looked at.
        unsafe { std::slice::from_raw_parts(at as *const u8, bytes) }
    }

    fn bring(&self, from: Address, to: Address, bytes: usize) -> Result<Event> {
        let Event(so_far) = self.mark()?;
        let (mut done, flags): (CUevent, _) = (ptr::null_mut(), sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
        // SAFETY: the caller has as much memory at both places. The first event was recorded, and is only given back when it
        // was reached; the place is for a handle, which is there when it is recorded.
        unsafe {
            let copied = check(sys::cuStreamWaitEvent(self.beside, so_far as CUevent, 0), "copy");
            sys::cuEventDestroy_v2(so_far as CUevent);
            copied?;
            check(
                sys::cuMemcpyDtoHAsync_v2(to as *mut c_void, from, bytes, self.beside),
                "give what it holds",
            )?;
            check(sys::cuEventCreate(&raw mut done, flags as u32), "copy")?;
            check(sys::cuEventRecord(done, self.beside), "copy")?;
        }
        Ok(Event(done as u64))
    }

    fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()> {
        self.enter()?;
        // SAFETY: the caller has as much memory at both places.
        check(unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.stream) }, "copy")
    }

    fn function(&self, module: &Module, name: &str) -> Result<Function> {
        self.make(module, name).map(Function)
    }

    fn make_ready(&self, kernels: &[(Module, String)], threads: usize, goes_on: &(dyn Fn() -> bool + Sync)) {
        // Of modules that the driver compiles one kernel is enough.
        let mut modules = HashSet::new();
        let compiles = self.nvrtc().is_ok();
        let wanted = |(module, _): &&(Module, String)| compiles || modules.insert(module.clone());
        let mut jobs: Vec<_> = kernels.iter().filter(wanted).collect();
        // Of long sources, which take longest, none is left for the end.
        jobs.sort_by_key(|(module, _)| Reverse(module.source().text.len()));
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some((module, name)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                // Whoever launches it is told of an error.
                let _ = self.make(module, name);
                if !goes_on() {
                    break;
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads.min(jobs.len()) {
                // Where the system gives no thread, there are fewer.
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
                // One that does not take these may take others.
                let other = if overlaps { self.launch_one(launch, false) } else { Err(error) };
                self.refuses_early.fetch_or(overlaps && other.is_ok(), Ordering::Relaxed);
                other
            })
        })
    }

    fn take_down(&self, launches: &[Launch]) -> Result<Graph> {
        self.enter()?;
        if self.without.graphs {
            return Err(failed("take a pass down", without::VARIABLE));
        }
        let overlaps = self.overlaps();
        // Drivers before CUDA 12.3 take no kernels down that may begin early. A graph of others is still better than none.
        self.taken_down(launches, overlaps).or_else(|error| match overlaps {
            true => self.taken_down(launches, false),
            false => Err(error),
        })
    }

    fn repeat(&self, graph: Graph) -> Result<()> {
        self.enter()?;
        // SAFETY: the graph was made by `take_down` and not forgotten; its launches are those that were asked for now.
        check(unsafe { sys::cuGraphLaunch(graph.0 as CUgraphExec, self.stream) }, "repeat a pass")
    }

    fn forget(&self, graph: Graph) {
        if self.enter().is_ok() {
            // SAFETY: it was made by `take_down`, and the driver waits until it is not used.
            let _ = unsafe { sys::cuGraphExecDestroy(graph.0 as CUgraphExec) };
        }
    }

    fn compiles(&self) -> Result<()> {
        self.nvrtc()?;
        self.carried.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    fn has_warpgroups(&self) -> bool {
        self.about.architecture == WARPGROUPS && !self.without.wgmma && self.nvrtc().is_ok()
    }

    fn splits_attention(&self) -> bool {
        !self.without.split
    }

    fn streams(&self) -> bool {
        !self.without.streams && self.nvrtc().is_ok()
    }

    fn library_product(&self, side: usize) -> Option<LibraryProduct<'_>> {
        self.enter().ok()?;
        let blas = Blas::find(side, self.driver.0)?;
        Some(Box::new(move |places| {
            self.enter()?;
            // SAFETY: the context is current and the stream its; the caller has as much memory there.
            unsafe { blas.multiply(places, self.stream.cast()) }
        }))
    }

    fn mark(&self) -> Result<Event> {
        self.enter()?;
        let mut event: CUevent = ptr::null_mut();
        // SAFETY: a place for a handle; the event is there when it is recorded.
        unsafe {
            check(sys::cuEventCreate(&raw mut event, 0), "tell the time")?;
            check(sys::cuEventRecord(event, self.stream), "tell the time")?;
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
            // SAFETY: both were made by `mark`, and not released.
            let _ =
                unsafe { sys::cuEventElapsedTime(&raw mut milliseconds, from.0 as CUevent, to.0 as CUevent) };
        }
        Duration::from_secs_f32(milliseconds.max(0.0) / 1e3)
    }

    fn release(&self, event: Event) {
        if self.enter().is_ok() {
            // SAFETY: it was made by `mark`, and nobody looks at it again.
            let _ = unsafe { sys::cuEventDestroy_v2(event.0 as CUevent) };
        }
    }
}
