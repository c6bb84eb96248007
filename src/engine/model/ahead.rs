//! Passes without a probe on a device that samples tokens itself. The next pass is launched before the host knows which
//! tokens the current pass sampled. The device therefore has work while a token is copied to the host and checked.
//!
//! If that token ends a text, the next pass was unnecessary. It has written a key and a value after the end of the
//! cache, and the pass after it overwrites them.

use crate::backend::{Draw, Drawn, Span};
use llama_trace_core::error::Result;
use llama_trace_core::trace::NoProbe;

use super::launched::{Launched, Step};
use super::{Activations, KvCache, Model, forward, pass};

/// Runs pass number `pass` like [`pass::forward_and_draw`], with one draw for each span and without a probe. If this
/// pass was already launched ahead, the function only waits for it.
///
/// Before it waits, it launches the following pass, over one token of each of the same sequences, if `next` holds their
/// draws. The caches must then have room for these tokens.
///
/// # Errors
/// The errors of [`pass::forward_and_draw`].
pub fn pass_and_next(
    model: &Model,
    caches: &mut [&mut KvCache],
    work: &mut Activations,
    pass: usize,
    spans: &[Span],
    (ids, draws): (&[u32], &[Draw]),
    next: &[Draw],
) -> Result<Vec<Drawn>> {
    let launched = work.ahead.take();
    let count = launched.as_ref().map_or(spans.len(), |launched| launched.steps.len());
    let (places, count) = match launched.and_then(|launched| launched.places(spans, (ids, draws))) {
        Some(places) => (places, count),
        None => {
            pass::check_room(caches, spans)?;
            model.backend.all_shown(&work.pass);
            pass::begin(model, work, pass, spans, (ids, draws), &mut NoProbe)?;
            go_on(model, caches, work)?;
            ((0..spans.len()).collect(), spans.len())
        }
    };
    let after: Vec<Span> = spans.iter().map(|span| Span { start: span.keys(), tokens: 1, ..*span }).collect();
    // If some sequences have left this pass, no further pass is launched. If the launch fails here, the same pass fails
    // again at its turn and reports the error.
    let all_are_left = next.len() == count && places.iter().copied().eq(0..count);
    let follows = all_are_left && follow(model, caches, work, pass + 1, (&after, next)).is_ok();
    let all = model.backend.drawn(&work.pass)?;
    let drawn: Vec<Drawn> = places.iter().filter_map(|&place| all.get(place).copied()).collect();
    let step = |((&span, drawn), &draw): ((&Span, &Drawn), &Draw)| Step { span, id: drawn.id, draw };
    work.ahead = follows.then(|| Launched { steps: after.iter().zip(&drawn).zip(next).map(step).collect() });
    for (cache, span) in caches.iter_mut().zip(spans) {
        cache.set_len(span.keys());
    }
    Ok(drawn)
}

/// Launches a pass over the tokens that the previous pass samples.
fn follow(
    model: &Model,
    caches: &mut [&mut KvCache],
    work: &mut Activations,
    pass: usize,
    (spans, draws): (&[Span], &[Draw]),
) -> Result<()> {
    work.set(pass, spans);
    model.backend.follow_pass(spans, draws, &mut work.pass)?;
    forward::embed(model, work, &mut NoProbe)?;
    go_on(model, caches, work)
}

/// Launches everything after the embeddings.
fn go_on(model: &Model, caches: &mut [&mut KvCache], work: &mut Activations) -> Result<()> {
    pass::after_begin(model, caches, work, &mut NoProbe)?;
    model.backend.draw(&work.logits, model.config.vocab, &work.pass)
}
