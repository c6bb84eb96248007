//! Attention on the CPU: one thread for each (query row, kv head). The query heads that share a kv head read
//! its keys and values block by block, so that each block comes from memory once.

use rayon::prelude::*;

use super::{Kernel, MIN_PARALLEL};
use crate::backend::{AttentionPart, AttentionShape, AttentionSink};
use crate::config::Precision;
use crate::ops;
use crate::ops::attention::{kv_head, mask, scale, visible};

/// Query rows whose parts are held at once while recording.
const BLOCK: usize = 16;

/// Keys or values that the heads of a group read one after the other, before the next ones.
const KEYS_AT_ONCE: usize = 128;

/// The parts of one (row, head) that a sink asked for, K values each.
#[derive(Default)]
struct Parts {
    qk: Option<Vec<f32>>,
    scores: Option<Vec<f32>>,
    masked_scores: Option<Vec<f32>>,
    softmax: Option<Vec<f32>>,
}

/// What a sink asked for.
#[derive(Clone, Copy)]
struct Wanted {
    qk: bool,
    scores: bool,
    masked_scores: bool,
    softmax: bool,
}

/// See [`crate::backend::Backend::attention`].
#[expect(clippy::too_many_arguments, reason = "an operation with three inputs and an observer")]
pub(super) fn attention(
    kernel: Kernel,
    precision: Precision,
    shape: AttentionShape,
    q: &[f32],
    keys: &[f32],
    values: &[f32],
    out: &mut [f32],
    sink: &mut dyn AttentionSink,
) {
    let AttentionShape { tokens, start, heads, kv_heads, head_dim, window } = shape;
    let all_keys = start + tokens;
    let stride = kv_heads * head_dim;
    repeat_kv(shape, AttentionPart::Keys, keys, sink);
    repeat_kv(shape, AttentionPart::Values, values, sink);
    let wanted = Wanted {
        qk: sink.wants(AttentionPart::Qk),
        scores: sink.wants(AttentionPart::Scores),
        masked_scores: sink.wants(AttentionPart::MaskedScores),
        softmax: sink.wants(AttentionPart::Softmax),
    };

    let round = |values: &mut [f32]| ops::round::row(precision, values);
    let group = heads / kv_heads;
    // One query row and the heads of one kv head: `rows` (group, K) is for their scores.
    let unit = |rows: &mut Vec<f32>, (unit, out): (usize, &mut [f32])| -> Vec<Parts> {
        let (t, kv_head) = (unit / kv_heads, unit % kv_heads);
        let visible = visible(start + t, window);
        let queries = &q[unit * group * head_dim..(unit + 1) * group * head_dim];
        let (keys, values) = (&keys[kv_head * head_dim..], &values[kv_head * head_dim..]);
        // Keys past the causal edge or before the window are computed only where somebody looks at them.
        let computed = if wanted.qk || wanted.scores { 0..all_keys } else { visible.clone() };
        for first in computed.clone().step_by(KEYS_AT_ONCE) {
            let last = (first + KEYS_AT_ONCE).min(computed.end);
            for (query, row) in queries.chunks_exact(head_dim).zip(rows.chunks_exact_mut(all_keys)) {
                kernel.qk(query, &keys[first * stride..], stride, &mut row[first..last]);
            }
        }
        let keep = |wanted: bool, row: &[f32]| wanted.then(|| row.to_vec());
        let parts = rows.chunks_exact_mut(all_keys).map(|row| {
            round(&mut row[computed.clone()]);
            let qk = keep(wanted.qk, row);
            scale(&mut row[computed.clone()], head_dim);
            round(&mut row[computed.clone()]);
            let scores = keep(wanted.scores, row);
            if wanted.masked_scores {
                mask(row, visible.clone());
            }
            let masked_scores = keep(wanted.masked_scores, row);
            kernel.softmax(&mut row[visible.clone()]);
            round(&mut row[visible.clone()]);
            // Outside it, e^−∞ is 0; nobody else reads the rest of the row.
            if wanted.softmax {
                row[..visible.start].fill(0.0);
                row[visible.end..].fill(0.0);
            }
            Parts { qk, scores, masked_scores, softmax: keep(wanted.softmax, row) }
        });
        let parts = parts.collect();
        out.fill(0.0);
        for first in visible.clone().step_by(KEYS_AT_ONCE) {
            let last = (first + KEYS_AT_ONCE).min(visible.end);
            for (row, out) in rows.chunks_exact(all_keys).zip(out.chunks_exact_mut(head_dim)) {
                kernel.mix(&row[first..last], &values[first * stride..], stride, out);
            }
        }
        round(out);
        parts
    };

    let rows = || vec![0.0; group * all_keys];
    let width = group * head_dim;
    let out = &mut out[..tokens * heads * head_dim];
    let recording = wanted.qk || wanted.scores || wanted.masked_scores || wanted.softmax;
    if !recording && out.len() * all_keys < MIN_PARALLEL {
        let mut rows = rows();
        for part in out.chunks_exact_mut(width).enumerate() {
            unit(&mut rows, part);
        }
    } else if !recording {
        out.par_chunks_exact_mut(width).enumerate().for_each_init(rows, |rows, part| {
            unit(rows, part);
        });
    } else {
        for (block, out) in out.chunks_mut(BLOCK * kv_heads * width).enumerate() {
            let first = block * BLOCK * kv_heads;
            let parts: Vec<Vec<Parts>> = (out.par_chunks_exact_mut(width).enumerate())
                .map_init(rows, |rows, (i, part)| unit(rows, (first + i, part)))
                .collect();
            for (i, parts) in parts.into_iter().flatten().enumerate() {
                let (t, head) = (block * BLOCK + i / heads, i % heads);
                hand_over(parts, head * tokens + t, sink);
            }
        }
    }
}

/// Gives the parts of one (row, head) to the sink, as row `row` of (H, T, K).
fn hand_over(parts: Parts, row: usize, sink: &mut dyn AttentionSink) {
    let parts = [
        (AttentionPart::Qk, parts.qk),
        (AttentionPart::Scores, parts.scores),
        (AttentionPart::MaskedScores, parts.masked_scores),
        (AttentionPart::Softmax, parts.softmax),
    ];
    for (part, values) in parts {
        if let Some(values) = values {
            sink.rows(part, row..row + 1, &values);
        }
    }
}

/// Shows the cache (K, G, C) repeated for every query head (K, H, C), where the sink wants it. The
/// computation itself reads the cache in place.
fn repeat_kv(shape: AttentionShape, part: AttentionPart, cache: &[f32], sink: &mut dyn AttentionSink) {
    if !sink.wants(part) {
        return;
    }
    let AttentionShape { tokens, start, heads, kv_heads, head_dim, .. } = shape;
    let mut repeated = Vec::with_capacity(heads * head_dim);
    for (k, row) in cache.chunks_exact(kv_heads * head_dim).take(start + tokens).enumerate() {
        repeated.clear();
        for head in 0..heads {
            let from = kv_head(head, heads, kv_heads) * head_dim;
            repeated.extend_from_slice(&row[from..from + head_dim]);
        }
        sink.rows(part, k * heads..(k + 1) * heads, &repeated);
    }
}
