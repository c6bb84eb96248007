//! The interface of a device. It has two implementations: NVIDIA's driver (`nvidia` of llama-trace-cuda) and, for the
//! tests, the CPU, which runs the same kernels compiled as C++ (llama-trace-emulator).
//!
//! All work is done in the order of the calls, as in one CUDA stream. Writes, copies and launches are asynchronous:
//! they may return before they are done. Reads wait. A method that returns a `Result` fails if the device fails
//! ([`failed`]). This may be the failure of earlier work.

use std::time::Duration;

use super::sources::Module;
use llama_trace_core::error::{Error, Result};

/// An address in the device's memory.
pub type Address = u64;

/// A loaded kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Function(pub u64);

/// Launches that the driver captured as one graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Graph(pub u64);

/// An event in the device's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event(pub u64);

/// Maximum number of arguments of a kernel, and of the 8-byte words of all its arguments.
const MOST_ARGUMENTS: usize = 12;
const MOST_WORDS: usize = 64;

/// Maximum number of [`Extra`]s of a kernel.
const MOST_OFFERS: usize = 2;

/// Maximum number of spans of a batch in one launch. The kernels have the same constant.
pub const MOST_TOGETHER: usize = 16;

/// The arguments of a launch: addresses, int32, int64 and float32 values, and structures in C's memory layout. Each
/// argument begins at an 8-byte word.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arguments {
    words: [u64; MOST_WORDS],
    used: usize,
    /// The first word of each argument.
    starts: [u8; MOST_ARGUMENTS],
    count: usize,
    narrow: Option<Narrow>,
    offers: [Option<Offer>; MOST_OFFERS],
}

/// Further work that a kernel does on its result if it gets addresses for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// A norm also writes its result as int8 values and scales.
    Int8OfNorm,
    /// A gate also writes its result as int8 values and scales.
    Int8OfGate,
    /// A norm also writes its result in the packed layout of the tensor cores: `struct PackedRows` of the kernels.
    PackedNorm,
    /// A product adds a buffer to its result: the addresses of this buffer and of the sum.
    Sum,
}

/// An [`Extra`] that was not requested so far: its addresses are null.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Offer {
    extra: Extra,
    /// The address of the kernel's result, and its number of values.
    result: (Address, usize),
    /// The first word of the addresses.
    at: usize,
}

/// How a kernel can write its result in bfloat16 instead of float32.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Narrow {
    /// The address of the float32 result, and its number of values.
    out: Address,
    count: usize,
    /// The word for the bfloat16 result's address.
    at: usize,
    /// The range of words with the addresses of the kernel's outputs. They are set to null when it writes bfloat16.
    others: (usize, usize),
}

/// A launch of one kernel over one grid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Launch {
    /// The kernel.
    pub function: Function,
    /// Size of the grid in blocks.
    pub grid: [u32; 3],
    /// Size of a block in threads.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// The arguments that the kernel declares, in this order.
    pub arguments: Arguments,
    /// Whether this launch belongs to one pass only, for example because it records values. No graph contains such a
    /// launch.
    pub apart: bool,
    /// Whether this launch waits until the previous launch has ended, because that one writes the weights that this one
    /// reads. Other launches may read their weights earlier.
    pub late: bool,
}

/// Properties of a device.
#[derive(Clone, Debug)]
pub struct About {
    /// Its name for users.
    pub name: String,
    /// Its compute capability: (9, 0) is sm_90.
    pub architecture: (u32, u32),
    /// Number of its multiprocessors, which run blocks at the same time.
    pub multiprocessors: u32,
    /// Maximum number of bytes of shared memory of a block.
    pub shared: usize,
}

/// Kernels that are off by default, because no GPU has run them yet. Other kernels give the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Untried {
    /// `coalesced`: neighbouring lanes read and write neighbouring bytes when they rewrite weights for many rows.
    pub coalesced: bool,
    /// `wide`: integer products of many rows have tiles of 128 rows, and 64 outputs for each warp.
    pub wide: bool,
}

/// Bytes of the device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes that can be allocated.
    pub free: usize,
    /// All bytes.
    pub total: usize,
}

impl Launch {
    /// Joins another launch to this one, as one more layer in the grid's third dimension. The first `words` words of
    /// the arguments describe a launch's span. Only these may differ between the two launches. Returns whether they
    /// were joined.
    pub fn join(&mut self, other: &Self, words: usize) -> bool {
        let (spans, all) = (self.grid[2] as usize, words * MOST_TOGETHER);
        let alike =
            |launch: &Self| (launch.function, launch.grid[0], launch.grid[1], launch.block, launch.shared);
        let rest = |launch: &Self| (launch.arguments.starts, launch.arguments.count, launch.arguments.used);
        let joins = spans < MOST_TOGETHER
            && alike(self) == alike(other)
            && rest(self) == rest(other)
            && self.arguments.words[all..] == other.arguments.words[all..];
        if joins {
            self.arguments.words[spans * words..][..words].copy_from_slice(&other.arguments.words[..words]);
            self.grid[2] += 1;
        }
        joins
    }
}

impl Default for Arguments {
    fn default() -> Self {
        Self::new()
    }
}

impl Arguments {
    /// Returns an empty list of arguments.
    pub fn new() -> Self {
        Self {
            words: [0; MOST_WORDS],
            used: 0,
            starts: [0; MOST_ARGUMENTS],
            count: 0,
            narrow: None,
            offers: [None; MOST_OFFERS],
        }
    }

    /// Adds a structure with these words.
    ///
    /// # Panics
    /// If there are more than 12 arguments or 64 words.
    pub fn words(mut self, words: &[u64]) -> Self {
        self.starts[self.count] = self.used as u8;
        self.count += 1;
        self.words[self.used..self.used + words.len()].copy_from_slice(words);
        self.used += words.len();
        self
    }

    /// Adds an array of [`MOST_TOGETHER`] structures, one for each span. `words` is the first structure;
    /// [`Launch::join`] fills in the others.
    pub fn first_of(self, words: &[u64]) -> Self {
        let mut all = [0; MOST_WORDS];
        all[..words.len()].copy_from_slice(words);
        self.words(&all[..words.len() * MOST_TOGETHER])
    }

    /// Adds an address. 0 is the null pointer.
    pub fn address(self, at: Address) -> Self {
        self.words(&[at])
    }

    /// Adds the address of a result in bfloat16. It is null until [`Arguments::narrow`] sets it; with null, the kernel
    /// writes `count` float32 values to `out`. The `others` words before this address are the addresses of the float32
    /// outputs. `narrow` sets them to null, because a kernel does not write an output with a null address.
    pub fn narrow_too(self, out: Address, count: usize, others: usize) -> Self {
        let narrow = Narrow { out, count, at: self.used, others: (self.used - others, self.used) };
        Self { narrow: Some(narrow), ..self.address(0) }
    }

    /// Makes the kernel write its result to `to` in bfloat16 and nowhere else. This is possible if the kernel supports
    /// it and its result is these `count` values at `out`. Returns whether the arguments were changed.
    pub fn narrow(&mut self, (out, count): (Address, usize), to: Address) -> bool {
        let Some(narrow) = self.narrow.take_if(|narrow| (narrow.out, narrow.count) == (out, count)) else {
            return false;
        };
        self.words[narrow.at] = to;
        self.words[narrow.others.0..narrow.others.1].fill(0);
        // An extra result would be computed from the float32 values.
        self.offers = [None; MOST_OFFERS];
        true
    }

    /// Adds a structure of `words` addresses for an extra. They are null until [`Arguments::request`] sets them. With
    /// `result`, the address and the number of values of the kernel's result, the extra is offered. With `None`, it is
    /// not.
    ///
    /// # Panics
    /// If there are more than 2 offers, 12 arguments or 64 words.
    pub fn extra(mut self, extra: Extra, result: Option<(Address, usize)>, words: usize) -> Self {
        if let Some(result) = result {
            let free = self.offers.iter().position(Option::is_none);
            let free = free.unwrap_or_else(|| unreachable!("no kernel has more than {MOST_OFFERS} extras"));
            self.offers[free] = Some(Offer { extra, result, at: self.used });
        }
        self.words(&[0; MOST_WORDS][..words])
    }

    /// Whether `extra` is offered for these values, and was not requested so far.
    pub fn offers(&self, extra: Extra, result: (Address, usize)) -> bool {
        self.offers.iter().flatten().any(|offer| (offer.extra, offer.result) == (extra, result))
    }

    /// Makes the kernel also do `extra`, with the addresses `to`. This is possible if it offers this for these values.
    /// Returns whether the arguments were changed.
    pub fn request(&mut self, extra: Extra, result: (Address, usize), to: &[Address]) -> bool {
        let asked = |offer: &mut Offer| (offer.extra, offer.result) == (extra, result);
        let Some(offer) = self.offers.iter_mut().find_map(|offer| offer.take_if(asked)) else {
            return false;
        };
        self.words[offer.at..][..to.len()].copy_from_slice(to);
        true
    }

    /// Adds an int32.
    ///
    /// # Panics
    /// If `value` does not fit ([`pair`]).
    pub fn int(self, value: usize) -> Self {
        self.words(&[pair(value, 0)])
    }

    /// Adds an int64.
    pub fn long(self, value: usize) -> Self {
        self.words(&[value as u64])
    }

    /// Adds any 64 bits.
    pub fn bits(self, value: u64) -> Self {
        self.words(&[value])
    }

    /// Adds a float32.
    pub fn float(self, value: f32) -> Self {
        self.words(&[u64::from(value.to_bits())])
    }

    /// Returns all words.
    pub fn all(&self) -> &[u64] {
        &self.words[..self.used]
    }

    /// Returns all words, to change them.
    pub fn all_mut(&mut self) -> &mut [u64] {
        &mut self.words[..self.used]
    }

    /// Iterates over the addresses of the arguments: the first word of each.
    pub fn each(&self) -> impl Iterator<Item = &u64> {
        self.starts[..self.count].iter().map(|start| &self.words[usize::from(*start)])
    }
}

/// Packs two int32 values into a word, the first in the lower half.
///
/// # Panics
/// If `first` or `second` does not fit into an int32. Sizes of a model always fit: they are checked when the model is
/// opened.
pub fn pair(first: usize, second: usize) -> u64 {
    let half = |value: usize| {
        let value = i32::try_from(value).unwrap_or_else(|_| unreachable!("{value} is no int32"));
        u64::from(value.cast_unsigned())
    };
    half(first) | half(second) << 32
}

/// A matrix product by NVIDIA's library. Each call multiplies the matrices at the given addresses.
pub type LibraryProduct<'a> = Box<dyn Fn([Address; 4]) -> Result<()> + 'a>;

/// The operations of a device.
pub trait Driver: Send + Sync {
    /// The device's properties.
    fn about(&self) -> &About;

    /// The free memory and the total memory.
    fn room(&self) -> Result<Room>;

    /// Allocates `bytes` bytes. The number must not be 0. The memory is uninitialised.
    fn allocate(&self, bytes: usize) -> Result<Address>;

    /// Frees memory of [`Driver::allocate`]. Work that was queued earlier may still use it.
    fn free(&self, at: Address);

    /// Sets `bytes` bytes to 0.
    fn clear(&self, at: Address, bytes: usize) -> Result<()>;

    /// Copies to the device. `from` may be changed after the call.
    fn write(&self, from: &[u8], to: Address) -> Result<()>;

    /// Copies from the device, after all earlier work has ended.
    fn read(&self, from: Address, to: &mut [u8]) -> Result<()>;

    /// Allocates `bytes` bytes of pinned host memory. Kernels write to it as they write to the device's memory. The
    /// transfer overlaps their work.
    fn pin(&self, bytes: usize) -> Result<Address>;

    /// Frees memory of [`Driver::pin`], after all earlier work has ended.
    fn unpin(&self, at: Address);

    /// Returns `bytes` bytes of pinned memory ([`Driver::pin`]). No kernel may write there during the borrow.
    fn pinned(&self, at: Address, bytes: usize) -> &[u8];

    /// Starts a copy to pinned memory ([`Driver::pin`]) after all earlier work. Later work overlaps the copy, and must
    /// not write to `from` before the returned event is reached.
    fn bring(&self, from: Address, to: Address, bytes: usize) -> Result<Event>;

    /// Copies on the device, between ranges that do not overlap.
    fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()>;

    /// Returns the kernel `name` of a module. Compiles and loads it at first use.
    fn function(&self, module: &Module, name: &str) -> Result<Function>;

    /// Compiles and loads kernels in advance, in parallel on `threads` threads. Calls `goes_on` after each kernel, and
    /// stops if it returns false. An error of a kernel is returned later, by [`Driver::function`].
    fn make_ready(&self, kernels: &[(Module, String)], threads: usize, goes_on: &(dyn Fn() -> bool + Sync)) {
        let _ = (threads, kernels.iter().all(|_| goes_on()));
    }

    /// Returns the answer that was stored under `what` by this very executable, with the same device, driver and
    /// compiler.
    fn remembered(&self, what: &str) -> Option<bool> {
        let _ = what;
        None
    }

    /// Stores an answer under `what`.
    fn remember(&self, what: &str, answer: bool) {
        let _ = (what, answer);
    }

    /// Launches kernels one after the other.
    fn launch(&self, launches: &[Launch]) -> Result<()>;

    /// Captures launches as a graph, without running them.
    fn capture(&self, launches: &[Launch]) -> Result<Graph>;

    /// Launches a graph.
    fn launch_graph(&self, graph: Graph) -> Result<()>;

    /// Destroys a graph.
    fn destroy_graph(&self, graph: Graph);

    /// Returns `Ok` if the kernels are compiled for this very device, otherwise the reason why not. In that case the
    /// driver compiles the embedded PTX.
    fn compiles(&self) -> Result<()> {
        Ok(())
    }

    /// Whether the device has warpgroup products (wgmma: four warps multiply together) and there is a compiler for
    /// them.
    fn has_warpgroups(&self) -> bool;

    /// Whether attention in float32 splits each operand into two float16 values, for tensor cores.
    fn splits_attention(&self) -> bool;

    /// Whether kernels that read weights through shared memory (`stream_q8`) can be compiled and are not switched off.
    fn streams(&self) -> bool;

    /// Returns the kernels that the user has switched on although no GPU has run them yet.
    fn untried(&self) -> Untried {
        Untried::default()
    }

    /// Returns a product of (side, side) bfloat16 matrices by NVIDIA's own library. The addresses to call it with: the
    /// first matrix (transposed), the second matrix, the result, the workspace. `None` if the library is not installed.
    fn library_product(&self, side: usize) -> Option<LibraryProduct<'_>> {
        let _ = side;
        None
    }

    /// Records an event after all earlier work.
    fn mark(&self) -> Result<Event>;

    /// Returns whether all work before the event has ended, or an error of that work.
    fn reached(&self, event: Event) -> Result<bool>;

    /// Returns the time between two events that were reached.
    fn between(&self, from: Event, to: Event) -> Duration;

    /// Destroys an event.
    fn release(&self, event: Event);
}

/// Returns the error of a device that cannot do `what`. `found` is the driver's error code.
pub fn failed(what: &str, found: impl std::fmt::Display) -> Error {
    Error::prompt(format!("the CUDA device cannot {what}"))
        .expected("a working device")
        .found(found)
        .next("run again with --device cpu; nvidia-smi and the system's log may show the cause")
}
