//! How later operations can share a launch that is still in the queue: the description of the launch's work, from which
//! the words of its arguments are written again after a change.

use llama_trace_kernels::driver::{Address, Arguments, Launch, pair};

/// How a later operation can share a launch, as long as it is in the queue.
///
/// The later operation withdraws the last launch and queues one that does the work of both, or it adds its own work to
/// the launch. In addition, a launch may offer extras ([`Arguments::extra`]).
#[derive(Clone, Copy, Debug)]
pub(super) enum Fusable {
    /// Not at all.
    No,
    /// Can be withdrawn: the norm of one row, written to `out`.
    Norm { norm: Norm, out: Address },
    /// Can be withdrawn: the sum of two inputs of `count` values.
    Add { inputs: [Address; 2], count: usize, sum: Address },
    /// Can be withdrawn: `count` values of silu(gate), and of hidden = silu(gate) · up.
    SiluMul { inputs: [Address; 2], count: usize, silu: Address, hidden: Address },
    /// Can rotate and cache further tensors.
    Rotation(Rotation),
    /// Products that can rotate and cache their results.
    Products(Turns),
}

/// A norm of rows of `width` values, the first at `x`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Norm {
    pub(super) x: Address,
    pub(super) weight: Address,
    pub(super) eps: f32,
    pub(super) width: usize,
}

/// Threads of a block of the rotation's kernel, and the maximum number of pairs of a thread. With [`MANY`] rows or more, a thread takes up to
/// this maximum. With fewer rows, it takes one pair, which has less latency.
pub(super) const THREADS: u32 = 128;
const PAIRS: usize = 4;
const MANY: usize = 16;

/// Maximum number of tensors of such a launch, and the words of a tensor in `struct Turned` of the kernel.
const MOST: usize = 3;
const WORDS: usize = 5;

/// A tensor that is rotated, or only cached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turned {
    pub(super) x: Address,
    /// 0 if it is only cached.
    pub(super) out: Address,
    /// The addresses of its cache and of the span; 0 if it is not cached.
    pub(super) cache: [Address; 2],
    pub(super) heads: usize,
}

impl Turned {
    fn words(self) -> [u64; WORDS] {
        [self.x, self.out, self.cache[0], self.cache[1], pair(self.heads, 0)]
    }
}

/// The tensors of a launch that rotates.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rotation {
    pub(super) tensors: [Option<Turned>; MOST],
    /// The addresses of the cosines and sines.
    pub(super) tables: [Address; 2],
    pub(super) neighbours: bool,
    pub(super) head_dim: usize,
    pub(super) rows: usize,
}

impl Rotation {
    pub(super) fn tensors(&self) -> impl Iterator<Item = &Turned> {
        self.tensors.iter().flatten()
    }

    /// Adds a tensor. Returns whether there was room.
    pub(super) fn add(&mut self, turned: Turned) -> bool {
        let free = self.tensors.iter_mut().find(|tensor| tensor.is_none());
        free.map(|free| *free = Some(turned)).is_some()
    }

    /// Returns the arguments of the kernel.
    pub(super) fn arguments(&self) -> Arguments {
        let mut words = [0; MOST * WORDS];
        for (turned, words) in self.tensors().zip(words.chunks_exact_mut(WORDS)) {
            words.copy_from_slice(&turned.words());
        }
        let tables = self.tables.into_iter().fold(Arguments::new().words(&words), Arguments::address);
        tables.int(usize::from(self.neighbours)).int(self.head_dim)
    }

    /// Returns the number of blocks for a tensor, and the number of tensors.
    pub(super) fn grid(&self) -> [u32; 2] {
        let of_each = if self.rows < MANY { 1 } else { PAIRS };
        let blocks = |heads: usize| (heads * self.head_dim / 2).div_ceil(THREADS as usize * of_each);
        let most = self.tensors().map(|turned| blocks(turned.heads)).max().unwrap_or(0);
        [u32::try_from(most).unwrap_or(u32::MAX), self.tensors().count() as u32]
    }

    /// Writes the tensors into their launch.
    pub(super) fn write(&self, launch: &mut Launch) {
        launch.arguments = self.arguments();
        [launch.grid[1], launch.grid[2]] = self.grid();
    }
}

/// Maximum number of products of a launch.
pub(super) const MOST_PRODUCTS: usize = 3;

/// The products of a launch, and what it does with their results: `struct Turns` of the kernels. It rotates the results
/// and caches them, rotated or not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turns {
    pub(super) products: [Turn; MOST_PRODUCTS],
    /// The addresses of the cosines and sines, and (neighbours, C); 0 if nothing is rotated.
    pub(super) tables: [Address; 2],
    pub(super) how: u64,
    /// The address of the span; 0 if nothing is cached.
    pub(super) span: Address,
    /// The first word of the struct in the launch's arguments.
    at: usize,
    /// Whether the kernel can cache.
    pub(super) caches: bool,
}

/// One product of [`Turns`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turn {
    /// The address of the result and its number of values; 0 if there is no such product.
    pub(super) result: (Address, usize),
    /// The address of the rotated result; 0 if it is not rotated.
    pub(super) turned: Address,
    /// The address of the cache; 0 if it is not cached.
    pub(super) cached: Address,
}

impl Turns {
    /// Neither rotates nor caches these results. The struct begins at word `at` of the arguments.
    pub(super) fn new(results: impl Iterator<Item = (Address, usize)>, at: usize, caches: bool) -> Self {
        let mut products = [Turn::default(); MOST_PRODUCTS];
        products.iter_mut().zip(results).for_each(|(product, result)| product.result = result);
        Self { products, tables: [0; 2], how: 0, span: 0, at, caches }
    }

    /// Returns `struct Turns` of the kernels: (turned, cached) for each product, then cos, sin, the span, and
    /// (neighbours, C).
    pub(super) fn words(&self) -> [u64; 2 * MOST_PRODUCTS + 4] {
        let mut words = [0; 2 * MOST_PRODUCTS + 4];
        for (product, words) in self.products.iter().zip(words.chunks_exact_mut(2)) {
            words.copy_from_slice(&[product.turned, product.cached]);
        }
        let [cos, sin] = self.tables;
        words[2 * MOST_PRODUCTS..].copy_from_slice(&[cos, sin, self.span, self.how]);
        words
    }

    /// Writes the struct into its launch.
    pub(super) fn write(&self, launch: &mut Launch) {
        let words = self.words();
        launch.arguments.all_mut()[self.at..][..words.len()].copy_from_slice(&words);
    }

    /// Finds the product that computes the `width` values at `x`.
    pub(super) fn product(&self, x: Address, width: usize) -> Option<usize> {
        self.products.iter().position(|product| product.result == (x, width))
    }
}
