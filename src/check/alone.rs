//! Sequences in one pass, and each alone.

use super::prints::{Printing, Prints};
use super::{Check, DECODES, Runs};
use crate::backend::{Backend, Span};
use crate::error::Result;
use crate::model::{Activations, KvCache, forward};

/// Tokens that the second sequence reads in the second pass: as many as a unit takes.
const MANY: usize = 16;

/// Runs three ragged sequences together and each by itself: all of the ids, one of them, and half of them; then one
/// token more, many, and one.
///
/// # Errors
/// Where the backend fails or was asked to stop.
pub(super) fn check<B: Backend>(runs: &Runs<'_, B>) -> Result<Check> {
    let (ids, context) = (runs.ids, runs.model.config.context);
    let all = ids.len();
    let many = MANY.min(context - 1);
    let lengths = [[all, 1], [1, many], [all.div_ceil(2), 1]];
    debug_assert!(lengths.iter().all(|[first, second]| first + second <= context && all + DECODES <= context));
    let together = run(runs, &lengths, &[0, 1, 2])?;
    let mut check = Check::new("batch", "three sequences in one pass, as each alone", 0.0);
    for sequence in 0..lengths.len() {
        let alone = run(runs, &lengths, &[sequence])?;
        for (together, alone) in together.iter().zip(&alone) {
            together.of(sequence).compare(alone, runs.model, &mut check);
        }
    }
    Ok(check)
}

/// Both passes over `sequences`: what each has in every row.
fn run<B: Backend>(runs: &Runs<'_, B>, lengths: &[[usize; 2]], sequences: &[usize]) -> Result<Vec<Prints>> {
    let model = runs.model;
    let cache = |&sequence: &usize| {
        KvCache::with_capacity(&model.config, &model.backend, lengths[sequence].iter().sum())
    };
    let mut caches: Vec<KvCache<B>> = sequences.iter().map(cache).collect::<Result<_>>()?;
    let mut work = Activations::new(model)?;
    let mut prints = Vec::new();
    for pass in 0..2 {
        let spans: Vec<Span> = (sequences.iter().zip(&caches))
            .map(|(&sequence, cache)| Span { sequence, start: cache.len(), tokens: lengths[sequence][pass] })
            .collect();
        // Each sequence begins at another of the ids.
        let ids: Vec<u32> = (spans.iter())
            .flat_map(|span| (span.start..span.keys()).map(|at| runs.ids[(at + 7 * span.sequence) % runs.ids.len()]))
            .collect();
        let mut probe = Printing::new(|| runs.tick("running sequences together and alone"));
        let mut now: Vec<_> = caches.iter_mut().collect();
        forward::forward(model, &mut now, &mut work, pass, &spans, &ids, &mut probe)?;
        prints.push(probe.prints);
    }
    Ok(prints)
}
