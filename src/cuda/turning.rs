//! RoPE and the cache: queries and keys are turned by one launch, which also caches keys and values where the pass is one
//! span's. It grows as these are asked for one after the other. Of one token that is the launch of the products that make
//! them, where it can. Where somebody looks on in between, each is a launch of its own, with the same bits.

use super::Cuda;
use super::driver::{Address, Arguments, Launch, pair};
use super::kernels::Kernel;
use super::product::{MOST_PRODUCTS, PRODUCT_WORDS, TURNS_WORDS, turns_of};
use super::queue::Change;
use llama_trace_core::config::CacheDtype;
use llama_trace_core::error::Result;

const ROPE: Kernel = Kernel { file: "rope", name: "rope", weight: None };

/// Threads of a block, and the pairs of each at most: of many rows a thread has as many, of a few one, which is sooner done.
const THREADS: u32 = 128;
const PAIRS: usize = 4;
const MANY: usize = 16;

/// How many a launch turns at most, and the words of each in `struct Turned` of the kernel.
const MOST: usize = 3;
const WORDS: usize = 5;

/// What is turned, or only cached.
#[derive(Clone, Copy)]
pub(super) struct Turned {
    pub(super) x: Address,
    /// 0 for what is only cached.
    pub(super) out: Address,
    /// Where it is cached, and of which span; 0 where it is not.
    pub(super) cache: [Address; 2],
    pub(super) heads: usize,
}

impl Turned {
    fn words(self) -> [u64; WORDS] {
        [self.x, self.out, self.cache[0], self.cache[1], pair(self.heads, 0)]
    }
}

/// Blocks for so many heads of each of the rows.
fn blocks(heads: usize, head_dim: usize, rows: usize) -> u32 {
    let of_each = if rows < MANY { 1 } else { PAIRS };
    u32::try_from((heads * head_dim / 2).div_ceil(THREADS as usize * of_each)).unwrap_or(u32::MAX)
}

/// One more in a launch; whether there was room.
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

/// Has `turned` be turned by the tables at `cos` and `sin`, in `rows` rows of heads of `head_dim` values.
pub(super) fn turn(
    cuda: &Cuda,
    turned: Turned,
    tables: [Address; 2],
    neighbours: bool,
    head_dim: usize,
    rows: usize,
) -> Result<()> {
    if rows == 1 && turn_products(cuda, turned, tables, neighbours, head_dim) {
        return Ok(());
    }
    let mut words = [0; MOST * WORDS];
    words[..WORDS].copy_from_slice(&turned.words());
    let tables = tables.into_iter().fold(Arguments::new().words(&words), Arguments::address);
    let arguments = tables.int(usize::from(neighbours)).int(head_dim);
    let joined = cuda.kernels.change(ROPE, |last| {
        let alike = last.grid[0] as usize == rows
            && last.arguments.all()[MOST * WORDS..] == arguments.all()[MOST * WORDS..];
        // What another of them makes is not there yet, and what another reads is still wanted.
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

/// Has the rows (rows, width) at `x` be cached, of the only span of the pass, by the launch that waits last, where that
/// turns them or has just cached their keys; whether it does.
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

/// Of a launch of products that can turn and cache their results: the words of the products, and those of what is made of them: for
/// each (turned, cached), then cos, sin, the span, and (neighbours, C).
fn of_products(kernel: Kernel, launch: &mut Launch) -> Option<(&[u64], &mut [u64; TURNS_WORDS])> {
    let (before, turns) = launch.arguments.all_mut().split_at_mut(turns_of(kernel)?);
    let turns = turns.try_into().unwrap_or_else(|_| unreachable!("the launch has these words last"));
    Some((&before[..MOST_PRODUCTS * PRODUCT_WORDS], turns))
}

/// For a launch of products that does not make what is asked for: one before it may, where this one has nothing to do with what
/// is written then.
fn not_of(launch: &Launch, written: Address) -> Change {
    if launch.arguments.all().contains(&written) { Change::Cannot } else { Change::AskBefore }
}

/// The number of the product that gives `width` values at `x`.
fn product_at(products: &[u64], x: Address, width: usize) -> Option<usize> {
    products.chunks_exact(PRODUCT_WORDS).position(|words| words[6] == x && words[3] as u32 as usize == width)
}

/// Has `turned` be turned by the products that make it, where their launch waits and other products alone come after it; whether
/// they do.
fn turn_products(
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
        // Nobody else writes there.
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

/// Has what lies at `x` be cached by the products that make it, or turn it, where their launch waits and other products alone
/// come after it; whether they do.
fn cache_products(cuda: &Cuda, x: Address, width: usize, [cache, span]: [Address; 2]) -> bool {
    cuda.kernels.change_recent(|kernel, last| {
        let Some((products, turns)) = of_products(kernel, last) else { return Change::Cannot };
        // Those of bfloat16 cache in nothing else.
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
