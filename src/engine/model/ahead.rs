//! Passes that nobody looks at, on a device that draws by itself: the next one is asked for before it is known here what
//! the one before it drew. So the device has work while a token comes here and is looked at.
//!
//! Where a text ends with that token, the pass after it was for nothing: it wrote a key and a value behind the end of the
//! cache, where the next pass writes again.

use crate::backend::{Backend, Draw, Drawn, Span};
use llama_trace_core::error::Result;
use llama_trace_core::trace::NoProbe;

use super::asked::{Asked, Step};
use super::{Activations, KvCache, Model, forward, pass};

/// Runs pass number `pass` as [`pass::forward_and_draw`] does, with a draw for each span and nobody who looks on; or only
/// waits for it, where it was asked for before. Before it waits it asks for the pass after it, over one token of each of the
/// same sequences, where `next` says how tokens are drawn there: then there is room for them in the caches.
///
/// # Errors
/// As [`pass::forward_and_draw`]'s.
pub fn pass_and_next<B: Backend>(
    model: &Model<B>,
    caches: &mut [&mut KvCache<B>],
    work: &mut Activations<B>,
    pass: usize,
    spans: &[Span],
    (ids, draws): (&[u32], &[Draw]),
    next: &[Draw],
) -> Result<Vec<Drawn>> {
    let asked = work.ahead.take();
    let count = asked.as_ref().map_or(spans.len(), |asked| asked.steps.len());
    let (places, count) = match asked.and_then(|asked| asked.places(spans, (ids, draws))) {
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
    // A pass that texts have left in the meantime is none that another can follow. Where asking fails, so will the pass
    // when its turn comes.
    let all_are_left = next.len() == count && places.iter().copied().eq(0..count);
    let follows = all_are_left && follow(model, caches, work, pass + 1, (&after, next)).is_ok();
    let all = model.backend.drawn(&work.pass)?;
    let drawn: Vec<Drawn> = places.iter().filter_map(|&place| all.get(place).copied()).collect();
    let step = |((&span, drawn), &draw): ((&Span, &Drawn), &Draw)| Step { span, id: drawn.id, draw };
    work.ahead = follows.then(|| Asked { steps: after.iter().zip(&drawn).zip(next).map(step).collect() });
    for (cache, span) in caches.iter_mut().zip(spans) {
        cache.set_len(span.keys());
    }
    Ok(drawn)
}

/// Asks for a pass over the tokens that the one before it draws.
fn follow<B: Backend>(
    model: &Model<B>,
    caches: &mut [&mut KvCache<B>],
    work: &mut Activations<B>,
    pass: usize,
    (spans, draws): (&[Span], &[Draw]),
) -> Result<()> {
    work.set(pass, spans);
    model.backend.follow_pass(spans, draws, &mut work.pass)?;
    forward::embed(model, work, &mut NoProbe)?;
    go_on(model, caches, work)
}

/// Asks for all that comes after the embeddings.
fn go_on<B: Backend>(
    model: &Model<B>,
    caches: &mut [&mut KvCache<B>],
    work: &mut Activations<B>,
) -> Result<()> {
    pass::after_begin(model, caches, work, &mut NoProbe)?;
    model.backend.draw(&work.logits, model.config.vocab, &work.pass)
}
