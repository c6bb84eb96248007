//! The forward pass, top to bottom: the same code for the prompt (T tokens at once) and for every token
//! after it (T = 1), watched or not.
//!
//! A pass reads a span of tokens of each of its sequences ([`Span`]); one prompt is one span. The rows of all spans
//! stand one after the other: norms, products and residuals take them all at once, for no row knows of another
//! there. Only in the cache and in attention does a token meet others, and those go span by span.
//!
//! Each line computes one stage of the table in [`llama_trace_core::trace::stage`] and then offers it to the probe
//! under its name: `see.stage(…)` asks whether somebody wants it and copies it only then. An operation that a device
//! would fuse makes several, and offers each of them: `see.stages(…)`.
//!
//! Where a `?` stands, the pass may be left: an operation that was asked to stop has not written all of its
//! output, and nobody gets to see it.
//!
//! [`forward`] is [`begin`], then [`layer`] for every layer, then [`finish`]. The three are public because
//! a viewer that did not record everything runs single layers again, from the recorded input. What `begin` was told
//! stays in [`Activations`] until the next one.

use std::ops::Range;

use crate::backend::{AttentionShape, Backend, Draw, Drawn, PassRows, Product, Span, Swiglu};
use llama_trace_core::error::Result;
use llama_trace_core::trace::{Probe, Stage};

use super::activations::{Activations, LOGITS_AT_ONCE};
use super::observe::{Observer, Unseen};
use super::{KvCache, LayerWeights, Linear, Model};

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
    // What was on its way in a pass that was left is nobody's any more.
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

/// The rest of [`begin`], which need not know the ids.
pub(super) fn embed<B: Backend>(
    model: &Model<B>,
    work: &mut Activations<B>,
    probe: &mut dyn Probe,
) -> Result<()> {
    let backend = &model.backend;
    let place = (&work.pass, work.number);
    let mut see = Observer::new(model, probe, place, &mut work.unseen, &work.spans, &PassRows::All);
    backend.embedding(&model.weights.embedding, &work.pass, &mut work.x)?;
    see.stage(Stage::Embedding, &work.x)?;

    let (pairs, cos, sin) = (model.config.head_dim / 2, &mut work.rope_cos, &mut work.rope_sin);
    backend.rope_table(&model.rope_frequencies, pairs, &work.pass, cos, sin)?;
    see.stage(Stage::RopeCos, cos)?;
    see.stage(Stage::RopeSin, sin)?;

    see.mask()
}

/// One layer: reads `work.x` and writes `work.x`; keys and values of this pass go into the caches, one for each span.
///
/// # Errors
/// As [`forward`]'s.
pub fn layer<B: Backend>(
    model: &Model<B>,
    caches: &mut [&mut KvCache<B>],
    work: &mut Activations<B>,
    l: usize,
    probe: &mut dyn Probe,
) -> Result<()> {
    let (config, backend, t, all) = (&model.config, &model.backend, work.tokens(), &PassRows::All);
    let (d, kv, f) = (config.dim, config.kv_dim(), config.ffn_dim);
    let LayerWeights { attn_norm, wq, wk, wv, q_norm, k_norm, wo, ffn_norm, w1, w2, w3 } =
        &model.weights.layers[l];
    let place = (&work.pass, work.number);
    let mut see = Observer::new(model, probe, place, &mut work.unseen, &work.spans, all).in_layer(l);

    // Attention: what does each token take from the ones before it?
    backend.rms_norm(&work.x, attn_norm, config.norm_eps, t, &mut work.attn_norm)?;
    see.stage(Stage::AttnNorm, &work.attn_norm)?;

    backend.prepare(&work.attn_norm, d, &work.pass, all, &mut work.input)?;
    see.quantized(Stage::AttnNormQ8, Stage::AttnNormScale, &work.input)?;
    let mut products = [wq.product(&mut work.xq), wk.product(&mut work.xk), wv.product(&mut work.xv)];
    backend.matmuls(&work.input, &mut products, &mut see.stages(&[Stage::Xq, Stage::Xk, Stage::Xv]))?;

    // Qwen3 normalises every head's query and key first; the others turn them as they are.
    let (mut q, mut k) = (&work.xq, &work.xk);
    if let (Some(q_norm), Some(k_norm)) = (q_norm, k_norm) {
        backend.rms_norm(q, q_norm, config.norm_eps, t * config.heads, &mut work.xq_norm)?;
        see.stage(Stage::XqNorm, &work.xq_norm)?;
        backend.rms_norm(k, k_norm, config.norm_eps, t * config.kv_heads, &mut work.xk_norm)?;
        see.stage(Stage::XkNorm, &work.xk_norm)?;
        (q, k) = (&work.xq_norm, &work.xk_norm);
    }

    let (cos, sin, c) = (&work.rope_cos, &work.rope_sin, config.head_dim);
    backend.rope(q, cos, sin, config.pairing, config.heads, c, t, &mut work.xq_rope)?;
    see.stage(Stage::XqRope, &work.xq_rope)?;
    backend.rope(k, cos, sin, config.pairing, config.kv_heads, c, t, &mut work.xk_rope)?;
    see.stage(Stage::XkRope, &work.xk_rope)?;

    let window = model.sizes().window_of(l);
    let shape = AttentionShape { heads: config.heads, kv_heads: config.kv_heads, head_dim: c, window };
    for (span, cache) in caches.iter_mut().enumerate() {
        let (cache_k, cache_v) = cache.layer(l);
        backend.cache(&work.xk_rope, kv, &work.pass, span, cache_k)?;
        see.cache(span, Stage::CacheK, cache_k)?;
        backend.cache(&work.xv, kv, &work.pass, span, cache_v)?;
        see.cache(span, Stage::CacheV, cache_v)?;
    }
    for (span, cache) in caches.iter_mut().enumerate() {
        let (cache_k, cache_v) = cache.layer(l);
        // keys, values, qk, scores, masked_scores and softmax are inside; the observer sees them there.
        let (q, out, sink) = (&work.xq_rope, &mut work.attn_heads, &mut see.attention(span));
        backend.attention(shape, q, &work.pass, span, cache_k, cache_v, out, sink)?;
    }
    see.stage(Stage::AttnHeads, &work.attn_heads)?;

    backend.prepare(&work.attn_heads, config.q_dim(), &work.pass, all, &mut work.input)?;
    see.quantized(Stage::AttnHeadsQ8, Stage::AttnHeadsScale, &work.input)?;
    backend.matmul(&work.input, &wo.matrix, wo.bias.as_ref(), &mut work.attn_output)?;
    see.stage(Stage::AttnOutput, &work.attn_output)?;

    // Feed-forward: what does each token make of it, on its own?
    backend.add_rms_norm(
        (&work.x, &work.attn_output),
        ffn_norm,
        config.norm_eps,
        (t, d),
        (&mut work.attn_residual, &mut work.ffn_norm),
        &mut see.stages(&[Stage::AttnResidual, Stage::FfnNorm]),
    )?;

    backend.prepare(&work.ffn_norm, d, &work.pass, all, &mut work.input)?;
    see.quantized(Stage::FfnNormQ8, Stage::FfnNormScale, &work.input)?;
    let gated = Swiglu {
        gate: w1.product(&mut work.ffn_gate),
        silu: &mut work.ffn_silu,
        up: w3.product(&mut work.ffn_up),
        hidden: &mut work.ffn_hidden,
    };
    let stages = &[Stage::FfnGate, Stage::FfnSilu, Stage::FfnUp, Stage::FfnHidden];
    backend.swiglu(&work.input, t * f, gated, &mut see.stages(stages))?;

    backend.prepare(&work.ffn_hidden, f, &work.pass, all, &mut work.input)?;
    see.quantized(Stage::FfnHiddenQ8, Stage::FfnHiddenScale, &work.input)?;
    backend.matmul(&work.input, &w2.matrix, w2.bias.as_ref(), &mut work.ffn_down)?;
    see.stage(Stage::FfnDown, &work.ffn_down)?;
    backend.add(&work.attn_residual, &work.ffn_down, t * d, &mut work.ffn_residual)?;
    see.stage(Stage::FfnResidual, &work.ffn_residual)?;
    see.bring()?;

    std::mem::swap(&mut work.x, &mut work.ffn_residual);
    Ok(())
}

impl<B: Backend> Linear<B> {
    /// Its product, into `out`.
    fn product<'a>(&'a self, out: &'a mut B::Buffer) -> Product<'a, B> {
        Product { matrix: &self.matrix, bias: self.bias.as_ref(), out }
    }
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

/// The final norm and the logits of `rows`.
fn head<B: Backend>(
    model: &Model<B>,
    work: &mut Activations<B>,
    rows: &PassRows,
    probe: &mut dyn Probe,
) -> Result<()> {
    let (config, backend, d) = (&model.config, &model.backend, model.config.dim);
    let t = rows.count(&work.spans);
    work.reserve_head(model, t)?;
    let place = (&work.pass, work.number);
    let mut see = Observer::new(model, probe, place, &mut work.unseen, &work.spans, rows);
    backend.rows(&work.x, d, &work.pass, rows, &mut work.some)?;
    backend.rms_norm(&work.some, &model.weights.final_norm, config.norm_eps, t, &mut work.final_norm)?;
    see.stage(Stage::FinalNorm, &work.final_norm)?;

    backend.prepare(&work.final_norm, d, &work.pass, rows, &mut work.input)?;
    see.quantized(Stage::FinalNormQ8, Stage::FinalNormScale, &work.input)?;
    backend.matmul(&work.input, model.weights.head(), None, &mut work.logits)?;
    see.stage(Stage::Logits, &work.logits)
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
