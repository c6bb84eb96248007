//! RoPE and the cache. One launch rotates the queries and the keys. If the pass has one span, this launch also caches
//! keys and values. Each call for a further tensor adds its work to this launch while it is still in the queue. For one
//! token, the launch of the products that compute queries, keys and values does this work, if it can. If an
//! intermediate value is recorded, each step has its own launch. The bits are the same.

use super::Cuda;
use super::kernels::Kernel;
use super::product::MOST_PRODUCTS;
use super::queue::{Change, Fusable};
use llama_trace_core::error::Result;
use llama_trace_kernels::driver::{Address, Arguments, Launch, pair};

const ROPE: Kernel = Kernel { file: "rope", name: "rope", weight: None };

/// Threads of a block, and the maximum number of pairs of a thread. With [`MANY`] rows or more, a thread takes up to
/// this maximum. With fewer rows, it takes one pair, which has less latency.
const THREADS: u32 = 128;
const PAIRS: usize = 4;
const MANY: usize = 16;

/// Maximum number of tensors of a launch, and the words of a tensor in `struct Turned` of the kernel.
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

/// The tensors of a launch of [`ROPE`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Rotation {
    tensors: [Option<Turned>; MOST],
    /// The addresses of the cosines and sines.
    tables: [Address; 2],
    neighbours: bool,
    head_dim: usize,
    rows: usize,
}

impl Rotation {
    fn tensors(&self) -> impl Iterator<Item = &Turned> {
        self.tensors.iter().flatten()
    }

    /// Adds a tensor. Returns whether there was room.
    fn add(&mut self, turned: Turned) -> bool {
        let free = self.tensors.iter_mut().find(|tensor| tensor.is_none());
        free.map(|free| *free = Some(turned)).is_some()
    }

    /// Returns the arguments of the kernel.
    fn arguments(&self) -> Arguments {
        let mut words = [0; MOST * WORDS];
        for (turned, words) in self.tensors().zip(words.chunks_exact_mut(WORDS)) {
            words.copy_from_slice(&turned.words());
        }
        let tables = self.tables.into_iter().fold(Arguments::new().words(&words), Arguments::address);
        tables.int(usize::from(self.neighbours)).int(self.head_dim)
    }

    /// Returns the number of blocks for a tensor, and the number of tensors.
    fn grid(&self) -> [u32; 2] {
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

/// Rotates `turned` by the cosines and sines at `tables`: `rows` rows of heads, each with `head_dim` values.
pub(super) fn rotate(
    cuda: &Cuda,
    turned: Turned,
    tables: [Address; 2],
    neighbours: bool,
    head_dim: usize,
    rows: usize,
) -> Result<()> {
    if rows == 1 && rotate_products(cuda, turned, tables, neighbours, head_dim) {
        return Ok(());
    }
    let own = Rotation { tensors: [Some(turned), None, None], tables, neighbours, head_dim, rows };
    let joined = cuda.queue.change_rotation(|last| {
        let alike =
            (last.tables, last.neighbours, last.head_dim, last.rows) == (tables, neighbours, head_dim, rows);
        // The tensors of a launch run in parallel: none may read or write the output of another.
        let meets = last.tensors().any(|other| other.out == turned.x || other.x == turned.out);
        alike && !meets && last.add(turned)
    });
    if joined {
        return Ok(());
    }
    let grid = (rows, own.grid()[0] as usize);
    cuda.kernels.launch_fusable(ROPE, grid, THREADS, 0, own.arguments(), Fusable::Rotation(own))
}

/// Makes the last launch also cache the rows (rows, width) at `x`. The pass must have only one span. This is possible
/// if the launch is still in the queue, and either rotates these rows (keys) or already caches the keys that belong to
/// them (values). Otherwise nothing is launched. Returns whether the launch was changed.
pub(super) fn cache(cuda: &Cuda, x: Address, width: usize, rows: usize, to: [Address; 2]) -> bool {
    if rows == 1 && cache_products(cuda, x, width, to) {
        return true;
    }
    cuda.queue.change_rotation(|last| {
        if last.rows != rows || !width.is_multiple_of(last.head_dim) {
            return false;
        }
        let heads = width / last.head_dim;
        let is_rotated = |turned: &&mut Turned| turned.out == x;
        if let Some(keys) = last.tensors.iter_mut().flatten().find(is_rotated) {
            let once = keys.heads == heads && keys.cache[0] == 0;
            if once {
                keys.cache = to;
            }
            return once;
        }
        let has_cached = last.tensors().any(|turned| turned.cache[0] != 0);
        has_cached && last.add(Turned { x, out: 0, cache: to, heads })
    })
}

/// The products of a launch, and what it does with their results: `struct Turns` of the kernels. It rotates the results
/// and caches them, rotated or not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turns {
    products: [Turn; MOST_PRODUCTS],
    /// The addresses of the cosines and sines, and (neighbours, C); 0 if nothing is rotated.
    tables: [Address; 2],
    how: u64,
    /// The address of the span; 0 if nothing is cached.
    span: Address,
    /// The first word of the struct in the launch's arguments.
    at: usize,
    /// Whether the kernel can cache.
    caches: bool,
}

/// One product of [`Turns`].
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    /// The address of the result and its number of values; 0 if there is no such product.
    result: (Address, usize),
    /// The address of the rotated result; 0 if it is not rotated.
    turned: Address,
    /// The address of the cache; 0 if it is not cached.
    cached: Address,
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
    fn product(&self, x: Address, width: usize) -> Option<usize> {
        self.products.iter().position(|product| product.result == (x, width))
    }
}

/// Says whether an earlier launch may be changed, after it was found that `launch` does not compute the wanted tensor.
/// The earlier launch would write to `written`, so `launch` must not use this address.
fn not_of(launch: &Launch, written: Address) -> Change {
    if launch.arguments.all().contains(&written) { Change::Cannot } else { Change::AskBefore }
}

/// Makes the products that compute `turned` also rotate it. This is possible if their launch is still in the queue and
/// only other products follow it. Returns whether the launch was changed.
fn rotate_products(
    cuda: &Cuda,
    turned: Turned,
    tables: [Address; 2],
    neighbours: bool,
    head_dim: usize,
) -> bool {
    let how = pair(usize::from(neighbours), head_dim);
    cuda.queue.change_turns(|launch, turns| {
        let Some(at) = turns.product(turned.x, turned.heads * head_dim) else {
            return not_of(launch, turned.out);
        };
        // No other product may write to this address.
        let alone =
            turns.products.iter().all(|product| ![product.result.0, product.turned].contains(&turned.out));
        let alike = (turns.tables, turns.how) == ([0; 2], 0) || (turns.tables, turns.how) == (tables, how);
        let product = &mut turns.products[at];
        if !alone || !alike || (product.turned, product.cached) != (0, 0) {
            return Change::Cannot;
        }
        product.turned = turned.out;
        (turns.tables, turns.how) = (tables, how);
        Change::Did
    })
}

/// Makes the products that compute or rotate `x` also cache it. This is possible if their launch is still in the queue
/// and only other products follow it. Returns whether the launch was changed.
fn cache_products(cuda: &Cuda, x: Address, width: usize, [cache, span]: [Address; 2]) -> bool {
    cuda.queue.change_turns(|launch, turns| {
        if !turns.caches {
            return Change::Cannot;
        }
        let turned = turns.products.iter().position(|product| product.turned == x);
        let plain = || turns.product(x, width).filter(|at| turns.products[*at].turned == 0);
        let Some(at) = turned.or_else(plain) else { return not_of(launch, cache) };
        let can_share = [0, span].contains(&turns.span);
        let product = &mut turns.products[at];
        if product.result.1 != width || product.cached != 0 || !can_share {
            return Change::Cannot;
        }
        product.cached = cache;
        turns.span = span;
        Change::Did
    })
}
