//! What the backend asks of a device. There are two that answer: NVIDIA's driver ([`super::nvidia`]) and, for the
//! tests, the processor, which runs the same kernels compiled as C++.
//!
//! All work is done in the order in which it was asked for. What writes to the device, copies and launches may return
//! before it is done; what reads waits.

use std::time::Duration;

use super::sources::Module;
use llama_trace_core::error::{Error, Result};

/// An address in the device's memory.
pub(super) type Address = u64;

/// A kernel that is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Function(pub(super) u64);

/// Launches that the driver took down as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Graph(pub(super) u64);

/// A moment in the device's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event(pub(super) u64);

/// The most arguments of a kernel, and the most words of 8 bytes that they take.
const MOST_ARGUMENTS: usize = 12;
const MOST_WORDS: usize = 64;

/// How many spans of a batch go in one launch, as the kernels have it.
pub(super) const MOST_TOGETHER: usize = 16;

/// The arguments of a launch, each at the beginning of a word: addresses, int32, int64 and float32 values, and
/// structures as they lie in C.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Arguments {
    words: [u64; MOST_WORDS],
    used: usize,
    /// The word that each begins with.
    starts: [u8; MOST_ARGUMENTS],
    count: usize,
    narrow: Option<Narrow>,
}

/// Where a kernel can be told to write its result in bfloat16.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Narrow {
    /// Where its result goes, and how many values it has.
    out: Address,
    count: usize,
    /// The word with the address for bfloat16.
    at: usize,
    /// The words with the addresses of what it need not write then.
    others: (usize, usize),
}

/// One kernel over one grid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Launch {
    pub(super) function: Function,
    /// Blocks.
    pub(super) grid: [u32; 3],
    /// Threads of a block.
    pub(super) block: [u32; 3],
    /// Bytes of shared memory that its source does not name.
    pub(super) shared: u32,
    pub(super) arguments: Arguments,
    /// Whether it differs from pass to pass, as what is recorded does: then it is in no graph.
    pub(super) apart: bool,
    /// Whether it waits for the end of the one before it, which wrote its weights: others read theirs earlier.
    pub(super) late: bool,
}

/// What a device says about itself.
#[derive(Clone, Debug)]
pub(super) struct About {
    pub(super) name: String,
    /// Its compute capability: (9, 0) is sm_90.
    pub(super) architecture: (u32, u32),
    pub(super) multiprocessors: u32,
    /// Bytes of shared memory that a block may have.
    pub(super) shared: usize,
}

/// Bytes of the device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) free: usize,
    pub(super) total: usize,
}

impl Launch {
    /// Takes in another launch that differs from the first of this one in nothing but what is said of its span, the first
    /// `words` words: as one more in the grid's third direction. Whether it did.
    pub(super) fn join(&mut self, other: &Self, words: usize) -> bool {
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

impl Arguments {
    /// None yet.
    pub(super) fn new() -> Self {
        Self { words: [0; MOST_WORDS], used: 0, starts: [0; MOST_ARGUMENTS], count: 0, narrow: None }
    }

    /// A structure more, whose words these are.
    pub(super) fn words(mut self, words: &[u64]) -> Self {
        self.starts[self.count] = self.used as u8;
        self.count += 1;
        self.words[self.used..self.used + words.len()].copy_from_slice(words);
        self.used += words.len();
        self
    }

    /// Structures of these words for each of [`MOST_TOGETHER`] spans more, of which the first is there: for launches that
    /// [`Launch::join`].
    pub(super) fn first_of(self, words: &[u64]) -> Self {
        let mut all = [0; MOST_WORDS];
        all[..words.len()].copy_from_slice(words);
        self.words(&all[..words.len() * MOST_TOGETHER])
    }

    /// An address more; 0 is the null pointer.
    pub(super) fn address(self, at: Address) -> Self {
        self.words(&[at])
    }

    /// An address more, which is null: where the kernel can write its result in bfloat16, of which it writes `count` values to
    /// `out`. The `others` words before this one are addresses where it writes nothing if they are null.
    pub(super) fn narrow_too(self, out: Address, count: usize, others: usize) -> Self {
        let narrow = Narrow { out, count, at: self.used, others: (self.used - others, self.used) };
        Self { narrow: Some(narrow), ..self.address(0) }
    }

    /// Has the kernel write its result to `to` in bfloat16 and nowhere else, where it can and the result is these `count`
    /// values at `out`; whether it does.
    pub(super) fn narrow(&mut self, (out, count): (Address, usize), to: Address) -> bool {
        let Some(narrow) = self.narrow.take_if(|narrow| (narrow.out, narrow.count) == (out, count)) else {
            return false;
        };
        self.words[narrow.at] = to;
        self.words[narrow.others.0..narrow.others.1].fill(0);
        true
    }

    /// An int32 more.
    pub(super) fn int(self, value: usize) -> Self {
        self.words(&[pair(value, 0)])
    }

    /// An int64 more.
    pub(super) fn long(self, value: usize) -> Self {
        self.words(&[value as u64])
    }

    /// Any 64 bits more.
    pub(super) fn bits(self, value: u64) -> Self {
        self.words(&[value])
    }

    /// A float32 more.
    pub(super) fn float(self, value: f32) -> Self {
        self.words(&[u64::from(value.to_bits())])
    }

    /// All their words.
    pub(super) fn all(&self) -> &[u64] {
        &self.words[..self.used]
    }

    /// The same, to change them.
    pub(super) fn all_mut(&mut self) -> &mut [u64] {
        &mut self.words[..self.used]
    }

    /// Where each of them begins.
    pub(super) fn each(&self) -> impl Iterator<Item = &u64> {
        self.starts[..self.count].iter().map(|start| &self.words[usize::from(*start)])
    }
}

/// Two int32 values side by side, the first of them first.
///
/// # Panics
/// Where one is none. No size of a model is: they are checked when it is opened.
pub(super) fn pair(first: usize, second: usize) -> u64 {
    let half = |value: usize| {
        let value = i32::try_from(value).unwrap_or_else(|_| unreachable!("{value} is no int32"));
        u64::from(value.cast_unsigned())
    };
    half(first) | half(second) << 32
}

/// A product that a library computes, of matrices at these addresses, each time that it is called.
pub(super) type LibraryProduct<'a> = Box<dyn Fn([Address; 4]) -> Result<()> + 'a>;

/// A device.
pub(super) trait Driver: Send + Sync {
    /// What it says about itself.
    fn about(&self) -> &About;

    /// How much memory is free, and how much there is.
    fn room(&self) -> Result<Room>;

    /// `bytes` bytes of memory, with anything in them; more than none.
    fn allocate(&self, bytes: usize) -> Result<Address>;

    /// Gives back what [`Driver::allocate`] gave. Work that was asked for before may still read it.
    fn free(&self, at: Address);

    /// Sets bytes to 0.
    fn clear(&self, at: Address, bytes: usize) -> Result<()>;

    /// Copies to the device; `from` may be changed afterwards.
    fn write(&self, from: &[u8], to: Address) -> Result<()>;

    /// Copies from the device, once everything before is done.
    fn read(&self, from: Address, to: &mut [u8]) -> Result<()>;

    /// `bytes` bytes of the processor's memory that kernels write to as to their own, and what they write there goes over
    /// while they go on.
    fn pin(&self, bytes: usize) -> Result<Address>;

    /// Gives back what [`Driver::pin`] gave, once everything before is done.
    fn unpin(&self, at: Address);

    /// Bytes of what [`Driver::pin`] gave, at a moment when no kernel writes there.
    fn pinned(&self, at: Address, bytes: usize) -> &[u8];

    /// Begins to copy to what [`Driver::pin`] gave what is there after the work so far, while the device goes on with what it is
    /// asked for next: nobody writes to `from` before the moment that is returned.
    fn bring(&self, from: Address, to: Address, bytes: usize) -> Result<Event>;

    /// Copies on the device, between places that do not overlap.
    fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()>;

    /// The kernel `name` of a module, which is compiled and loaded where it is not yet.
    fn function(&self, module: &Module, name: &str) -> Result<Function>;

    /// Compiles and loads kernels that are wanted soon, side by side on `threads` threads; after each it asks `goes_on` whether
    /// to go on. An error is returned by [`Driver::function`].
    fn make_ready(&self, kernels: &[(Module, String)], threads: usize, goes_on: &(dyn Fn() -> bool + Sync)) {
        let _ = (threads, kernels.iter().all(|_| goes_on()));
    }

    /// What was remembered of `what` by a process of this very program with the same device, driver and compiler.
    fn remembered(&self, what: &str) -> Option<bool> {
        let _ = what;
        None
    }

    /// Remembers it for such processes.
    fn remember(&self, what: &str, answer: bool) {
        let _ = (what, answer);
    }

    /// Launches kernels one after the other.
    fn launch(&self, launches: &[Launch]) -> Result<()>;

    /// Takes launches down as one, without running them.
    fn take_down(&self, launches: &[Launch]) -> Result<Graph>;

    /// Runs what was taken down.
    fn repeat(&self, graph: Graph) -> Result<()>;

    /// Forgets what was taken down.
    fn forget(&self, graph: Graph);

    /// Why kernels are not compiled for this very device, where they are not: the driver then compiles what the program
    /// carries.
    fn compiles(&self) -> Result<()> {
        Ok(())
    }

    /// Whether groups of four warps multiply together there (wgmma), and kernels can be compiled that do.
    fn has_warpgroups(&self) -> bool;

    /// Whether attention in float32 splits its operands for tensor cores.
    fn splits_attention(&self) -> bool;

    /// Whether kernels can be compiled for it that read weights through shared memory (`stream_q8`), and may be used.
    fn streams(&self) -> bool;

    /// What multiplies (side, side) bfloat16 matrices by NVIDIA's own library: the first transposed, by the second, into the
    /// third, with memory beside; none where the library is not there.
    fn library_product(&self, side: usize) -> Option<LibraryProduct<'_>> {
        let _ = side;
        None
    }

    /// A moment: after everything so far.
    fn mark(&self) -> Result<Event>;

    /// Whether everything before the moment is done; the errors of that work come out here.
    fn reached(&self, event: Event) -> Result<bool>;

    /// The time between two moments that were reached.
    fn between(&self, from: Event, to: Event) -> Duration;

    /// Forgets a moment.
    fn release(&self, event: Event);
}

/// An error for a device that does not do what it was asked for; `found` is the driver's word.
pub(super) fn failed(what: &str, found: impl std::fmt::Display) -> Error {
    Error::prompt(format!("the CUDA device cannot {what}"))
        .expected("a device that works to the end of the run")
        .found(found)
        .next("run it again, on the processor with --device cpu; what nvidia-smi and the system's log say may tell why")
}
