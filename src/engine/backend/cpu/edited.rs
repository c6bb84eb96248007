//! Attention whose intermediate results a caller changes. It computes the same steps in the same order as
//! [`Backend::attention`](crate::backend::Backend::attention) on the CPU, one stage at a time instead of one block at a
//! time, so it gives the same bits if nothing is changed.

use std::ops::Range;

use super::Kernel;
use crate::backend::{AttentionPart, AttentionShape, Span};
use llama_trace_core::config::Precision;
use llama_trace_core::error::Result;
use llama_trace_core::memory;
use llama_trace_core::ops::attention::{kv_head, mask, scale_by};
use llama_trace_core::ops::elementwise;
use llama_trace_core::stop::Stop;
use llama_trace_core::threads::prelude::*;

/// A callback that receives all values of a part of attention, and may change them.
pub type ChangePart<'a> = dyn FnMut(AttentionPart, &mut [f32]) -> Result<()> + 'a;

/// The inputs of attention over one span.
#[derive(Clone, Copy)]
pub struct Attention<'a> {
    /// The sizes.
    pub shape: AttentionShape,
    /// The tokens.
    pub span: Span,
    /// The precision of the results.
    pub precision: Precision,
    /// Queries (T, H, C).
    pub q: &'a [f32],
    /// Cached keys (K, G, C).
    pub keys: &'a [f32],
    /// Cached values (K, G, C).
    pub values: &'a [f32],
}

/// Returns the mixed values (T, H, C). `change` receives the parts in the order of the pass.
///
/// A changed score can make a key visible that the mask hides. Softmax then runs over the shortest range of keys that
/// has all visible keys and all keys whose score is not −∞. The mix likewise reads all keys with a weight that is not 0.
///
/// # Errors
/// Returns the errors of `change`, [`Interrupted`](llama_trace_core::error::Error::Interrupted) after a request to stop,
/// and an error if there is not enough memory.
pub fn attention(of: Attention<'_>, stop: &Stop, change: &mut ChangePart<'_>) -> Result<Vec<f32>> {
    let Attention { shape, span, precision, q, keys, values } = of;
    let AttentionShape { heads, kv_heads, head_dim: c, sees, scale, cap } = shape;
    let (isa, tokens, all) = (Kernel::default().isa, span.tokens, span.keys());
    let visible = |row: usize| sees.keys(span.start + row % tokens);
    let mut keys = repeated(keys, heads, kv_heads, c)?;
    change(AttentionPart::Keys, &mut keys)?;
    let mut values = repeated(values, heads, kv_heads, c)?;
    change(AttentionPart::Values, &mut values)?;

    // Rows are (head, token), as in the stages.
    let mut scores = memory::filled(0.0_f32, heads * tokens * all)?;
    let rows = |scores: &mut [f32], compute: &(dyn Fn(usize, &mut [f32]) + Sync)| {
        scores.par_chunks_mut(all).enumerate().try_for_each(|(row, scores)| {
            stop.check()?;
            compute(row, scores);
            isa.round(precision, scores);
            Ok(())
        })
    };
    rows(&mut scores, &|row, scores| {
        let (head, token) = (row / tokens, row % tokens);
        let query = &q[(token * heads + head) * c..][..c];
        isa.qk(query, &keys[head * c..], heads * c, scores);
    })?;
    change(AttentionPart::Qk, &mut scores)?;
    rows(&mut scores, &|_, scores| match scale {
        None => isa.scale(scores, c),
        Some(_) => scale_by(scores, c, scale),
    })?;
    change(AttentionPart::Scores, &mut scores)?;
    if let Some(at) = cap {
        rows(&mut scores, &|_, scores| elementwise::cap(at, precision, scores))?;
        change(AttentionPart::CappedScores, &mut scores)?;
    }
    rows(&mut scores, &|row, scores| mask(scores, visible(row)))?;
    change(AttentionPart::MaskedScores, &mut scores)?;
    rows(&mut scores, &|row, scores| {
        let seen = extended(visible(row), scores, |score| score != f32::NEG_INFINITY);
        isa.softmax(&mut scores[seen.clone()]);
        scores[..seen.start].fill(0.0);
        scores[seen.end..].fill(0.0);
    })?;
    change(AttentionPart::Softmax, &mut scores)?;

    let mut out = memory::filled(0.0_f32, tokens * heads * c)?;
    let heads_of = |(row, out): (usize, &mut [f32])| {
        stop.check()?;
        let (token, head) = (row / heads, row % heads);
        let weights = &scores[(head * tokens + token) * all..][..all];
        let seen = extended(visible(token), weights, |weight| weight != 0.0);
        let values = &values[(seen.start * heads + head) * c..];
        isa.mix(&weights[seen.clone()], (seen.len(), all), values, heads * c, c, out);
        isa.round(precision, out);
        Ok(())
    };
    out.par_chunks_mut(c).enumerate().try_for_each(heads_of)?;
    Ok(out)
}

/// The cache (K, G, C), repeated for every query head (K, H, C).
fn repeated(cache: &[f32], heads: usize, kv_heads: usize, c: usize) -> Result<Vec<f32>> {
    let mut all = memory::reserved(cache.len() / kv_heads * heads)?;
    for row in cache.chunks_exact(kv_heads * c) {
        for head in 0..heads {
            all.extend_from_slice(&row[kv_head(head, heads, kv_heads) * c..][..c]);
        }
    }
    Ok(all)
}

/// `visible`, extended to all keys outside it that `counts` accepts.
fn extended(visible: Range<usize>, row: &[f32], counts: impl Fn(f32) -> bool) -> Range<usize> {
    let first = row[..visible.start].iter().position(|&value| counts(value)).unwrap_or(visible.start);
    let last = row[visible.end..].iter().rposition(|&value| counts(value));
    first..last.map_or(visible.end, |last| visible.end + last + 1)
}
