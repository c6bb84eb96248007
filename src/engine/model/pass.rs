//! The frame around the computation of a pass ([`super::forward`]). It knows the tokens and sequences of the pass, and
//! the cache contents after it. It also knows the rows of the logits that the probe wants, and the tokens that a device
//! samples itself.
//!
//! [`forward`] is [`begin`], then [`layer`] for every layer, then [`finish`]. These three are public because a viewer
//! that did not record everything runs single layers again, from the recorded input. The arguments of `begin` stay in
//! [`Activations`] until the next call.

use std::ops::Range;

use crate::backend::{Draw, Drawn, PassRows, Span};
use llama_trace_core::error::Result;
use llama_trace_core::trace::{NoProbe, Probe, Site, Stage};

use super::activations::{Activations, LOGITS_AT_ONCE};
use super::forward::{embed, head, layer};
use super::observe::{Observer, Pending};
use super::{KvCache, Model};

/// Runs a pass over `spans`. `ids` holds the tokens of all spans, one span after the other. Their positions follow the
/// cached positions of their sequence. `caches` has the order of the spans. Afterwards `work` holds the logits of the
/// last token of each span ([`last_logits`]).
///
/// # Errors
/// The errors of [`forward_and_draw`].
pub fn forward(
    model: &Model,
    caches: &mut [&mut KvCache],
    work: &mut Activations,
    pass: usize,
    spans: &[Span],
    ids: &[u32],
    probe: &mut dyn Probe,
) -> Result<()> {
    forward_and_draw(model, caches, work, pass, spans, (ids, &[]), probe).map(drop)
}

/// Like [`forward`], but the device also samples a token after each span, as `draws` says, if it can
/// ([`draws`](crate::backend::Backend::draws)). The pass and its draws are then one unit of work, and only the tokens
/// are copied to the host.
///
/// # Errors
/// Returns [`Interrupted`](llama_trace_core::error::Error::Interrupted) if the backend was asked to stop
/// ([`stop`](crate::backend::Backend::stop)). Returns [`Prompt`](llama_trace_core::error::Error::Prompt) if a cache is
/// full, or if there is not enough memory for the pass. Also returns the backend's error if it fails. The caches then
/// keep their previous contents, and the same pass can be run again.
pub fn forward_and_draw(
    model: &Model,
    caches: &mut [&mut KvCache],
    work: &mut Activations,
    pass: usize,
    spans: &[Span],
    (ids, draws): (&[u32], &[Draw]),
    probe: &mut dyn Probe,
) -> Result<Vec<Drawn>> {
    check_room(caches, spans)?;
    model.backend.all_shown(&work.pass);
    work.pending = Pending::of_whole_pass();
    let mut run = || {
        begin(model, work, pass, spans, (ids, draws), probe)?;
        after_begin(model, caches, work, probe)?;
        if !draws.is_empty() {
            model.backend.draw(&work.logits, model.config.vocab, &work.pass)?;
        }
        // The values of the first layers are handed over while the device computes the last ones.
        let place = (&work.pass, pass);
        Observer::new(model, probe, place, &mut work.pending, spans, &PassRows::All).show()?;
        match draws.is_empty() {
            true => model.backend.sync().map(|()| Vec::new()),
            false => model.backend.drawn(&work.pass),
        }
    };
    let drawn = run();
    // Discard the fetches of an aborted pass.
    work.pending = Pending::default();
    let drawn = drawn?;
    for (cache, span) in caches.iter_mut().zip(spans) {
        cache.set_len(span.keys());
    }
    Ok(drawn)
}

/// A pass over one span that runs step by step, so that the caller can do other work between the steps. The steps
/// together compute what [`forward`] computes. The buffers belong to the pass until its last step.
#[derive(Clone, Copy, Debug)]
pub struct PassInSteps {
    span: Span,
    /// The next layer.
    layer: usize,
}

impl PassInSteps {
    /// Runs the first step: everything before the layers.
    ///
    /// # Errors
    /// The errors of [`forward`].
    pub fn begin(
        model: &Model,
        cache: &mut KvCache,
        work: &mut Activations,
        (pass, span): (usize, Span),
        ids: &[u32],
        probe: &mut dyn Probe,
    ) -> Result<Self> {
        check_room(&[cache], &[span])?;
        model.backend.all_shown(&work.pass);
        work.pending = Pending::of_whole_pass();
        begin(model, work, pass, &[span], (ids, &[]), probe).inspect_err(|_| {
            // Discard the fetches of an aborted pass.
            work.pending = Pending::default();
        })?;
        Ok(Self { span, layer: 0 })
    }

    /// Runs the next step: a layer, or everything after the layers. Returns whether it was the last one. After an error,
    /// the cache keeps its previous contents.
    ///
    /// # Errors
    /// The errors of [`forward`].
    pub fn step(
        &mut self,
        model: &Model,
        cache: &mut KvCache,
        work: &mut Activations,
        probe: &mut dyn Probe,
    ) -> Result<bool> {
        let is_last = self.layer == model.config.layers;
        let done = match is_last {
            false => layer(model, &mut [&mut *cache], work, self.layer, probe),
            true => finish(model, work, probe).and_then(|()| {
                let place = (&work.pass, work.number);
                Observer::new(model, probe, place, &mut work.pending, &work.spans, &PassRows::All).show()?;
                model.backend.sync()
            }),
        };
        if is_last || done.is_err() {
            // Discard the fetches of an aborted pass.
            work.pending = Pending::default();
        }
        done?;
        self.layer += 1;
        if is_last {
            cache.set_len(self.span.keys());
        }
        Ok(is_last)
    }
}

/// Checks that each span begins at the end of its cache and fits into it.
pub(super) fn check_room(caches: &[&mut KvCache], spans: &[Span]) -> Result<()> {
    caches.iter().zip(spans).try_for_each(|(cache, span)| {
        debug_assert_eq!(cache.len(), span.start, "a span begins where its cache ends");
        cache.check(span.keys())
    })
}

/// Everything in a pass after [`begin`].
pub(super) fn after_begin(
    model: &Model,
    caches: &mut [&mut KvCache],
    work: &mut Activations,
    probe: &mut dyn Probe,
) -> Result<()> {
    (0..model.config.layers).try_for_each(|l| layer(model, caches, work, l, probe))?;
    finish(model, work, probe)
}

/// Everything before the layers: the token embeddings and the tables that all layers share. `draws` says how a token is
/// sampled after each span; it may be empty.
///
/// # Errors
/// The errors of [`forward`].
pub fn begin(
    model: &Model,
    work: &mut Activations,
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
    Observer::new(model, probe, place, &mut work.pending, spans, &PassRows::All).ids(Stage::Tokens, ids)?;
    embed(model, work, probe)
}

/// Everything after the layers: from `work.x` to the logits. They are computed for the last token of each span, and for
/// all tokens of a sequence if the probe wants them.
///
/// # Errors
/// The errors of [`forward`].
pub fn finish(model: &Model, work: &mut Activations, probe: &mut dyn Probe) -> Result<()> {
    for span in 0..work.spans.len() {
        collect_means(model, work, span)?;
        let place = (&work.pass, work.number);
        let see = Observer::new(model, probe, place, &mut work.pending, &work.spans, &PassRows::All);
        let stages =
            [Stage::FinalNorm, Stage::FinalNormQ8, Stage::FinalNormScale, Stage::Logits, Stage::CappedLogits];
        if stages.into_iter().any(|stage| see.wants(span, stage)) {
            block_by_block(model, work, span, 0..work.spans[span].tokens - 1, probe)?;
        }
    }
    head(model, work, &PassRows::Last, probe)?;
    for (span, row) in work.last_rows.iter_mut().enumerate() {
        *row = span;
    }
    Ok(())
}

/// Runs [`finish`] for the tokens `rows` of a pass with a single span.
///
/// # Errors
/// The errors of [`forward`].
pub fn finish_rows(
    model: &Model,
    work: &mut Activations,
    rows: Range<usize>,
    probe: &mut dyn Probe,
) -> Result<()> {
    collect_means(model, work, 0)?;
    let last = work.spans[0].tokens - 1;
    block_by_block(model, work, 0, rows.start..rows.end.min(last), probe)?;
    if rows.contains(&last) {
        head(model, work, &PassRows::Last, probe)?;
        work.last_rows[0] = 0;
    }
    Ok(())
}

/// Computes the means over all tokens of a span that edits of the head's stages read. The pass itself may need only the
/// last row.
fn collect_means(model: &Model, work: &mut Activations, span: usize) -> Result<()> {
    let Span { sequence, tokens, .. } = work.spans[span];
    if model.edits.is_empty() || tokens == 1 {
        return Ok(());
    }
    for stage in [Stage::FinalNorm, Stage::Logits, Stage::CappedLogits] {
        for part in model.edits.block_means(Site { sequence, ..Site::once(work.number, stage) }) {
            work.pending.kept.collect(sequence, Some(part));
            let collected = block_by_block(model, work, span, 0..tokens, &mut NoProbe);
            work.pending.kept.collect(sequence, None);
            collected?;
        }
    }
    Ok(())
}

/// Runs the head for `rows` of a span.
fn block_by_block(
    model: &Model,
    work: &mut Activations,
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

/// Shows the logits (V) of the last token of span number `span` of the most recent pass.
///
/// # Errors
/// Returns the errors of `see`, and an error if the backend fails.
pub fn last_logits(
    model: &Model,
    work: &Activations,
    span: usize,
    mut see: impl FnMut(&[f32]) -> Result<()>,
) -> Result<()> {
    let (vocab, row) = (model.config.vocab, work.last_rows[span]);
    model.backend.read(&work.logits, row * vocab..(row + 1) * vocab, &mut see)
}
