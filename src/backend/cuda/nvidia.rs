//! NVIDIA's driver, loaded when it is asked for: nothing of CUDA is needed to build this program, nor to run it elsewhere.
//!
//! Everything goes into one stream, so that it is done in the order in which it was asked for. Copies go through pinned
//! memory in two halves: while the device reads one, the other is filled.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{CString, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use cudarc::driver::sys::{self, CUevent, CUfunction, CUgraphExec, CUmodule, CUresult, CUstream};
use rayon::prelude::*;

use super::blas::Blas;
use super::driver::{About, Address, Driver, Event, Function, Graph, Launch, LibraryProduct, Room, failed};
use super::finding::{Found, check, find};
use super::nvrtc::{Nvrtc, Version, WARPGROUPS};
use super::ptx;
use super::sources::Module;
use super::store::Store;
use super::without::{self, Without};
use crate::error::{Error, Result};
use crate::memory::no_memory;

/// The first that may start a kernel before the one before it has ended.
const OVERLAPS: (u32, u32) = (9, 0);

/// Bytes of each half of the pinned memory.
const HALF: usize = 4 << 20;

/// Bytes of shared memory that a launch may have without asking: of 48 KiB, what no kernel has of its own.
const SHARED: u32 = 40 << 10;

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
    pinned: Mutex<Pinned>,
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
    modules: HashMap<Module, usize>,
    functions: HashMap<(Module, String), u64>,
    /// How much shared memory functions were told that they may have.
    shared: HashMap<u64, u32>,
}

// SAFETY: the handles and the pinned memory belong to the driver and not to a thread. Its functions may be called by
// any thread whose current context is the handles' (`enter`), and what changes in here is behind locks.
unsafe impl Send for Nvidia {}
// SAFETY: as above.
unsafe impl Sync for Nvidia {}

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
        let (halves, done) = ([ptr::null_mut(); 2], [ptr::null_mut(); 2]);
        // What was made before something fails is given back when this is dropped.
        let mut new = Self {
            about,
            driver,
            without,
            refuses_early: AtomicBool::new(false),
            device,
            context: ptr::null_mut(),
            stream: ptr::null_mut(),
            pinned: Mutex::new(Pinned { halves, done, next: 0 }),
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
            for half in 0..2 {
                let mut memory: *mut c_void = ptr::null_mut();
                check(sys::cuMemAllocHost_v2(&raw mut memory, HALF), "pin memory for copies")?;
                pinned.halves[half] = memory.cast();
                let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
                check(sys::cuEventCreate(&raw mut pinned.done[half], flags), "begin its work")?;
            }
        }
        Ok(new)
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

    /// The compiler.
    fn nvrtc(&self) -> Result<&Nvrtc> {
        self.nvrtc.get_or_init(|| Nvrtc::find(self.driver)).as_ref().map_err(Clone::clone)
    }

    /// The module, compiled by NVRTC.
    fn compiled(&self, module: &Module) -> Result<Vec<u8>> {
        let nvrtc = self.nvrtc()?;
        let (source, architecture) = (module.source(), self.about.architecture);
        let compile = || nvrtc.compile(source, architecture, &[]).map(|(code, _)| code);
        self.store.code(source, architecture, nvrtc.version(), compile)
    }

    /// Loads a whole cubin, the compiler's or a file's with its checksum, or PTX that ends with a NUL.
    fn load(module: &Module, code: &[u8]) -> Result<CUmodule> {
        let mut handle: CUmodule = ptr::null_mut();
        // SAFETY: the code is one of these, and the context is current.
        let result = unsafe { sys::cuModuleLoadData(&raw mut handle, code.as_ptr().cast()) };
        check(result, &format!("load the kernel `{}`", module.file)).map(|()| handle)
    }

    /// The module, compiled and loaded.
    fn module(&self, loaded: &mut Loaded, module: &Module) -> Result<CUmodule> {
        if let Some(&handle) = loaded.modules.get(module) {
            return Ok(handle as CUmodule);
        }
        // Without a compiler that knows the device, or where the driver does not take what that made, by the driver's own.
        let compiled = self.compiled(module).and_then(|code| Self::load(module, &code));
        let handle = compiled.or_else(|error| {
            let Some(code) = ptx::code(module, self.about.architecture) else { return Err(error) };
            let handle = Self::load(module, &code)?;
            self.carried.get_or_init(|| error);
            Ok(handle)
        })?;
        loaded.modules.insert(module.clone(), handle as usize);
        Ok(handle)
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
        let Launch { function, grid, block, shared, arguments } = launch;
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
            // Every kernel waits for the one before it by itself, before it reads what that wrote.
            numAttrs: u32::from(early),
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
        let modules = &self.loaded.get_mut().unwrap_or_else(PoisonError::into_inner).modules;
        // SAFETY: nobody uses these any more, and the work in the stream is over. What was never made is null.
        unsafe {
            if !self.stream.is_null() {
                sys::cuStreamSynchronize(self.stream);
                sys::cuStreamDestroy_v2(self.stream);
            }
            for module in modules.values() {
                sys::cuModuleUnload(*module as CUmodule);
            }
            for memory in pinned.halves.into_iter().filter(|memory| !memory.is_null()) {
                sys::cuMemFreeHost(memory.cast());
            }
            for event in pinned.done.into_iter().filter(|event| !event.is_null()) {
                sys::cuEventDestroy_v2(event);
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
        let mut pinned = self.pinned();
        for (i, part) in from.chunks(HALF).enumerate() {
            let half = pinned.next;
            pinned.next = 1 - half;
            // SAFETY: the half has room for the part, and the device is done with what was in it; the caller has as much
            // memory at `to`.
            unsafe {
                check(sys::cuEventSynchronize(pinned.done[half]), "copy")?;
                ptr::copy_nonoverlapping(part.as_ptr(), pinned.halves[half], part.len());
                let at = to + (i * HALF) as u64;
                let from = pinned.halves[half].cast_const().cast();
                check(
                    sys::cuMemcpyHtoDAsync_v2(at, from, part.len(), self.stream),
                    "take what is copied to it",
                )?;
                check(sys::cuEventRecord(pinned.done[half], self.stream), "copy")?;
            }
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
            // SAFETY: the memory was given by `pin`, and no kernel that is still to run writes there.
            unsafe {
                sys::cuStreamSynchronize(self.stream);
                sys::cuMemFreeHost(at as *mut c_void);
            }
        }
    }

    fn pinned(&self, at: Address, bytes: usize) -> &[u8] {
        // SAFETY: the caller has as much memory there, which no kernel writes to as long as this is looked at.
        unsafe { std::slice::from_raw_parts(at as *const u8, bytes) }
    }

    fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()> {
        self.enter()?;
        // SAFETY: the caller has as much memory at both places.
        check(unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.stream) }, "copy")
    }

    fn function(&self, module: &Module, name: &str) -> Result<Function> {
        let mut loaded = self.loaded();
        let key = (module.clone(), name.to_owned());
        if let Some(&function) = loaded.functions.get(&key) {
            return Ok(Function(function));
        }
        self.enter()?;
        let handle = self.module(&mut loaded, module)?;
        let mut function: CUfunction = ptr::null_mut();
        let of_c = CString::new(name).map_err(|error| failed("find a kernel", error))?;
        // SAFETY: the module is loaded, and the name a string.
        let code = unsafe { sys::cuModuleGetFunction(&raw mut function, handle, of_c.as_ptr()) };
        check(code, &format!("find the kernel `{name}`"))?;
        loaded.functions.insert(key, function as u64);
        Ok(Function(function as u64))
    }

    fn make_ready(&self, modules: &[Module]) {
        if self.nvrtc().is_err() || self.enter().is_err() {
            return;
        }
        let compile = |module: &Module| self.compiled(module).ok().map(|code| (module.clone(), code));
        let compiled: Vec<_> = modules.par_iter().filter_map(compile).collect();
        let mut loaded = self.loaded();
        for (module, code) in compiled {
            if let Entry::Vacant(place) = loaded.modules.entry(module)
                && let Ok(handle) = Self::load(place.key(), &code)
            {
                place.insert(handle as usize);
            }
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
