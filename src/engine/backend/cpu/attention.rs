//! Attention on the CPU. Each work unit is one (block of query rows, kv head). All rows of the unit, and all query
//! heads that share the kv head, use a block of keys or values before the next block is read. So each block is read
//! from memory once.

use std::ops::Range;

use super::cache::{Cache, Head};
use super::kernel::Aligned;
use super::{Cpu, MIN_PARALLEL, memory};
use crate::backend::{AttentionPart, AttentionShape, AttentionSink, Span};
use llama_trace_core::error::Result;
use llama_trace_core::ops::attention::{kv_head, mask, scale_by};
use llama_trace_core::ops::elementwise;
use llama_trace_core::stop::Stop;
use llama_trace_core::threads;
use llama_trace_core::threads::prelude::*;

/// Maximum number of query rows in a block. There are fewer if their scores would take too much memory.
const ROWS: usize = 16;

/// Number of work units for each thread, if there are enough rows.
const PARTS: usize = 4;

/// Number of scores of a block of query rows that fit into the L2 cache together with the keys.
const SCORES: usize = 1 << 17;

/// Number of keys or values in a block. All rows and heads of a unit use the block before the next one is read.
const KEYS_AT_ONCE: usize = 128;

/// The intermediate results of one (row, head) that a sink wants, K values each.
#[derive(Default)]
struct Parts {
    qk: Option<Vec<f32>>,
    scores: Option<Vec<f32>>,
    capped_scores: Option<Vec<f32>>,
    masked_scores: Option<Vec<f32>>,
    softmax: Option<Vec<f32>>,
}

/// The intermediate results that a sink wants.
#[derive(Clone, Copy)]
struct Wanted {
    qk: bool,
    scores: bool,
    capped_scores: bool,
    masked_scores: bool,
    softmax: bool,
}

/// Scratch memory of one thread.
#[derive(Default)]
struct Scratch {
    /// (rows, heads of the group, K)
    scores: Vec<f32>,
    /// A block of keys or values as float32.
    widened: Vec<f32>,
    /// A block of keys, packed.
    packed: Vec<Aligned>,
}

/// See [`crate::backend::Backend::attention`]. `q` and `out` are the rows of `span`.
#[expect(clippy::too_many_arguments, reason = "as the operation's")]
pub(super) fn attention(
    cpu: &Cpu,
    shape: AttentionShape,
    span: Span,
    q: &[f32],
    keys: &Cache,
    values: &Cache,
    out: &mut [f32],
    sink: &mut dyn AttentionSink,
) -> Result<()> {
    let Cpu { kernel, precision, stop, .. } = cpu;
    let (kernel, precision) = (*kernel, *precision);
    let AttentionShape { heads, kv_heads, head_dim, sees, scale, cap } = shape;
    let (Span { start, tokens, .. }, all_keys) = (span, span.keys());
    repeat_kv(shape, all_keys, AttentionPart::Keys, keys, sink, stop)?;
    repeat_kv(shape, all_keys, AttentionPart::Values, values, sink, stop)?;
    let wanted = Wanted {
        qk: sink.wants(AttentionPart::Qk),
        scores: sink.wants(AttentionPart::Scores),
        capped_scores: cap.is_some() && sink.wants(AttentionPart::CappedScores),
        masked_scores: sink.wants(AttentionPart::MaskedScores),
        softmax: sink.wants(AttentionPart::Softmax),
    };
    let round = |values: &mut [f32]| kernel.isa.round(precision, values);
    let group = heads / kv_heads;
    // With blocks of at most this size, every thread gets several units.
    let shared_out = (tokens * kv_heads).div_ceil(PARTS * threads::count());
    let block = (SCORES / (group * all_keys)).clamp(1, ROWS).min(shared_out);

    // Computes one unit: a block of query rows, for the heads of one kv head. `out` has a slice (group, C) for each
    // row.
    let unit = |scratch: &mut Scratch, unit: usize, out: &mut [&mut [f32]]| -> Result<Vec<Parts>> {
        stop.check()?;
        let (first_row, kv_head) = (unit / kv_heads * block, unit % kv_heads);
        let head = Head { stride: kv_heads * head_dim, at: kv_head * head_dim, width: head_dim };
        let visible = |row: usize| sees.keys(start + first_row + row);
        // Keys after the causal edge or before the window are computed only if the sink wants them.
        let computed =
            |row| if wanted.qk || wanted.scores || wanted.capped_scores { 0..all_keys } else { visible(row) };
        let last_row = out.len() - 1;
        let Scratch { scores, widened, packed } = scratch;
        let count = out.len() * group * all_keys;
        memory::grow(scores, count)?;
        scores.resize(count, 0.0);

        for keys_now in blocks(computed(0).start..computed(last_row).end) {
            let (keys, stride) = keys.rows(kernel, keys_now.clone(), head, widened);
            let pack = kernel.isa.packs_keys(out.len() * group, head_dim);
            if pack {
                kernel.isa.pack_keys(keys, stride, keys_now.len(), head_dim, packed);
            }
            for (row, scores) in scores.chunks_exact_mut(group * all_keys).enumerate() {
                let part = overlap(&computed(row), &keys_now);
                let keys = &keys[((part.start - keys_now.start) * stride).min(keys.len())..];
                let first = ((first_row + row) * heads + kv_head * group) * head_dim;
                let queries = &q[first..first + group * head_dim];
                if pack {
                    // The scores of the group's heads begin at the part's first key. The slice ends where the scores of
                    // the last head end.
                    let of_block = part.start - keys_now.start..part.end - keys_now.start;
                    kernel.isa.qk_packed(
                        queries,
                        head_dim,
                        packed,
                        &of_block,
                        (&mut scores[part.start..], all_keys),
                    );
                    continue;
                }
                let queries = queries.chunks_exact(head_dim);
                for (query, scores) in queries.zip(scores.chunks_exact_mut(all_keys)) {
                    kernel.isa.qk(query, keys, stride, &mut scores[part.clone()]);
                }
            }
        }

        let keep = |wanted: bool, row: &[f32]| wanted.then(|| row.to_vec());
        let parts = scores.chunks_exact_mut(all_keys).enumerate().map(|(i, row)| {
            let (visible, computed) = (visible(i / group), computed(i / group));
            round(&mut row[computed.clone()]);
            let qk = keep(wanted.qk, row);
            match scale {
                None => kernel.isa.scale(&mut row[computed.clone()], head_dim),
                Some(_) => scale_by(&mut row[computed.clone()], head_dim, scale),
            }
            round(&mut row[computed.clone()]);
            let scores = keep(wanted.scores, row);
            if let Some(at) = cap {
                elementwise::cap(at, precision, &mut row[computed.clone()]);
            }
            let capped_scores = keep(wanted.capped_scores, row);
            if wanted.masked_scores {
                mask(row, visible.clone());
            }
            let masked_scores = keep(wanted.masked_scores, row);
            kernel.isa.softmax(&mut row[visible.clone()]);
            round(&mut row[visible.clone()]);
            // Outside the visible range, e^−∞ is 0. Only the sink reads the rest of the row.
            if wanted.softmax {
                row[..visible.start].fill(0.0);
                row[visible.end..].fill(0.0);
            }
            Parts { qk, scores, capped_scores, masked_scores, softmax: keep(wanted.softmax, row) }
        });
        let parts = parts.collect();

        for out in out.iter_mut() {
            out.fill(0.0);
        }
        for keys_now in blocks(visible(0).start..visible(last_row).end) {
            let (values, stride) = values.rows(kernel, keys_now.clone(), head, widened);
            for (row, (scores, out)) in scores.chunks_exact(group * all_keys).zip(out.iter_mut()).enumerate()
            {
                let part = overlap(&visible(row), &keys_now);
                let values = &values[((part.start - keys_now.start) * stride).min(values.len())..];
                let weights = &scores[part.start.min(scores.len())..];
                kernel.isa.mix(weights, (part.len(), all_keys), values, stride, head_dim, out);
            }
        }
        out.iter_mut().for_each(|out| round(out));
        Ok(parts)
    };

    // Splits the output among the units: each unit gets a slice of every row of its block.
    let mut units: Vec<Vec<&mut [f32]>> = Vec::new();
    units.resize_with(tokens.div_ceil(block) * kv_heads, || Vec::with_capacity(block));
    let chunks = out.chunks_exact_mut(group * head_dim);
    for (i, out) in chunks.enumerate() {
        units[i / kv_heads / block * kv_heads + i % kv_heads].push(out);
    }
    let recording =
        wanted.qk || wanted.scores || wanted.capped_scores || wanted.masked_scores || wanted.softmax;
    if !recording && tokens * heads * head_dim * all_keys < MIN_PARALLEL {
        let mut scratch = Scratch::default();
        for (i, out) in units.iter_mut().enumerate() {
            unit(&mut scratch, i, out)?;
        }
    } else if !recording {
        let units = units.par_iter_mut().enumerate();
        units.try_for_each_init(Scratch::default, |scratch, (i, out)| unit(scratch, i, out).map(drop))?;
    } else {
        for (i, units) in units.chunks_mut(kv_heads).enumerate() {
            let parts: Vec<Vec<Parts>> = (units.par_iter_mut().enumerate())
                .map_init(Scratch::default, |scratch, (head, out)| unit(scratch, i * kv_heads + head, out))
                .collect::<Result<_>>()?;
            for (kv_head, parts) in parts.into_iter().enumerate() {
                for (j, parts) in parts.into_iter().enumerate() {
                    let (t, head) = (i * block + j / group, kv_head * group + j % group);
                    hand_over(parts, head * tokens + t, sink)?;
                }
            }
        }
    }
    Ok(())
}

/// Splits `range` into blocks of [`KEYS_AT_ONCE`].
fn blocks(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(KEYS_AT_ONCE).map(move |first| first..(first + KEYS_AT_ONCE).min(range.end))
}

/// The intersection of two ranges. If it is empty, the result is an empty range inside `b`.
fn overlap(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    let start = a.start.clamp(b.start, b.end);
    start..a.end.clamp(start, b.end)
}

/// Hands the intermediate results of one (row, head) to the sink, as row `row` of (H, T, K).
fn hand_over(parts: Parts, row: usize, sink: &mut dyn AttentionSink) -> Result<()> {
    let parts = [
        (AttentionPart::Qk, parts.qk),
        (AttentionPart::Scores, parts.scores),
        (AttentionPart::CappedScores, parts.capped_scores),
        (AttentionPart::MaskedScores, parts.masked_scores),
        (AttentionPart::Softmax, parts.softmax),
    ];
    for (part, values) in parts {
        if let Some(values) = values {
            sink.rows(part, row..row + 1, &values)?;
        }
    }
    Ok(())
}

/// Repeats the cache (K, G, C) for every query head, and passes the result (K, H, C) to the sink, if it wants it.
/// Attention itself reads the cache without repeating it.
fn repeat_kv(
    shape: AttentionShape,
    all_keys: usize,
    part: AttentionPart,
    cache: &Cache,
    sink: &mut dyn AttentionSink,
    stop: &Stop,
) -> Result<()> {
    if !sink.wants(part) {
        return Ok(());
    }
    let AttentionShape { heads, kv_heads, head_dim, .. } = shape;
    let mut repeated = Vec::with_capacity(heads * head_dim);
    let (stride, mut widened) = (kv_heads * head_dim, Vec::new());
    for k in 0..all_keys {
        stop.check()?;
        let row = cache.read(k * stride..(k + 1) * stride, &mut widened);
        repeated.clear();
        for head in 0..heads {
            let from = kv_head(head, heads, kv_heads) * head_dim;
            repeated.extend_from_slice(&row[from..from + head_dim]);
        }
        sink.rows(part, k * heads..(k + 1) * heads, &repeated)?;
    }
    Ok(())
}
