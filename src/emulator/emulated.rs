//! The CPU as a device: the kernels themselves, compiled as C++ by the system's compiler. The whole backend then runs
//! without a GPU. For tests only.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use libloading::Library;
use memmap2::MmapMut;

use super::compile;
use super::machine::{self, Grid, Program};
use llama_trace_core::error::Result;
use llama_trace_core::memory::no_memory;
use llama_trace_kernels::driver::{About, Address, Driver, Event, Function, Graph, Launch, Room, failed};
use llama_trace_kernels::nvrtc::{Nvrtc, WARPGROUPS};
use llama_trace_kernels::ptx;
use llama_trace_kernels::sources::Module;

/// `llt_launch` of `emulate.cpp`.
type Run = unsafe extern "C" fn(
    *const c_char,
    *const c_uint,
    *const c_uint,
    c_uint,
    *mut *mut c_void,
    extern "C" fn(&mut Vec<Address>, Address),
    &mut Vec<Address>,
) -> c_int;

/// Adds an address to the list.
extern "C" fn take(addresses: &mut Vec<Address>, at: Address) {
    addresses.push(at);
}

/// The alignment of each allocation in bytes, as on a GPU.
const ALIGNED: usize = 256;
/// The size that a page is assumed to have, in bytes. Larger pages do not work: the page without access before an
/// allocation then covers the beginning of the allocation too.
const PAGE: usize = 4096;
/// The contents of the guard bytes beside an allocation, which must stay unchanged.
const UNTOUCHED: u8 = 0xa5;
/// The contents of fresh memory: NaN in float32.
const FRESH: u8 = 0xff;

/// The CPU as a device.
pub struct Emulated {
    about: About,
    total: usize,
    /// The number of launches before the device is lost.
    launches: AtomicUsize,
    state: Mutex<State>,
    asked: Log,
    launched: Launched,
    loaded: Loaded,
    runs: Runs,
    /// The beginning of the names of kernels that fail.
    refused: Option<&'static str>,
}

/// The form of the kernels that the device runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runs {
    /// All modules, compiled from their sources as C++.
    Sources,
    /// The modules that are embedded as PTX, but compiled from their sources as C++.
    Carried,
    /// PTX: from NVRTC if LLAMA_TRACE_NVRTC is set, otherwise the embedded PTX.
    Ptx,
}

/// A request to the device. A log lists them in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// A copy of this many bytes to the device.
    Write(usize),
    /// A copy of this many bytes from the device.
    Read(usize),
    /// A copy of this many bytes from the device to pinned memory, while the device goes on.
    Bring(usize),
    /// A read of this many bytes in pinned memory.
    Look(usize),
    /// This many separate launches.
    Launches(usize),
    /// A graph of this many launches.
    Graph(usize),
    /// Another request that has a place in the order.
    Other,
}

/// The requests to a device, in order. The list grows with each request.
pub type Log = Arc<Mutex<Vec<Asked>>>;

/// The names of the kernels that were launched, in order.
pub type Launched = Arc<Mutex<Vec<String>>>;

/// The kernels that were loaded: module and name of each, without repetitions.
pub type Loaded = Arc<Mutex<Vec<(Module, String)>>>;

#[derive(Default)]
struct State {
    /// Each allocation by its address.
    memories: BTreeMap<Address, Guarded>,
    pinned: BTreeMap<Address, Guarded>,
    used: usize,
    functions: Vec<(Code, CString)>,
    graphs: Vec<Vec<Launch>>,
    events: Vec<Instant>,
    remembered: HashMap<String, bool>,
}

/// An allocation between pages without access. Only the padding to [`ALIGNED`] bytes is between its end and the page
/// without access that follows.
struct Guarded {
    map: MmapMut,
    /// The offset of the allocation in the mapping.
    first: usize,
    bytes: usize,
    /// Whether a copy, a memset or a wait has come since the allocation. Each of these waits for the earlier kernels.
    /// If none has come, a kernel that writes to the memory may still run.
    settled: bool,
}

/// The kernels of a module.
#[derive(Clone)]
enum Code {
    Compiled(Arc<Kernels>),
    Ptx(Arc<Program>),
}

/// A library of kernels.
struct Kernels {
    run: Run,
    _library: Library,
}

/// Cache entry of a compiled module. The first caller compiles it; only callers of the same module wait.
type Place<T> = Arc<Mutex<Option<Arc<T>>>>;

/// Returns the cache entry of a module, shared by all tests.
fn place_of<T>(all: &Mutex<HashMap<Module, Place<T>>>, module: &Module) -> Place<T> {
    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(all.entry(module.clone()).or_default())
}

impl Emulated {
    /// Returns a device with `total` bytes, which is lost after `launches` launches. `None`, with a message, if there
    /// is no C++ compiler.
    pub fn new(total: usize, launches: usize) -> Option<Self> {
        if !compile::is_possible() {
            return None;
        }
        let about = about();
        Some(Self {
            about,
            total,
            launches: AtomicUsize::new(launches),
            state: Mutex::default(),
            asked: Log::default(),
            launched: Launched::default(),
            loaded: Loaded::default(),
            runs: Runs::Sources,
            refused: None,
        })
    }

    /// The same device, but kernels whose name begins with `kernels` fail.
    pub fn refusing(mut self, kernels: &'static str) -> Self {
        self.refused = Some(kernels);
        self
    }

    /// The same device, but a block may use `bytes` bytes of shared memory.
    pub fn with_shared(mut self, bytes: usize) -> Self {
        self.about.shared = bytes;
        self
    }

    /// The same device, but it runs the modules that are embedded as PTX.
    pub fn carried(mut self) -> Self {
        self.runs = Runs::Carried;
        self
    }

    /// Returns a device with `total` bytes that runs PTX.
    pub fn of_ptx(total: usize) -> Self {
        let about = about();
        Self {
            about,
            total,
            launches: AtomicUsize::new(usize::MAX),
            state: Mutex::default(),
            asked: Log::default(),
            launched: Launched::default(),
            loaded: Loaded::default(),
            runs: Runs::Ptx,
            refused: None,
        }
    }

    /// Returns the log of the requests.
    pub fn log(&self) -> Log {
        Arc::clone(&self.asked)
    }

    /// Returns the list of the device's launches. Each launch adds an entry.
    pub fn launched(&self) -> Launched {
        Arc::clone(&self.launched)
    }

    /// Returns the list of the kernels that the device loads.
    pub fn loaded(&self) -> Loaded {
        Arc::clone(&self.loaded)
    }

    fn say(&self, asked: Asked) {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(asked);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, state: &State, launch: &Launch) -> Result<()> {
        let left =
            self.launches.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        left.map_err(|_| failed("run a kernel", "CUDA_ERROR_LAUNCH_FAILED"))?;
        let (code, name) = &state.functions[launch.function.0 as usize];
        let mut launched = self.launched.lock().unwrap_or_else(PoisonError::into_inner);
        launched.push(name.to_string_lossy().into_owned());
        drop(launched);
        if self.refused.is_some_and(|refused| name.to_bytes().starts_with(refused.as_bytes())) {
            return Err(failed("run a kernel", "CUDA_ERROR_INVALID_VALUE"));
        }
        let there = match code {
            Code::Compiled(kernels) => {
                let argument = |argument: &u64| ptr::from_ref(argument).cast_mut().cast();
                let mut arguments: Vec<*mut c_void> = launch.arguments.each().map(argument).collect();
                let mut early = Vec::new();
                // SAFETY: the library was compiled from the kernels' sources, which read their arguments through these
                // pointers. The caller passes the arguments that the sources declare.
                let code = unsafe {
                    (kernels.run)(
                        name.as_ptr(),
                        launch.grid.as_ptr(),
                        launch.block.as_ptr(),
                        launch.shared,
                        arguments.as_mut_ptr(),
                        take,
                        &mut early,
                    )
                };
                let there = |at: &Address| launch.late || state.is_settled(*at);
                assert!(
                    early.iter().all(there),
                    "{name:?} reads memory that an earlier kernel may still write"
                );
                code == 0
            }
            Code::Ptx(program) => {
                let arguments: Vec<*const u8> =
                    launch.arguments.each().map(|argument| ptr::from_ref(argument).cast()).collect();
                let grid = Grid { blocks: launch.grid, threads: launch.block, shared: launch.shared };
                let known = |at: u64, bytes: usize| state.knows(at, bytes);
                machine::run(program, &name.to_string_lossy(), grid, &arguments, &known)
            }
        };
        if there { Ok(()) } else { Err(failed("run a kernel", format!("there is no {name:?}"))) }
    }
}

impl State {
    /// Whether these bytes lie in an allocation.
    fn knows(&self, at: Address, bytes: usize) -> bool {
        let inside = |memories: &BTreeMap<Address, Guarded>| {
            let below = memories.range(..=at).next_back();
            below.is_some_and(|(first, memory)| at - first + bytes as u64 <= memory.bytes as u64)
        };
        inside(&self.memories) || inside(&self.pinned)
    }

    /// Records that all kernels have ended: marks all device memory as settled.
    fn settle(&mut self) {
        self.memories.values_mut().for_each(|memory| memory.settled = true);
    }

    /// Whether the memory at this address is settled.
    fn is_settled(&self, at: Address) -> bool {
        self.memories.range(..=at).next_back().is_some_and(|(_, memory)| memory.settled)
    }
}

/// Returns the parsed PTX of a module. It is from NVRTC, or else the embedded PTX. Each module is parsed once for the
/// whole process.
fn instructions(module: &Module) -> Result<Arc<Program>> {
    static MADE: LazyLock<Mutex<HashMap<Module, Place<Program>>>> = LazyLock::new(Mutex::default);
    static NVRTC: LazyLock<Option<Nvrtc>> =
        LazyLock::new(|| has_nvrtc().then(|| Nvrtc::find((99, 0)).expect("an NVRTC of LLAMA_TRACE_NVRTC")));
    let place = place_of(&MADE, module);
    let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(program) = &*place {
        return Ok(Arc::clone(program));
    }
    let text = match &*NVRTC {
        Some(nvrtc) => nvrtc.ptx(module.source(), WARPGROUPS, !module.is_for((8, 0)))?,
        None => match ptx::carried().get(&(WARPGROUPS, module.clone())) {
            Some(text) => text.clone(),
            None => return Err(failed("find a kernel", format!("{module:?} is not among the embedded PTX"))),
        },
    };
    let program = Arc::new(Program::new(&text));
    *place = Some(Arc::clone(&program));
    Ok(program)
}

/// Whether the tests were given an NVRTC.
fn has_nvrtc() -> bool {
    std::env::var_os("LLAMA_TRACE_NVRTC").is_some_and(|folder| !folder.is_empty())
}

/// Returns the module as a library, compiled or from the cache folder.
fn made(module: &Module) -> Result<Arc<Kernels>> {
    static MADE: LazyLock<Mutex<HashMap<Module, Place<Kernels>>>> = LazyLock::new(Mutex::default);
    let place = place_of(&MADE, module);
    let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(kernels) = &*place {
        return Ok(Arc::clone(kernels));
    }
    let wrong = |error: String| failed("compile a kernel", error);
    let path = compile::library(module).map_err(wrong)?;
    // SAFETY: the library was compiled from the kernels' sources and the emulation, and runs nothing when it is loaded.
    let library = unsafe { Library::new(&path) }.map_err(|error| wrong(error.to_string()))?;
    // SAFETY: the type is that of `emulate.cpp`.
    let run = unsafe { library.get::<Run>(b"llt_launch\0").map(|symbol| *symbol) };
    let run = run.map_err(|error| wrong(error.to_string()))?;
    let kernels = Arc::new(Kernels { run, _library: library });
    *place = Some(Arc::clone(&kernels));
    Ok(kernels)
}

impl Guarded {
    fn new(bytes: usize) -> Self {
        let room = bytes.next_multiple_of(ALIGNED);
        let end = PAGE + room.next_multiple_of(PAGE);
        let Ok(mut map) = MmapMut::map_anon(end + PAGE) else { unreachable!("the tests take little memory") };
        let first = end - room;
        map[PAGE..end].fill(UNTOUCHED);
        map[first..first + bytes].fill(FRESH);
        #[cfg(unix)]
        for page in [0, end] {
            // SAFETY: the page belongs to the mapping, and nothing here reads or writes it.
            unsafe { libc::mprotect(map.as_mut_ptr().add(page).cast(), PAGE, libc::PROT_NONE) };
        }
        Self { map, first, bytes, settled: false }
    }

    fn at(&self) -> Address {
        self.map[self.first..].as_ptr() as Address
    }

    /// Whether the guard bytes are unchanged.
    fn is_whole(&self) -> bool {
        let (before, after) = (&self.map[PAGE..self.first], &self.map[self.first + self.bytes..]);
        before.iter().chain(&after[..after.len() - PAGE]).all(|byte| *byte == UNTOUCHED)
    }
}

/// Properties of the emulated device: the architecture that uses all kernels (9.0, with wgmma), and the least shared
/// memory of any supported GPU.
fn about() -> About {
    About { name: "the processor".into(), architecture: (9, 0), multiprocessors: 4, shared: 99 << 10 }
}

impl Driver for Emulated {
    fn about(&self) -> &About {
        &self.about
    }

    fn room(&self) -> Result<Room> {
        Ok(Room { free: self.total - self.state().used, total: self.total })
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        let mut state = self.state();
        if bytes > self.total - state.used {
            return Err(no_memory(bytes));
        }
        let memory = Guarded::new(bytes);
        let at = memory.at();
        state.used += bytes;
        state.memories.insert(at, memory);
        Ok(at)
    }

    fn free(&self, at: Address) {
        let mut state = self.state();
        let Some(memory) = state.memories.remove(&at) else { unreachable!("only allocated memory is freed") };
        state.used -= memory.bytes;
        let whole = memory.is_whole() || std::thread::panicking();
        assert!(whole, "a kernel wrote beside a memory of {} bytes", memory.bytes);
    }

    fn clear(&self, at: Address, bytes: usize) -> Result<()> {
        self.say(Asked::Other);
        self.state().settle();
        // SAFETY: the caller has allocated `bytes` bytes there.
        unsafe { ptr::write_bytes(at as *mut u8, 0, bytes) };
        Ok(())
    }

    fn write(&self, from: &[u8], to: Address) -> Result<()> {
        self.say(Asked::Write(from.len()));
        self.state().settle();
        // SAFETY: the caller has allocated `from.len()` bytes there.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to as *mut u8, from.len()) };
        Ok(())
    }

    fn read(&self, from: Address, to: &mut [u8]) -> Result<()> {
        self.say(Asked::Read(to.len()));
        // SAFETY: the caller has allocated `to.len()` bytes there.
        unsafe { ptr::copy_nonoverlapping(from as *const u8, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    fn pin(&self, bytes: usize) -> Result<Address> {
        let memory = Guarded::new(bytes);
        let at = memory.at();
        self.state().pinned.insert(at, memory);
        Ok(at)
    }

    fn unpin(&self, at: Address) {
        let Some(memory) = self.state().pinned.remove(&at) else {
            unreachable!("only pinned memory is unpinned")
        };
        assert!(memory.is_whole() || std::thread::panicking(), "a kernel wrote beside pinned memory");
    }

    fn pinned(&self, at: Address, bytes: usize) -> &[u8] {
        self.say(Asked::Look(bytes));
        // SAFETY: the caller has pinned `bytes` bytes there, and kernels have ended when their launch returns.
        unsafe { std::slice::from_raw_parts(at as *const u8, bytes) }
    }

    fn bring(&self, from: Address, to: Address, bytes: usize) -> Result<Event> {
        self.say(Asked::Bring(bytes));
        // SAFETY: the caller has allocated `bytes` bytes at both places, which do not overlap.
        unsafe { ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
        self.mark()
    }

    fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()> {
        self.say(Asked::Other);
        self.state().settle();
        // SAFETY: the caller has allocated `bytes` bytes at both places, which do not overlap.
        unsafe { ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
        Ok(())
    }

    fn remembered(&self, what: &str) -> Option<bool> {
        self.state().remembered.get(what).copied()
    }

    fn remember(&self, what: &str, answer: bool) {
        self.state().remembered.insert(what.to_owned(), answer);
    }

    fn function(&self, module: &Module, name: &str) -> Result<Function> {
        let kernel = (module.clone(), name.to_owned());
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if !loaded.contains(&kernel) {
            loaded.push(kernel);
        }
        drop(loaded);
        let code = match self.runs {
            Runs::Sources => Code::Compiled(made(module)?),
            Runs::Carried => Code::Compiled(made(&ptx::compact(module))?),
            Runs::Ptx => Code::Ptx(instructions(module)?),
        };
        let name = CString::new(name).map_err(|error| failed("find a kernel", error))?;
        let mut state = self.state();
        state.functions.push((code, name));
        Ok(Function(state.functions.len() as u64 - 1))
    }

    fn has_warpgroups(&self) -> bool {
        match self.runs {
            Runs::Sources => self.about.architecture == WARPGROUPS,
            Runs::Carried => false,
            Runs::Ptx => has_nvrtc(),
        }
    }

    fn splits_attention(&self) -> bool {
        true
    }

    fn streams(&self) -> bool {
        match self.runs {
            Runs::Sources => true,
            Runs::Carried => false,
            Runs::Ptx => has_nvrtc(),
        }
    }

    fn launch(&self, launches: &[Launch]) -> Result<()> {
        self.say(Asked::Launches(launches.len()));
        let state = self.state();
        launches.iter().try_for_each(|launch| self.run(&state, launch))
    }

    fn capture(&self, launches: &[Launch]) -> Result<Graph> {
        let mut state = self.state();
        state.graphs.push(launches.to_vec());
        Ok(Graph(state.graphs.len() as u64 - 1))
    }

    fn launch_graph(&self, graph: Graph) -> Result<()> {
        let state = self.state();
        self.say(Asked::Graph(state.graphs[graph.0 as usize].len()));
        state.graphs[graph.0 as usize].iter().try_for_each(|launch| self.run(&state, launch))
    }

    fn destroy_graph(&self, graph: Graph) {
        self.state().graphs[graph.0 as usize].clear();
    }

    fn mark(&self) -> Result<Event> {
        let mut state = self.state();
        state.events.push(Instant::now());
        Ok(Event(state.events.len() as u64 - 1))
    }

    fn reached(&self, _: Event) -> Result<bool> {
        self.state().settle();
        Ok(true)
    }

    fn between(&self, from: Event, to: Event) -> Duration {
        let state = self.state();
        state.events[to.0 as usize] - state.events[from.0 as usize]
    }

    fn release(&self, _: Event) {}
}

impl Drop for Emulated {
    fn drop(&mut self) {
        let left = std::mem::take(&mut self.state().memories);
        let pinned = std::mem::take(&mut self.state().pinned);
        let all = left.is_empty() && pinned.is_empty();
        assert!(all || std::thread::panicking(), "all memory is given back");
    }
}
