//! Attention on the device. One token is split along its keys. Several tokens are processed in tiles. Each kv head is
//! read once for all query heads that share it. If the intermediate results are recorded, a separate kernel writes
//! them.

use super::Cuda;
use super::kernels::Kernel;
use super::memory::{Buffer, Memory};
use super::pass::Pass;
use super::stage_readback::{self, ALIGNED};
use llama_trace_core::config::{CacheDtype, Precision};
use llama_trace_core::error::Result;
use llama_trace_engine::backend::{AttentionPart, AttentionShape, AttentionSink, Fetched};
use llama_trace_kernels::driver::{Address, Arguments, MOST_TOGETHER, pair};

/// Maximum number of values of each recorded part on the device at once.
const VALUES_AT_ONCE: usize = 4 << 20;

/// Thread blocks of one token's attention that run on a multiprocessor at the same time. The first number is for
/// kernels that compute up to four heads together. The second is for kernels with more heads, which need more
/// registers.
const BLOCKS_OF_EACH: [usize; 2] = [3, 2];

/// Maximum number of splits of one token's keys.
const MOST_SPLITS: usize = 64;
/// Minimum number of keys of a split.
const TILE: usize = 64;

/// Maximum number of thread blocks in a grid's second dimension.
pub(super) const MOST_BLOCKS: usize = 65_535;

/// The kernels for one token: for heads of up to 64, 128 and 256 channels, each for 1, 2, 4 and 8 heads at once.
const DECODE: [[&str; 4]; 3] = [
    ["attention_decode_1_64", "attention_decode_2_64", "attention_decode_4_64", "attention_decode_8_64"],
    ["attention_decode_1_128", "attention_decode_2_128", "attention_decode_4_128", "attention_decode_8_128"],
    ["attention_decode_1_256", "attention_decode_2_256", "attention_decode_4_256", "attention_decode_8_256"],
];

/// The kernel that writes the intermediate results.
const PARTS: Kernel = Kernel { file: "attention_plain", name: "attention_parts", weight: None };

/// The inputs and the output of one call.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) shape: AttentionShape,
    pub(super) q: &'a Buffer,
    pub(super) pass: &'a Pass,
    pub(super) span: usize,
    pub(super) keys: Address,
    pub(super) values: Address,
    pub(super) out: &'a Buffer,
}

impl Asked<'_> {
    /// Returns `struct Attention` of the kernels.
    fn words(&self) -> [u64; 2] {
        let AttentionShape { heads, kv_heads, head_dim, sees, .. } = self.shape;
        [pair(heads, kv_heads), pair(head_dim, sees.length().unwrap_or(0))]
    }

    fn arguments(&self) -> Arguments {
        Arguments::new()
            .words(&self.words())
            .address(self.q.at(0))
            .address(self.pass.span(self.span))
            .address(self.keys)
    }
}

/// Computes `out` of [`llama_trace_engine::backend::Backend::attention`].
pub(super) fn attention(cuda: &Cuda, asked: Asked<'_>) -> Result<()> {
    let AttentionShape { heads, kv_heads, head_dim, .. } = asked.shape;
    let (tokens, group) = (asked.pass.spans()[asked.span].tokens, heads / kv_heads);
    asked.q.holds(asked.pass.rows() * heads * head_dim);
    asked.out.holds(asked.pass.rows() * heads * head_dim);
    let arguments = asked.arguments().address(asked.values);
    let kernel = |file, name| Kernel { file, name, weight: None };
    if !head_dim.is_multiple_of(8) || head_dim > 256 {
        let arguments = arguments.address(asked.out.at(0));
        let kernel = kernel("attention_plain", "attention_plain");
        return cuda.kernels.launch(kernel, (tokens, heads), 128, 8 * head_dim, arguments);
    }
    if tokens == 1 {
        let (at_once, of_heads) = match group {
            1 => (1, 0),
            2 => (2, 1),
            3 | 4 => (4, 2),
            _ => (8, 3),
        };
        let blocks = kv_heads * group.div_ceil(at_once);
        // The number of splits is the same in every pass. So the sums are always added in the same order.
        let processors = cuda.queue.device().about().multiprocessors as usize;
        let splits = (BLOCKS_OF_EACH[usize::from(at_once > 4)] * processors / blocks).clamp(1, MOST_SPLITS);
        // Launches only the splits that have keys in at least one span of the pass. Their number is rounded up to a
        // power of two, so the size of the launch seldom changes.
        let visible = |keys: usize| asked.shape.sees.length().map_or(keys, |window| keys.min(window));
        let tiles = asked.pass.spans().iter().map(|span| visible(span.keys()).div_ceil(TILE)).max();
        let used = splits.min(tiles.unwrap_or(1).next_power_of_two());
        // If there are enough multiprocessors for one block of each head, each head gets its own block. This has less
        // latency. The sums are the same.
        let each = heads * used * asked.pass.spans().len() <= processors;
        let (blocks, of_heads) = if each { (heads, 0) } else { (blocks, of_heads) };
        let of_channels = head_dim.div_ceil(64).next_power_of_two().ilog2() as usize;
        let name = DECODE[of_channels][of_heads];
        // The lock keeps other calls from growing the scratch memory before the launch is in the queue.
        let mut scratch = cuda.scratch();
        let together = asked.pass.spans().len().min(MOST_TOGETHER);
        let floats = together * splits * heads * (head_dim + 2);
        let (partial, counters) = scratch.attention(&cuda.queue, floats, together * blocks)?;
        let token = [asked.pass.span(asked.span), asked.keys, asked.values];
        let arguments = Arguments::new().first_of(&token).words(&asked.words()).int(splits);
        let arguments = arguments.int(usize::from(asked.pass.is_ahead()));
        let arguments =
            arguments.address(asked.q.at(0)).address(partial).address(counters).address(asked.out.at(0));
        // The launch of the first span becomes the launch of all spans, if no other launch comes between them.
        let all = asked.span == 0 && together == asked.pass.spans().len() && asked.pass.rows() == together;
        let arguments =
            arguments.narrow_too(asked.out.at(0), if all { together * heads * head_dim } else { 0 }, 1);
        let kernel = kernel("attention_decode", name);
        return cuda.kernels.launch_together(kernel, (blocks, used), 128, token.len(), arguments);
    }
    let rows = tokens * group;
    let arguments = arguments.address(asked.out.at(0));
    // If the precision and the cache are bfloat16, tensor cores are used, unless the grid would be too large.
    let few_blocks = rows.div_ceil(64) <= MOST_BLOCKS;
    if cuda.precision == Precision::Bf16 && cuda.cache_dtype == CacheDtype::Bf16 && few_blocks {
        let (name, width) = match head_dim {
            0..=64 => ("attention_prefill_bf16_64", 64),
            65..=128 => ("attention_prefill_bf16_128", 128),
            _ => ("attention_prefill_bf16_256", 256),
        };
        let kernel = kernel("attention_bf16", name);
        let shared = 2 * (64 + 128) * (width + 8);
        // With several spans, each launch writes its own rows.
        let count = if asked.pass.spans().len() == 1 { tokens * heads * head_dim } else { 0 };
        let arguments = arguments.narrow_too(asked.out.at(0), count, 1);
        return cuda.kernels.launch(kernel, (kv_heads, rows.div_ceil(64)), 128, shared, arguments);
    }
    if splits(cuda, asked.shape) && rows.div_ceil(128) <= MOST_BLOCKS {
        let (name, width) =
            if head_dim <= 64 { ("attention_split_64", 64) } else { ("attention_split_128", 128) };
        let shared = (512 * width + 2048).max(4 * (96 * (width + 4) + 64 * 36));
        let kernel = kernel("attention_split", name);
        return cuda.kernels.launch(kernel, (kv_heads, rows.div_ceil(128)), 256, shared, arguments);
    }
    let (name, width, at_once) = match head_dim {
        0..=64 => ("attention_prefill_64", 64, 64),
        65..=128 => ("attention_prefill_128", 128, 64),
        _ => ("attention_prefill_256", 256, 32),
    };
    let shared = 4 * ((at_once + 32) * (width + 4) + at_once * 36);
    let kernel = kernel("attention_prefill", name);
    cuda.kernels.launch(kernel, (rows.div_ceil(at_once), kv_heads), 256, shared, arguments)
}

/// Whether attention over several tokens uses tensor cores with split operands.
pub(super) fn splits(cuda: &Cuda, shape: AttentionShape) -> bool {
    cuda.precision != Precision::Bf16 && shape.head_dim <= 128 && cuda.queue.device().splits_attention()
}

/// Passes to `sink` the parts that it wants.
pub(super) fn parts(cuda: &Cuda, asked: Asked<'_>, sink: &mut dyn AttentionSink) -> Result<()> {
    repeat_kv(cuda, asked, AttentionPart::Keys, asked.keys, sink)?;
    repeat_kv(cuda, asked, AttentionPart::Values, asked.values, sink)?;
    let all = [AttentionPart::Qk, AttentionPart::Scores, AttentionPart::MaskedScores, AttentionPart::Softmax];
    let wanted = all.map(|part| sink.wants(part));
    if !wanted.contains(&true) {
        return Ok(());
    }
    let AttentionShape { heads, head_dim, .. } = asked.shape;
    let (tokens, keys) = (asked.pass.spans()[asked.span].tokens, asked.pass.spans()[asked.span].keys());
    let at_once = (VALUES_AT_ONCE / (heads * keys)).clamp(1, tokens);
    let part = heads * at_once * keys;
    if sink.waits() && at_once == tokens && fetch_parts(cuda, asked, (&all, &wanted), part, sink)? {
        return Ok(());
    }
    let places =
        wanted.map(|wanted| if wanted { Memory::new(&cuda.queue, part * 4).map(Some) } else { Ok(None) });
    let [qk, scores, masked, softmax] = places;
    let places = [qk?, scores?, masked?, softmax?];
    let mut values = vec![0.0_f32; part];
    for first in (0..tokens).step_by(at_once) {
        cuda.stop.check()?;
        let rows = at_once.min(tokens - first);
        let mut arguments = asked.arguments().int(first).int(rows);
        for place in &places {
            arguments = arguments.address(place.as_ref().map_or(0, Memory::at));
        }
        cuda.kernels.launch(PARTS, (rows, heads), 128, 4 * head_dim, arguments)?;
        for (part, place) in all.iter().zip(&places) {
            let Some(place) = place else { continue };
            let values = &mut values[..heads * rows * keys];
            place.read(0, bytemuck::cast_slice_mut(values))?;
            for (head, values) in values.chunks_exact(rows * keys).enumerate() {
                let row = head * tokens + first;
                sink.rows(*part, row..row + rows, values)?;
            }
        }
    }
    Ok(())
}

/// Queues a kernel that writes the wanted parts, `values` values each, to memory that the host reads at the end of the
/// pass. Returns whether there was room for all of them.
fn fetch_parts(
    cuda: &Cuda,
    asked: Asked<'_>,
    (all, wanted): (&[AttentionPart; 4], &[bool; 4]),
    values: usize,
    sink: &mut dyn AttentionSink,
) -> Result<bool> {
    let AttentionShape { heads, head_dim, .. } = asked.shape;
    let tokens = asked.pass.spans()[asked.span].tokens;
    let count = wanted.iter().filter(|wanted| **wanted).count();
    let each = (values * 4).next_multiple_of(ALIGNED);
    let Some((Fetched(places), first)) =
        stage_readback::place(cuda, &asked.pass.stage_readback, count * each)?
    else {
        return Ok(false);
    };
    let mut arguments = asked.arguments().int(0).int(tokens);
    let (mut next, mut parts) = (0, Vec::new());
    for (part, wanted) in all.iter().zip(wanted) {
        arguments = arguments.address(if *wanted { first + next as u64 } else { 0 });
        if *wanted {
            parts.push((*part, places.start + next));
            next += each;
        }
    }
    cuda.kernels.launch_apart(PARTS, (tokens, heads), 128, 4 * head_dim, arguments)?;
    parts.into_iter().for_each(|(part, at)| sink.fetched(part, Fetched(at..at + values * 4)));
    Ok(true)
}

/// Repeats the cache (K, G, C) for every query head, and passes the result (K, H, C) to the sink, if it wants it.
fn repeat_kv(
    cuda: &Cuda,
    asked: Asked<'_>,
    part: AttentionPart,
    cache: Address,
    sink: &mut dyn AttentionSink,
) -> Result<()> {
    if !sink.wants(part) {
        return Ok(());
    }
    let AttentionShape { heads, kv_heads, head_dim, .. } = asked.shape;
    let (keys, width) = (asked.pass.spans()[asked.span].keys(), heads * head_dim);
    let at_once = (VALUES_AT_ONCE / width).clamp(1, keys);
    let kernel = Kernel { file: "cache", name: "repeat_kv", weight: None };
    let from = |first| Arguments::new().address(cache).int(first).int(heads).int(kv_heads).int(head_dim);
    let place = match sink.waits() && at_once == keys {
        true => stage_readback::place(cuda, &asked.pass.stage_readback, keys * width * 4)?,
        false => None,
    };
    if let Some((fetched, out)) = place {
        cuda.kernels.launch_apart(kernel, (keys, 1), 128, 0, from(0).address(out))?;
        sink.fetched(part, fetched);
        return Ok(());
    }
    let out = Memory::new(&cuda.queue, at_once * width * 4)?;
    let mut values = vec![0.0_f32; at_once * width];
    for first in (0..keys).step_by(at_once) {
        cuda.stop.check()?;
        let now = at_once.min(keys - first);
        cuda.kernels.launch(kernel, (now, 1), 128, 0, from(first).address(out.at()))?;
        let values = &mut values[..now * width];
        out.read(0, bytemuck::cast_slice_mut(values))?;
        sink.rows(part, first * heads..(first + now) * heads, values)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use half::bf16;

    /// Checks a claim of `attention_bf16.cu` about its scores. Each tested value has one of the 128 significands of
    /// bfloat16. Every other value differs from one of these only by its sign and a power of two.
    #[test]
    fn to_multiply_by_the_inverse_root_and_round_is_to_divide_and_round() {
        for head_dim in (8..=256_u16).step_by(8) {
            let root = f32::from(head_dim).sqrt();
            let inverse = 1.0 / root;
            for i in 0..128_u8 {
                let x = 1.0 + f32::from(i) / 128.0;
                assert_eq!(bf16::from_f32(x * inverse), bf16::from_f32(x / root), "{x} / √{head_dim}");
            }
        }
    }
}
