//! The forward pass, from top to bottom. The same code runs the prompt (T tokens at once) and every later token (T =
//! 1), with or without a probe.
//!
//! A pass reads a span of tokens of each of its sequences ([`Span`](crate::backend::Span)). A single prompt is one
//! span. The rows of all spans are stored one after the other. Norms, products and residuals work on all rows at once,
//! because each row is independent there. Tokens interact only in the cache and in attention, and these run span by
//! span.
//!
//! Each line computes one stage of the table in [`llama_trace_core::trace::stage`] and then offers it to the probe.
//! `see.stage(…)` asks whether the probe wants the stage and copies it only then. A fused operation computes several
//! stages and offers each of them: `see.stages(…)`. At the same points, the edits of the run change values; without
//! edits, nothing more happens there.
//!
//! Each `?` may end the pass early. An operation that was asked to stop has not written all of its output, and this
//! output is never shown.
//!
//! A pass is `embed`, then [`layer`] for every layer, then `head`. A layer is `attend`, `project`, `gate` and `down`.
//! `pass.rs` calls them and knows the tokens and sequences of the pass. The comment at the end of a line is the shape of the output: T tokens, D channels, H query
//! heads and G kv heads of C channels, K cached tokens, F hidden values, V tokens of the vocabulary.

use crate::backend::{AttentionShape, Buffer, PassRows, Product, Swiglu, plain};
use llama_trace_core::error::Result;
use llama_trace_core::trace::{Probe, Stage};

use super::activations::Activations;
use super::observe::Observer;
use super::{KvCache, LayerWeights, Linear, Model};

/// Everything before the layers: the token embeddings and the tables that all layers share. The host need not know the
/// ids.
pub(super) fn embed(model: &Model, work: &mut Activations, probe: &mut dyn Probe) -> Result<()> {
    let backend = &model.backend;
    let place = (&work.pass, work.number);
    let mut see = Observer::new(model, probe, place, &mut work.pending, &work.spans, &PassRows::All);
    backend.embedding(&model.weights.embedding, &work.pass, &mut work.x)?; // (T, D)
    see.stage(Stage::Embedding, &mut work.x)?;

    let (pairs, cos, sin) = (model.config.head_dim / 2, &mut work.rope_cos, &mut work.rope_sin);
    backend.rope_table(&model.rope_frequencies, pairs, &work.pass, cos, sin)?; // (T, C/2) each
    see.stage(Stage::RopeCos, cos)?;
    see.stage(Stage::RopeSin, sin)?;

    see.mask()
}

/// One layer. It reads and writes `work.x`. The keys and values of this pass go into the caches, one cache for each
/// span.
///
/// # Errors
/// The errors of [`forward_and_draw`](super::pass::forward_and_draw).
pub fn layer(
    model: &Model,
    caches: &mut [&mut KvCache],
    work: &mut Activations,
    l: usize,
    probe: &mut dyn Probe,
) -> Result<()> {
    attend(model, caches, work, l, probe)?;
    rest(model, work, l, Stage::AttnHeads, probe)
}

/// The operations of a layer after `stage`: `AttnHeads`, `AttnOutput`, `FfnHidden` or `FfnDown`. The buffers have the
/// layer's input `work.x`, the rows of that stage, and after `AttnOutput` those of `AttnResidual`
/// ([`Activations::write`]).
///
/// # Errors
/// The errors of [`layer`].
pub fn rest(
    model: &Model,
    work: &mut Activations,
    l: usize,
    stage: Stage,
    probe: &mut dyn Probe,
) -> Result<()> {
    let place = (&work.pass, work.number);
    Observer::new(model, probe, place, &mut work.pending, &work.spans, &PassRows::All)
        .in_layer(l)
        .input(&work.x)?;
    if stage < Stage::AttnOutput {
        project(model, work, l, probe)?;
    }
    if stage < Stage::FfnHidden {
        gate(model, work, l, probe)?;
    }
    down(model, work, l, stage < Stage::FfnDown, probe)
}

/// Attention: what does each token take from the tokens before it?
fn attend(
    model: &Model,
    caches: &mut [&mut KvCache],
    work: &mut Activations,
    l: usize,
    probe: &mut dyn Probe,
) -> Result<()> {
    let (config, backend, t, all) = (&model.config, &model.backend, work.tokens(), &PassRows::All);
    let (d, kv) = (config.dim, config.kv_dim());
    let LayerWeights { attn_norm, wq, wk, wv, q_norm, k_norm, .. } = &model.weights.layers[l];
    let place = (&work.pass, work.number);
    let mut see = Observer::new(model, probe, place, &mut work.pending, &work.spans, all).in_layer(l);

    see.input(&work.x)?;
    backend.rms_norm(&work.x, attn_norm, config.norm_eps, t, &mut work.attn_norm)?; // (T, D)
    see.stage(Stage::AttnNorm, &mut work.attn_norm)?;

    backend.prepare(&work.attn_norm, d, &work.pass, all, &mut work.input)?;
    see.quantized(Stage::AttnNormQ8, Stage::AttnNormScale, &work.input)?;
    let mut products = [wq.product(&mut work.xq), wk.product(&mut work.xk), wv.product(&mut work.xv)];
    backend.matmuls(&work.input, &mut products, &mut see.stages(&[Stage::Xq, Stage::Xk, Stage::Xv]))?; // (T, H, C), (T, G, C) twice

    // Qwen3 normalises the query and the key of every head before RoPE; the other families do not.
    let (mut q, mut k) = (&work.xq, &work.xk);
    if let (Some(q_norm), Some(k_norm)) = (q_norm, k_norm) {
        backend.rms_norm(q, q_norm, config.norm_eps, t * config.heads, &mut work.xq_norm)?; // (T, H, C)
        see.stage(Stage::XqNorm, &mut work.xq_norm)?;
        backend.rms_norm(k, k_norm, config.norm_eps, t * config.kv_heads, &mut work.xk_norm)?; // (T, G, C)
        see.stage(Stage::XkNorm, &mut work.xk_norm)?;
        (q, k) = (&work.xq_norm, &work.xk_norm);
    }

    let (cos, sin, c) = (&work.rope_cos, &work.rope_sin, config.head_dim);
    backend.rope(q, cos, sin, config.pairing, config.heads, c, t, &mut work.xq_rope)?; // (T, H, C)
    see.stage(Stage::XqRope, &mut work.xq_rope)?;
    backend.rope(k, cos, sin, config.pairing, config.kv_heads, c, t, &mut work.xk_rope)?; // (T, G, C)
    see.stage(Stage::XkRope, &mut work.xk_rope)?;

    let shape = AttentionShape::of(config, l);
    for (span, cache) in caches.iter_mut().enumerate() {
        let (cache_k, cache_v) = cache.layer(l);
        backend.cache(&work.xk_rope, kv, &work.pass, span, cache_k)?; // (K, G, C)
        see.cache(span, Stage::CacheK, cache_k)?;
        backend.cache(&work.xv, kv, &work.pass, span, cache_v)?; // (K, G, C)
        see.cache(span, Stage::CacheV, cache_v)?;
    }
    for (span, cache) in caches.iter_mut().enumerate() {
        let (cache_k, cache_v) = cache.layer(l);
        // The stages keys, values, qk, scores, masked_scores and softmax are computed inside; the observer sees them
        // there.
        let (q, out) = (&work.xq_rope, &mut work.attn_heads);
        if see.edits_attention() {
            see.edited_attention(shape, q, span, (cache_k, cache_v), out)?;
        } else {
            let sink = &mut see.attention(span);
            backend.attention(shape, q, &work.pass, span, cache_k, cache_v, out, sink)?; // (T, H, C)
        }
    }
    see.stage(Stage::AttnHeads, &mut work.attn_heads)
}

/// The output projection of attention.
fn project(model: &Model, work: &mut Activations, l: usize, probe: &mut dyn Probe) -> Result<()> {
    let (config, backend, all) = (&model.config, &model.backend, &PassRows::All);
    let wo = &model.weights.layers[l].wo;
    let place = (&work.pass, work.number);
    let mut see = Observer::new(model, probe, place, &mut work.pending, &work.spans, all).in_layer(l);

    backend.prepare(&work.attn_heads, config.q_dim(), &work.pass, all, &mut work.input)?;
    see.quantized(Stage::AttnHeadsQ8, Stage::AttnHeadsScale, &work.input)?;
    backend.matmul(&work.input, &wo.matrix, wo.bias.as_ref(), &mut work.attn_output)?; // (T, D)
    see.stage(Stage::AttnOutput, &mut work.attn_output)
}

/// The first half of the feed-forward network: how is each token's vector transformed, independently of the others?
fn gate(model: &Model, work: &mut Activations, l: usize, probe: &mut dyn Probe) -> Result<()> {
    let (config, backend, t, all) = (&model.config, &model.backend, work.tokens(), &PassRows::All);
    let LayerWeights { ffn_norm, w1, w3, .. } = &model.weights.layers[l];
    let (d, f) = (config.dim, config.ffn_dim);
    let place = (&work.pass, work.number);
    let mut see = Observer::new(model, probe, place, &mut work.pending, &work.spans, all).in_layer(l);

    let (eps, size, read) = (config.norm_eps, (t, d), (&work.x, &work.attn_output));
    let out = (&mut work.attn_residual, &mut work.ffn_norm); // (T, D) both
    let stages = &[Stage::AttnResidual, Stage::FfnNorm];
    match see.edits(stages) {
        false => backend.add_rms_norm(read, ffn_norm, eps, size, out, &mut see.stages(stages))?,
        true => plain::add_rms_norm(&**backend, read, ffn_norm, eps, size, out, &mut see.stages(stages))?,
    }

    backend.prepare(&work.ffn_norm, d, &work.pass, all, &mut work.input)?;
    see.quantized(Stage::FfnNormQ8, Stage::FfnNormScale, &work.input)?;
    let gated = Swiglu {
        gate: w1.product(&mut work.ffn_gate),
        silu: &mut work.ffn_silu,
        up: w3.product(&mut work.ffn_up),
        hidden: &mut work.ffn_hidden,
    };
    let stages = &[Stage::FfnGate, Stage::FfnSilu, Stage::FfnUp, Stage::FfnHidden];
    match see.edits(stages) {
        false => backend.swiglu(&work.input, t * f, gated, &mut see.stages(stages)), // each output (T, F)
        true => plain::swiglu(&**backend, &work.input, t * f, gated, &mut see.stages(stages)),
    }
}

/// The second half of the feed-forward network, and the output of the layer. Without `product`, the buffers have
/// `ffn_down` already.
fn down(model: &Model, work: &mut Activations, l: usize, product: bool, probe: &mut dyn Probe) -> Result<()> {
    let (config, backend, t, all) = (&model.config, &model.backend, work.tokens(), &PassRows::All);
    let (w2, d, f) = (&model.weights.layers[l].w2, config.dim, config.ffn_dim);
    let place = (&work.pass, work.number);
    let mut see = Observer::new(model, probe, place, &mut work.pending, &work.spans, all).in_layer(l);

    if product {
        backend.prepare(&work.ffn_hidden, f, &work.pass, all, &mut work.input)?;
        see.quantized(Stage::FfnHiddenQ8, Stage::FfnHiddenScale, &work.input)?;
        backend.matmul(&work.input, &w2.matrix, w2.bias.as_ref(), &mut work.ffn_down)?; // (T, D)
        see.stage(Stage::FfnDown, &mut work.ffn_down)?;
    }
    backend.add(&work.attn_residual, &work.ffn_down, t * d, &mut work.ffn_residual)?; // (T, D)
    see.stage(Stage::FfnResidual, &mut work.ffn_residual)?;
    see.bring()?;

    std::mem::swap(&mut work.x, &mut work.ffn_residual);
    Ok(())
}

impl Linear {
    /// The product with this projection, written to `out`.
    fn product<'a>(&'a self, out: &'a mut Buffer) -> Product<'a> {
        Product { matrix: &self.matrix, bias: self.bias.as_ref(), out }
    }
}

/// The final norm and the logits of `rows`.
pub(super) fn head(
    model: &Model,
    work: &mut Activations,
    rows: &PassRows,
    probe: &mut dyn Probe,
) -> Result<()> {
    let (config, backend, weights, d) = (&model.config, &model.backend, &model.weights, model.config.dim);
    let t = rows.count(&work.spans);
    work.reserve_head(model, t)?;
    let place = (&work.pass, work.number);
    let mut see = Observer::new(model, probe, place, &mut work.pending, &work.spans, rows);
    backend.rows(&work.x, d, &work.pass, rows, &mut work.head_input)?; // (T, D), T: number of `rows`
    see.input(&work.head_input)?;
    backend.rms_norm(&work.head_input, &weights.final_norm, config.norm_eps, t, &mut work.final_norm)?; // (T, D)
    see.stage(Stage::FinalNorm, &mut work.final_norm)?;

    backend.prepare(&work.final_norm, d, &work.pass, rows, &mut work.input)?;
    see.quantized(Stage::FinalNormQ8, Stage::FinalNormScale, &work.input)?;
    backend.matmul(&work.input, weights.head(), None, &mut work.logits)?; // (T, V)
    see.stage(Stage::Logits, &mut work.logits)
}
