//! What surrounds the computation of a pass ([`super::forward`]): which tokens of which sequences it has, what the
//! caches hold after it, which rows of the logits somebody wants, and the tokens that a device draws by itself.
//!
//! [`forward`] is [`begin`], then [`layer`] for every layer, then [`finish`]. The three are public because
//! a viewer that did not record everything runs single layers again, from the recorded input. What `begin` was told
//! stays in [`Activations`] until the next one.

use std::ops::Range;

use crate::backend::{Backend, Draw, Drawn, PassRows, Span};
use llama_trace_core::error::Result;
use llama_trace_core::trace::{Probe, Stage};

use super::activations::{Activations, LOGITS_AT_ONCE};
use super::forward::{embed, head, layer};
use super::observe::{Observer, Unseen};
use super::{KvCache, Model};

/// Runs a pass over `spans`: `ids`, those of all spans one after the other, each at the positions after those in
/// the cache of its sequence; `caches` are in the order of the spans. The logits of the last token of each span are
/// then in `work` ([`last_logits`]).
///
/// # Errors
/// As [`forward_and_draw`]'s.
pub fn forward<B: Backend>(
    model: &Model<B>,
    caches: &mut [&mut KvCache<B>],
    work: &mut Activations<B>,
    pass: usize,
    spans: &[Span],
    ids: &[u32],
    probe: &mut dyn Probe,
) -> Result<()> {
    forward_and_draw(model, caches, work, pass, spans, (ids, &[]), probe).map(drop)
}

/// The same, and a token is drawn after each span by the device itself, where it does so ([`Backend::draws`]) and
/// `draws` says how. So the pass and its draws are one piece of work, and nothing but the tokens comes back.
///
/// # Errors
/// [`Interrupted`](llama_trace_core::error::Error::Interrupted) where the backend was asked to stop ([`Backend::stop`]),
/// [`Prompt`](llama_trace_core::error::Error::Prompt) where a cache is full or there is no memory for the pass, and where the backend
/// fails. The caches then hold what they held before, and the same pass can be run again.
pub fn forward_and_draw<B: Backend>(
    model: &Model<B>,
    caches: &mut [&mut KvCache<B>],
    work: &mut Activations<B>,
    pass: usize,
    spans: &[Span],
    (ids, draws): (&[u32], &[Draw]),
    probe: &mut dyn Probe,
) -> Result<Vec<Drawn>> {
    check_room(caches, spans)?;
    model.backend.all_shown(&work.pass);
    work.unseen = Unseen::of_a_whole_pass();
    let mut run = || {
        begin(model, work, pass, spans, (ids, draws), probe)?;
        after_begin(model, caches, work, probe)?;
        if !draws.is_empty() {
            model.backend.draw(&work.logits, model.config.vocab, &work.pass)?;
        }
        // The first layers' values are handed over while the device computes the last ones.
        let place = (&work.pass, pass);
        Observer::new(model, probe, place, &mut work.unseen, spans, &PassRows::All).show()?;
        match draws.is_empty() {
            true => model.backend.sync().map(|()| Vec::new()),
            false => model.backend.drawn(&work.pass),
        }
    };
    let drawn = run();
    // Discard the fetches of an aborted pass.
    work.unseen = Unseen::default();
    let drawn = drawn?;
    for (cache, span) in caches.iter_mut().zip(spans) {
        cache.set_len(span.keys());
    }
    Ok(drawn)
}

/// Checks that each span begins where its cache ends, and has room there.
pub(super) fn check_room<B: Backend>(caches: &[&mut KvCache<B>], spans: &[Span]) -> Result<()> {
    caches.iter().zip(spans).try_for_each(|(cache, span)| {
        debug_assert_eq!(cache.len(), span.start, "a span begins where its cache ends");
        cache.check(span.keys())
    })
}

/// All of a pass that follows [`begin`].
pub(super) fn after_begin<B: Backend>(
    model: &Model<B>,
    caches: &mut [&mut KvCache<B>],
    work: &mut Activations<B>,
    probe: &mut dyn Probe,
) -> Result<()> {
    (0..model.config.layers).try_for_each(|l| layer(model, caches, work, l, probe))?;
    finish(model, work, probe)
}

/// Everything before the layers: the tokens' embeddings, and the tables that all layers share. The ids come with how a
/// token is drawn after each span, where one is.
///
/// # Errors
/// As [`forward`]'s.
pub fn begin<B: Backend>(
    model: &Model<B>,
    work: &mut Activations<B>,
    pass: usize,
    spans: &[Span],
    (ids, draws): (&[u32], &[Draw]),
    probe: &mut dyn Probe,
) -> Result<()> {
    let (backend, t) = (&model.backend, ids.len());
    debug_assert_eq!(t, PassRows::All.count(spans), "an id for each token of the spans");
    work.reserve(model, t, 0)?;
    work.set(pass, spans);
    backend.begin_pass(ids, spans, draws, &mut work.pass)?;
    let place = (&work.pass, pass);
    Observer::new(model, probe, place, &mut work.unseen, spans, &PassRows::All).ids(Stage::Tokens, ids)?;
    embed(model, work, probe)
}

/// Everything after the layers: from `work.x` to the logits, of the last token of each span only unless the probe
/// wants every row of its sequence.
///
/// # Errors
/// As [`forward`]'s.
pub fn finish<B: Backend>(model: &Model<B>, work: &mut Activations<B>, probe: &mut dyn Probe) -> Result<()> {
    for span in 0..work.spans.len() {
        let place = (&work.pass, work.number);
        let see = Observer::new(model, probe, place, &mut work.unseen, &work.spans, &PassRows::All);
        let stages = [Stage::FinalNorm, Stage::FinalNormQ8, Stage::FinalNormScale, Stage::Logits];
        if stages.into_iter().any(|stage| see.wants(span, stage)) {
            before_last(model, work, span, 0..work.spans[span].tokens - 1, probe)?;
        }
    }
    head(model, work, &PassRows::Last, probe)?;
    for (span, row) in work.last_rows.iter_mut().enumerate() {
        *row = span;
    }
    Ok(())
}

/// [`finish`] for the tokens `rows` of the only span of a pass.
///
/// # Errors
/// As [`forward`]'s.
pub fn finish_rows<B: Backend>(
    model: &Model<B>,
    work: &mut Activations<B>,
    rows: Range<usize>,
    probe: &mut dyn Probe,
) -> Result<()> {
    let last = work.spans[0].tokens - 1;
    before_last(model, work, 0, rows.start..rows.end.min(last), probe)?;
    if rows.contains(&last) {
        head(model, work, &PassRows::Last, probe)?;
        work.last_rows[0] = 0;
    }
    Ok(())
}

/// The head for `rows` of a span, none of which is its last.
fn before_last<B: Backend>(
    model: &Model<B>,
    work: &mut Activations<B>,
    span: usize,
    rows: Range<usize>,
    probe: &mut dyn Probe,
) -> Result<()> {
    let at_once = (LOGITS_AT_ONCE / model.config.vocab).max(1);
    for first in rows.clone().step_by(at_once) {
        let rows = first..rows.end.min(first + at_once);
        work.last_rows[span] = rows.len() - 1;
        head(model, work, &PassRows::Of { span, rows }, probe)?;
    }
    Ok(())
}

/// Shows the logits (V) of the last token of span number `span` of the pass that ran last.
///
/// # Errors
/// What `see` returns, and where the backend fails.
pub fn last_logits<B: Backend>(
    model: &Model<B>,
    work: &Activations<B>,
    span: usize,
    mut see: impl FnMut(&[f32]) -> Result<()>,
) -> Result<()> {
    let (vocab, row) = (model.config.vocab, work.last_rows[span]);
    model.backend.read(&work.logits, row * vocab..(row + 1) * vocab, &mut see)
}
