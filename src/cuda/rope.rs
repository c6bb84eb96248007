//! RoPE and the cache. One launch rotates the queries and the keys. If the pass has one span, this launch also caches
//! keys and values. Each call for a further tensor adds its work to this launch while it is still in the queue. For one
//! token, the launch of the products that compute queries, keys and values does this work, if it can. If an
//! intermediate value is recorded, each step has its own launch. The bits are the same.

use super::Cuda;
use super::kernels::Kernel;
use super::product::{MOST_PRODUCTS, PRODUCT_WORDS, TURNS_WORDS, turns_of};
use super::queue::Change;
use llama_trace_core::config::CacheDtype;
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
#[derive(Clone, Copy)]
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

/// Number of thread blocks for `heads` heads of each row.
fn blocks(heads: usize, head_dim: usize, rows: usize) -> u32 {
    let of_each = if rows < MANY { 1 } else { PAIRS };
    u32::try_from((heads * head_dim / 2).div_ceil(THREADS as usize * of_each)).unwrap_or(u32::MAX)
}

/// Adds a tensor to a launch. Returns whether there was room.
fn add(launch: &mut Launch, turned: Turned, head_dim: usize) -> bool {
    let count = launch.grid[2] as usize;
    if count == MOST {
        return false;
    }
    launch.arguments.all_mut()[count * WORDS..][..WORDS].copy_from_slice(&turned.words());
    launch.grid[1] = launch.grid[1].max(blocks(turned.heads, head_dim, launch.grid[0] as usize));
    launch.grid[2] += 1;
    true
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
    let mut words = [0; MOST * WORDS];
    words[..WORDS].copy_from_slice(&turned.words());
    let tables = tables.into_iter().fold(Arguments::new().words(&words), Arguments::address);
    let arguments = tables.int(usize::from(neighbours)).int(head_dim);
    let joined = cuda.kernels.change(ROPE, |last| {
        let alike = last.grid[0] as usize == rows
            && last.arguments.all()[MOST * WORDS..] == arguments.all()[MOST * WORDS..];
        // The tensors of a launch run in parallel: none may read or write the output of another.
        let meets = |other: &[u64]| other[1] == turned.x || other[0] == turned.out;
        let apart = !last.arguments.all()[..MOST * WORDS].chunks(WORDS).any(meets);
        alike && apart && add(last, turned, head_dim)
    })?;
    if joined {
        return Ok(());
    }
    let blocks = blocks(turned.heads, head_dim, rows) as usize;
    cuda.kernels.launch(ROPE, (rows, blocks), THREADS, 0, arguments)
}

/// Makes the last launch also cache the rows (rows, width) at `x`. The pass must have only one span. This is possible
/// if the launch is still in the queue, and either rotates these rows (keys) or already caches the keys that belong to
/// them (values). Otherwise nothing is launched. Returns whether the launch was changed.
pub(super) fn cache(cuda: &Cuda, x: Address, width: usize, rows: usize, to: [Address; 2]) -> Result<bool> {
    if rows == 1 && cache_products(cuda, x, width, to) {
        return Ok(true);
    }
    cuda.kernels.change(ROPE, |last| {
        let (count, words) = (last.grid[2] as usize, last.arguments.all_mut());
        let head_dim = words[words.len() - 1] as usize;
        let of = |one: &[u64]| Turned {
            x: one[0],
            out: one[1],
            cache: [one[2], one[3]],
            heads: one[4] as u32 as usize,
        };
        let all = words[..count * WORDS].chunks_exact_mut(WORDS);
        if last.grid[0] as usize != rows || !width.is_multiple_of(head_dim) {
            return false;
        }
        let heads = width / head_dim;
        let mut has_cached = false;
        for one in all {
            let turned = of(one);
            has_cached |= turned.cache[0] != 0;
            if turned.out == x {
                let once = turned.heads == heads && turned.cache[0] == 0;
                if once {
                    one.copy_from_slice(&Turned { cache: to, ..turned }.words());
                }
                return once;
            }
        }
        has_cached && add(last, Turned { x, out: 0, cache: to, heads }, head_dim)
    })
}

/// For a launch of products that can rotate and cache their results: the words of the products, and the words of the
/// rotation. The words of the rotation are (turned, cached) for each product, then cos, sin, the span, and (neighbours,
/// C).
fn of_products(kernel: Kernel, launch: &mut Launch) -> Option<(&[u64], &mut [u64; TURNS_WORDS])> {
    let (before, turns) = launch.arguments.all_mut().split_at_mut(turns_of(kernel)?);
    let turns = turns.try_into().unwrap_or_else(|_| unreachable!("the launch has these words last"));
    Some((&before[..MOST_PRODUCTS * PRODUCT_WORDS], turns))
}

/// Says whether an earlier launch may be changed, after it was found that `launch` does not compute the wanted tensor.
/// The earlier launch would write to `written`, so `launch` must not use this address.
fn not_of(launch: &Launch, written: Address) -> Change {
    if launch.arguments.all().contains(&written) { Change::Cannot } else { Change::AskBefore }
}

/// The index of the product that computes the `width` values at `x`.
fn product_at(products: &[u64], x: Address, width: usize) -> Option<usize> {
    products.chunks_exact(PRODUCT_WORDS).position(|words| words[6] == x && words[3] as u32 as usize == width)
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
    cuda.kernels.change_recent(|kernel, last| {
        let Some((products, turns)) = of_products(kernel, last) else { return Change::Cannot };
        let Some(at) = product_at(products, turned.x, turned.heads * head_dim) else {
            return not_of(last, turned.out);
        };
        let [cos, sin] = tables;
        let (how, shape) = (pair(usize::from(neighbours), head_dim), [turns[6], turns[7], turns[9]]);
        // No other product may write to this address.
        let alone = products.chunks_exact(PRODUCT_WORDS).all(|words| words[6] != turned.out)
            && (0..MOST_PRODUCTS).all(|other| turns[2 * other] != turned.out);
        let can = alone && turns[2 * at..][..2] == [0; 2] && (shape == [0; 3] || shape == [cos, sin, how]);
        if !can {
            return Change::Cannot;
        }
        turns[2 * at] = turned.out;
        [turns[6], turns[7], turns[9]] = [cos, sin, how];
        Change::Did
    })
}

/// Makes the products that compute or rotate `x` also cache it. This is possible if their launch is still in the queue
/// and only other products follow it. Returns whether the launch was changed.
fn cache_products(cuda: &Cuda, x: Address, width: usize, [cache, span]: [Address; 2]) -> bool {
    cuda.kernels.change_recent(|kernel, last| {
        let Some((products, turns)) = of_products(kernel, last) else { return Change::Cannot };
        // The bfloat16 products cache only in bfloat16.
        if kernel.file == "matvec_bf16" && cuda.cache_dtype != CacheDtype::Bf16 {
            return Change::Cannot;
        }
        let turned = (0..MOST_PRODUCTS).find(|at| turns[2 * at] == x);
        let Some(at) = turned.or_else(|| product_at(products, x, width).filter(|at| turns[2 * at] == 0))
        else {
            return not_of(last, cache);
        };
        let outputs = products[at * PRODUCT_WORDS + 3] as u32 as usize;
        let can = outputs == width && turns[2 * at + 1] == 0 && [0, span].contains(&turns[8]);
        if !can {
            return Change::Cannot;
        }
        [turns[2 * at + 1], turns[8]] = [cache, span];
        Change::Did
    })
}
