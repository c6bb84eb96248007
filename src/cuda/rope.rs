//! RoPE and the cache. One launch rotates the queries and the keys. If the pass has one span, this launch also caches
//! keys and values. Each call for a further tensor adds its work to this launch while it is still in the queue. For one
//! token, the launch of the products that compute queries, keys and values does this work, if it can. If an
//! intermediate value is recorded, each step has its own launch. The bits are the same.

use super::Cuda;
use super::fusable::{Fusable, Rotation, THREADS, Turned};
use super::kernels::Kernel;
use super::queue::Change;
use llama_trace_core::error::Result;
use llama_trace_kernels::driver::{Address, Launch, pair};

const ROPE: Kernel = Kernel { file: "rope", name: "rope", weight: None };

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
