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
//! Llama is the main text. Where another family computes more, or something else, the line says which one. These
//! lines ask for a weight or a number of the configuration that a Llama does not have. The operations that only other
//! families have are in `families.rs`.
//!
//! A pass is `embed`, then [`layer`] for every layer, then `head`. A layer is `attend`, `project`, `gate` and `down`.
//! `pass.rs` calls them and knows the tokens and sequences of the pass. The comment at the end of a line is the shape of the output: T tokens, D channels, H query
//! heads and G kv heads of C channels, K cached tokens, F hidden values, V tokens of the vocabulary.

use crate::backend::{AttentionShape, Buffer, PassRows, Product, Swiglu, plain};
use llama_trace_core::config::{Activation, Placement};
use llama_trace_core::error::Result;
use llama_trace_core::trace::{Probe, Stage};

use super::activations::Activations;
use super::observe::Observer;
use super::{KvCache, LayerWeights, Linear, Model, families};

/// Everything before the layers: the token embeddings and the tables that all layers share. The host need not know the
/// ids.
pub(super) fn embed(model: &Model, work: &mut Activations, probe: &mut dyn Probe) -> Result<()> {
    let backend = &model.backend;
    let place = (&work.pass, work.number);
    let mut see = Observer::new(model, probe, place, &mut work.pending, &work.spans, &PassRows::All);
    backend.embedding(&model.weights.embedding, &work.pass, &mut work.x)?; // (T, D)
    families::scale_embedding(model, PassRows::All.count(&work.spans), &mut work.x)?; // Gemma, Granite
    see.stage(Stage::Embedding, &mut work.x)?;

    // In Gemma 3 and OLMo 3, the layers differ in their RoPE: each has its tables.
    if model.config.local_rope.is_none() {
        let (cos, sin) = (&mut work.rope_cos, &mut work.rope_sin);
        families::rope_table(model, 0, &work.pass, &work.spans, (cos, sin))?; // (T, C/2) each
        see.stage(Stage::RopeCos, cos)?;
        see.stage(Stage::RopeSin, sin)?;
    }

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
    after(model, work, l, Stage::AttnHeads, probe)
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
    // In Command R, the feed-forward network reads the norm before attention.
    if let (Placement::Parallel, Some(norm)) = (model.config.placement, &model.weights.layers[l].attn_norm) {
        norm.apply(&*model.backend, &work.x, (work.tokens(), model.config.dim), &mut work.attn_norm)?;
    }
    after(model, work, l, stage, probe)
}

/// [`rest`], where the buffers also have the norm before attention.
fn after(model: &Model, work: &mut Activations, l: usize, stage: Stage, probe: &mut dyn Probe) -> Result<()> {
    let place = (&work.pass, work.number);
    Observer::new(model, probe, place, &mut work.pending, &work.spans, &PassRows::All)
        .in_layer(l)
        .input(&work.x)?;
    if stage < Stage::AttnOutput {
        project(model, work, l, probe)?;
    }
    if stage < Stage::PostAttnNorm {
        post_norm(model, work, l, probe)?;
    }
    if stage < model.sizes().neurons() {
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
    let mut x = &work.x; // OLMo 2 has no norm here
    if let Some(norm) = attn_norm {
        norm.apply(&**backend, x, (t, d), &mut work.attn_norm)?; // (T, D)
        see.stage(Stage::AttnNorm, &mut work.attn_norm)?;
        x = &work.attn_norm;
    }

    backend.prepare(x, d, &work.pass, all, &mut work.input)?;
    see.quantized(Stage::AttnNormQ8, Stage::AttnNormScale, &work.input)?;
    let mut products = [wq.product(&mut work.xq), wk.product(&mut work.xk), wv.product(&mut work.xv)];
    backend.matmuls(&work.input, &mut products, &mut see.stages(&[Stage::Xq, Stage::Xk, Stage::Xv]))?; // (T, H, C), (T, G, C) twice

    // Qwen3 and others normalise the queries and keys before RoPE; Hunyuan normalises them after it.
    let (mut q, mut k) = (&work.xq, &work.xk);
    let (q_width, last) = (config.q_dim(), config.qk_norm_form.after_rope);
    if let (Some(q_norm), Some(k_norm), false) = (q_norm, k_norm, last) {
        q_norm.apply(&**backend, q, (t, q_width), &mut work.xq_norm)?; // (T, H, C)
        see.stage(Stage::XqNorm, &mut work.xq_norm)?;
        k_norm.apply(&**backend, k, (t, kv), &mut work.xk_norm)?; // (T, G, C)
        see.stage(Stage::XkNorm, &mut work.xk_norm)?;
        (q, k) = (&work.xq_norm, &work.xk_norm);
    }

    // SmolLM3 and Command R7B have layers without RoPE.
    if let Some(number) = config.rope_of(l) {
        // Gemma 3 and OLMo 3
        if config.local_rope.is_some() {
            let (cos, sin) = (&mut work.rope_cos, &mut work.rope_sin);
            families::rope_table(model, number, &work.pass, &work.spans, (cos, sin))?; // (T, C/2) each
            see.stage(Stage::LayerRopeCos, cos)?;
            see.stage(Stage::LayerRopeSin, sin)?;
        }
        let tables = (&work.rope_cos, &work.rope_sin);
        families::rope(model, q, tables, (t, config.heads), &mut work.xq_rope)?; // (T, H, C)
        families::scale_queries(model, &work.spans, &mut work.xq_rope)?; // Ministral 3
        see.stage(Stage::XqRope, &mut work.xq_rope)?;
        families::rope(model, k, tables, (t, config.kv_heads), &mut work.xk_rope)?; // (T, G, C)
        see.stage(Stage::XkRope, &mut work.xk_rope)?;
        (q, k) = (&work.xq_rope, &work.xk_rope);
    }
    if let (Some(q_norm), Some(k_norm), true) = (q_norm, k_norm, last) {
        q_norm.apply(&**backend, q, (t, q_width), &mut work.xq_rope_norm)?; // (T, H, C)
        see.stage(Stage::XqRopeNorm, &mut work.xq_rope_norm)?;
        k_norm.apply(&**backend, k, (t, kv), &mut work.xk_rope_norm)?; // (T, G, C)
        see.stage(Stage::XkRopeNorm, &mut work.xk_rope_norm)?;
        (q, k) = (&work.xq_rope_norm, &work.xk_rope_norm);
    }

    let shape = AttentionShape::of(config, l);
    for (span, cache) in caches.iter_mut().enumerate() {
        let (cache_k, cache_v) = cache.layer(l);
        backend.cache(k, kv, &work.pass, span, cache_k)?; // (K, G, C)
        see.cache(span, Stage::CacheK, cache_k)?;
        backend.cache(&work.xv, kv, &work.pass, span, cache_v)?; // (K, G, C)
        see.cache(span, Stage::CacheV, cache_v)?;
    }
    for (span, cache) in caches.iter_mut().enumerate() {
        let (cache_k, cache_v) = cache.layer(l);
        // The stages keys, values, qk, scores, capped_scores (Gemma 2), masked_scores and softmax are computed inside;
        // the observer sees them there.
        let out = &mut work.attn_heads;
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
    let LayerWeights { wo, .. } = &model.weights.layers[l];
    let place = (&work.pass, work.number);
    let mut see = Observer::new(model, probe, place, &mut work.pending, &work.spans, all).in_layer(l);

    backend.prepare(&work.attn_heads, config.q_dim(), &work.pass, all, &mut work.input)?;
    see.quantized(Stage::AttnHeadsQ8, Stage::AttnHeadsScale, &work.input)?;
    backend.matmul(&work.input, &wo.matrix, wo.bias.as_ref(), &mut work.attn_output)?; // (T, D)
    see.stage(Stage::AttnOutput, &mut work.attn_output)
}

/// The norm of what attention adds to the stream (Gemma 2, OLMo 2 and others).
fn post_norm(model: &Model, work: &mut Activations, l: usize, probe: &mut dyn Probe) -> Result<()> {
    let Some(norm) = &model.weights.layers[l].post_attn_norm else { return Ok(()) };
    let (t, place) = (work.tokens(), (&work.pass, work.number));
    let mut see =
        Observer::new(model, probe, place, &mut work.pending, &work.spans, &PassRows::All).in_layer(l);
    norm.apply(&*model.backend, &work.attn_output, (t, model.config.dim), &mut work.post_norm)?; // (T, D)
    see.stage(Stage::PostAttnNorm, &mut work.post_norm)
}

/// The first half of the feed-forward network: how is each token's vector transformed, independently of the others?
fn gate(model: &Model, work: &mut Activations, l: usize, probe: &mut dyn Probe) -> Result<()> {
    let (config, backend, t, all) = (&model.config, &model.backend, work.tokens(), &PassRows::All);
    let layer = &model.weights.layers[l];
    let (d, f) = (config.dim, config.ffn_dim);
    let place = (&work.pass, work.number);
    let mut see = Observer::new(model, probe, place, &mut work.pending, &work.spans, all).in_layer(l);

    // In Llama, one operation computes the residual and the norm that reads it. (T, D) both
    let normed = match &layer.ffn_norm {
        Some(norm) if model.is_llama_residual(norm) => {
            let (weight, eps, read) = (&norm.weight, norm.eps(), (&work.x, &work.attn_output));
            let (out, stages) =
                ((&mut work.attn_residual, &mut work.ffn_norm), &[Stage::AttnResidual, Stage::FfnNorm]);
            match see.edits(stages) {
                false => backend.add_rms_norm(read, weight, eps, (t, d), out, &mut see.stages(stages))?,
                true => {
                    plain::add_rms_norm(&**backend, read, weight, eps, (t, d), out, &mut see.stages(stages))?;
                }
            }
            &work.ffn_norm
        }
        norm => {
            let added = if layer.post_attn_norm.is_some() { &work.post_norm } else { &work.attn_output };
            families::residual(model, &work.x, added, t * d, &mut work.attn_residual)?;
            see.stage(Stage::AttnResidual, &mut work.attn_residual)?;
            match norm {
                Some(norm) => {
                    norm.apply(&**backend, &work.attn_residual, (t, d), &mut work.ffn_norm)?;
                    see.stage(Stage::FfnNorm, &mut work.ffn_norm)?;
                    &work.ffn_norm
                }
                None if config.placement == Placement::Parallel => &work.attn_norm, // Command R
                None => &work.attn_residual,                                        // OLMo 2
            }
        }
    };

    backend.prepare(normed, d, &work.pass, all, &mut work.input)?;
    see.quantized(Stage::FfnNormQ8, Stage::FfnNormScale, &work.input)?;
    match &layer.w1 {
        Some(w1) if config.activation == Activation::Silu => {
            let gated = Swiglu {
                gate: w1.product(&mut work.ffn_gate),
                silu: &mut work.ffn_silu,
                up: layer.w3.product(&mut work.ffn_up),
                hidden: &mut work.ffn_hidden,
            };
            let stages = &[Stage::FfnGate, Stage::FfnSilu, Stage::FfnUp, Stage::FfnHidden];
            match see.edits(stages) {
                false => backend.swiglu(&work.input, t * f, gated, &mut see.stages(stages)), // each output (T, F)
                true => plain::swiglu(&**backend, &work.input, t * f, gated, &mut see.stages(stages)),
            }
        }
        // Gemma's gate is a GELU.
        Some(w1) => {
            let mut products = [w1.product(&mut work.ffn_gate), layer.w3.product(&mut work.ffn_up)];
            let stages = &[Stage::FfnGate, Stage::FfnUp];
            backend.matmuls(&work.input, &mut products, &mut see.stages(stages))?; // (T, F) both
            families::activate(model, l, &work.ffn_gate, t * f, &mut work.ffn_silu)?; // (T, F)
            see.stage(Stage::FfnAct, &mut work.ffn_silu)?;
            backend.mul(&work.ffn_silu, &work.ffn_up, t * f, &mut work.ffn_hidden)?; // (T, F)
            see.stage(Stage::FfnHidden, &mut work.ffn_hidden)
        }
        // Arcee and Apertus have no gate: the activation is the hidden layer.
        None => {
            let mut products = [layer.w3.product(&mut work.ffn_up)];
            backend.matmuls(&work.input, &mut products, &mut see.stages(&[Stage::FfnUp]))?; // (T, F)
            families::activate(model, l, &work.ffn_up, t * f, &mut work.ffn_hidden)?; // (T, F)
            see.stage(Stage::FfnAct, &mut work.ffn_hidden)
        }
    }
}

/// The second half of the feed-forward network, and the output of the layer. Without `product`, the buffers have
/// `ffn_down` already.
fn down(model: &Model, work: &mut Activations, l: usize, product: bool, probe: &mut dyn Probe) -> Result<()> {
    let (config, backend, t, all) = (&model.config, &model.backend, work.tokens(), &PassRows::All);
    let (d, f) = (config.dim, config.ffn_dim);
    let LayerWeights { w2, post_ffn_norm, .. } = &model.weights.layers[l];
    let place = (&work.pass, work.number);
    let mut see = Observer::new(model, probe, place, &mut work.pending, &work.spans, all).in_layer(l);

    if product {
        backend.prepare(&work.ffn_hidden, f, &work.pass, all, &mut work.input)?;
        see.quantized(Stage::FfnHiddenQ8, Stage::FfnHiddenScale, &work.input)?;
        backend.matmul(&work.input, &w2.matrix, w2.bias.as_ref(), &mut work.ffn_down)?; // (T, D)
        see.stage(Stage::FfnDown, &mut work.ffn_down)?;
    }
    let mut added = &work.ffn_down;
    if let Some(norm) = post_ffn_norm {
        norm.apply(&**backend, added, (t, d), &mut work.post_norm)?; // (T, D)
        see.stage(Stage::PostFfnNorm, &mut work.post_norm)?;
        added = &work.post_norm;
    }
    families::residual(model, &work.attn_residual, added, t * d, &mut work.ffn_residual)?; // (T, D)
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
    weights.final_norm.apply(&**backend, &work.head_input, (t, d), &mut work.final_norm)?; // (T, D)
    see.stage(Stage::FinalNorm, &mut work.final_norm)?;

    backend.prepare(&work.final_norm, d, &work.pass, rows, &mut work.input)?;
    see.quantized(Stage::FinalNormQ8, Stage::FinalNormScale, &work.input)?;
    backend.matmul(&work.input, weights.head(), None, &mut work.logits)?; // (T, V)
    families::scale_logits(model, t, &mut work.logits)?; // Command R, Granite
    see.stage(Stage::Logits, &mut work.logits)?;
    // Gemma 2
    if let Some(cap) = config.logit_cap {
        families::cap_logits(model, cap, t, &mut work.logits)?;
        see.stage(Stage::CappedLogits, &mut work.logits)?;
    }
    Ok(())
}
