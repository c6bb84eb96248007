//! Batch invariance: sequences in one pass, and each in a pass of its own.

use super::row_hashes::{RowHasher, RowHashes};
use super::{Check, Runs};
use llama_trace_core::error::Result;
use llama_trace_engine::backend::Span;
use llama_trace_engine::model::{Activations, KvCache, pass};

/// Tokens that the second sequence reads in the second pass: as many as one matrix unit handles.
const MANY: usize = 16;

/// Runs three sequences of different lengths together, and each by itself. In the first pass, the first sequence reads
/// all ids, the second reads one id, and the third reads half of the ids. In the second pass, they read 1, [`MANY`] and
/// 1 more tokens.
///
/// # Errors
/// The errors of the backend, and a stop request.
pub(super) fn check(runs: &Runs<'_>) -> Result<Check> {
    let (ids, context) = (runs.ids, runs.model.config.context);
    let all = ids.len();
    let lengths = [[all, 1], [1, MANY], [all.div_ceil(2), 1]];
    // Tokens beyond the context are left out of the second pass.
    let lengths = lengths.map(|[first, second]| [first, second.min(context - first)]);
    let together = run(runs, &lengths, &[0, 1, 2])?;
    let mut check = Check::new("batch", 0.0);
    for sequence in 0..lengths.len() {
        let alone = run(runs, &lengths, &[sequence])?;
        for (together, alone) in together.iter().zip(&alone) {
            together.of(sequence).compare(alone, runs.model, &mut check);
        }
    }
    Ok(check)
}

/// The row hashes of both passes over `sequences`.
fn run(runs: &Runs<'_>, lengths: &[[usize; 2]], sequences: &[usize]) -> Result<Vec<RowHashes>> {
    let model = runs.model;
    let cache = |&sequence: &usize| {
        KvCache::with_capacity(&model.config, &*model.backend, lengths[sequence].iter().sum())
    };
    let mut caches: Vec<KvCache> = sequences.iter().map(cache).collect::<Result<_>>()?;
    let mut work = Activations::new(model)?;
    let mut hashes = Vec::new();
    for pass in 0..2 {
        let spans: Vec<Span> = (sequences.iter().zip(&caches))
            .map(|(&sequence, cache)| Span { sequence, start: cache.len(), tokens: lengths[sequence][pass] })
            .filter(|span| span.tokens > 0)
            .collect();
        if spans.is_empty() {
            break;
        }
        // Each sequence starts at a different id.
        let ids: Vec<u32> = (spans.iter())
            .flat_map(|span| {
                (span.start..span.keys()).map(|at| runs.ids[(at + 7 * span.sequence) % runs.ids.len()])
            })
            .collect();
        let mut probe = RowHasher::new(|| runs.tick("running sequences together and alone"));
        let reads = |sequence: usize| spans.iter().any(|span| span.sequence == sequence);
        let now = sequences.iter().zip(&mut caches).filter(|(sequence, _)| reads(**sequence));
        let mut now: Vec<_> = now.map(|(_, cache)| cache).collect();
        pass::forward(model, &mut now, &mut work, pass, &spans, &ids, &mut probe)?;
        hashes.push(probe.hashes);
    }
    Ok(hashes)
}
