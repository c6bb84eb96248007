//! Attention on the CPU: a block of query rows at a time, one thread for each (row, head).

use rayon::prelude::*;

use super::{MIN_PARALLEL, simd};
use crate::backend::{AttentionPart, AttentionShape, AttentionSink};
use crate::ops::attention::{kv_head, mask, scale, softmax};

/// Query rows whose parts are held at once while recording.
const BLOCK: usize = 16;

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
pub(super) fn attention(
    shape: AttentionShape,
    q: &[f32],
    keys: &[f32],
    values: &[f32],
    out: &mut [f32],
    sink: &mut dyn AttentionSink,
) {
    let AttentionShape { tokens, start, heads, kv_heads, head_dim } = shape;
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

    let unit = |row: &mut Vec<f32>, (unit, out): (usize, &mut [f32])| {
        let (t, head) = (unit / heads, unit % heads);
        let visible = start + t + 1;
        let from = kv_head(head, heads, kv_heads) * head_dim;
        let query = &q[unit * head_dim..(unit + 1) * head_dim];
        // Keys past the causal edge are computed only where somebody looks at them.
        let computed = if wanted.qk || wanted.scores { all_keys } else { visible };
        let keep = |wanted: bool, row: &[f32]| wanted.then(|| row.to_vec());

        simd::qk(query, &keys[from..], stride, &mut row[..computed]);
        let qk = keep(wanted.qk, row);
        scale(&mut row[..computed], head_dim);
        let scores = keep(wanted.scores, row);
        mask(row, visible);
        let masked_scores = keep(wanted.masked_scores, row);
        softmax(&mut row[..visible]);
        row[visible..].fill(0.0);
        let softmax = keep(wanted.softmax, row);
        simd::mix(&row[..visible], &values[from..], stride, out);
        Parts { qk, scores, masked_scores, softmax }
    };

    let row = || vec![0.0; all_keys];
    let out = &mut out[..tokens * heads * head_dim];
    let recording = wanted.qk || wanted.scores || wanted.masked_scores || wanted.softmax;
    if !recording && out.len() * all_keys < MIN_PARALLEL {
        let mut row = row();
        for head in out.chunks_exact_mut(head_dim).enumerate() {
            unit(&mut row, head);
        }
    } else if !recording {
        out.par_chunks_exact_mut(head_dim).enumerate().for_each_init(row, |row, head| {
            unit(row, head);
        });
    } else {
        for (block, out) in out.chunks_mut(BLOCK * heads * head_dim).enumerate() {
            let first = block * BLOCK * heads;
            let parts: Vec<Parts> = (out.par_chunks_exact_mut(head_dim).enumerate())
                .map_init(row, |row, (i, head)| unit(row, (first + i, head)))
                .collect();
            for (i, parts) in parts.into_iter().enumerate() {
                let (t, head) = ((first + i) / heads, (first + i) % heads);
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
    let AttentionShape { tokens, start, heads, kv_heads, head_dim } = shape;
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
