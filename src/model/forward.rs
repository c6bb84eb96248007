//! The forward pass, top to bottom: the same code for the prompt (T tokens at once) and for every token
//! after it (T = 1), watched or not.
//!
//! Each line computes one stage of the table in [`crate::trace::stage`] and then offers it to the probe
//! under its name: `see.stage(…)` asks whether somebody wants it and copies it only then.
//!
//! Where a `?` stands, the pass may be left: an operation that was asked to stop has not written all of its
//! output, and nobody gets to see it.
//!
//! [`forward`] is [`begin`], then [`layer`] for every layer, then [`finish`]. The three are public because
//! a viewer that did not record everything runs single layers again, from the recorded input.

use std::ops::Range;

use crate::backend::{AttentionShape, Backend};
use crate::config::ModelConfig;
use crate::error::Result;
use crate::trace::{PassDims, Probe, Stage};

use super::observe::Observer;
use super::{KvCache, LayerWeights, Model};

/// The buffers of a pass over T tokens; kept from pass to pass, so that a decode pass allocates nothing.
pub struct Activations<B: Backend> {
    /// T that the buffers have room for.
    tokens: usize,
    rope_cos: B::Buffer,      // (T, C/2)
    rope_sin: B::Buffer,      // (T, C/2)
    x: B::Buffer,             // (T, D) what enters a layer
    attn_norm: B::Buffer,     // (T, D)
    xq: B::Buffer,            // (T, H, C)
    xk: B::Buffer,            // (T, G, C)
    xv: B::Buffer,            // (T, G, C)
    xq_norm: B::Buffer,       // (T, H, C), or nothing where the family has no such norm
    xk_norm: B::Buffer,       // (T, G, C), or nothing
    xq_rope: B::Buffer,       // (T, H, C)
    xk_rope: B::Buffer,       // (T, G, C)
    attn_heads: B::Buffer,    // (T, H, C)
    attn_output: B::Buffer,   // (T, D)
    attn_residual: B::Buffer, // (T, D)
    ffn_norm: B::Buffer,      // (T, D)
    ffn_gate: B::Buffer,      // (T, F)
    ffn_silu: B::Buffer,      // (T, F)
    ffn_up: B::Buffer,        // (T, F)
    ffn_hidden: B::Buffer,    // (T, F)
    ffn_down: B::Buffer,      // (T, D)
    ffn_residual: B::Buffer,  // (T, D) what leaves a layer; swapped with x
    some: B::Buffer,          // (rows, D) the rows that the head reads at once
    final_norm: B::Buffer,    // (rows, D)
    logits: B::Buffer,        // (rows, V)
    input: B::Input,          // what the next matrix products read
    logit_rows: usize,
    /// The row of `logits` that was computed last.
    last_row: usize,
}

impl<B: Backend> Activations<B> {
    /// No buffers yet; [`begin`] makes room.
    pub fn new(model: &Model<B>) -> Self {
        Self::with_room(model, 0)
    }

    fn with_room(model: &Model<B>, tokens: usize) -> Self {
        let config = &model.config;
        let buffer = |width: usize| model.backend.buffer(tokens * width);
        let (d, q, kv, f) = (config.dim, config.q_dim(), config.kv_dim(), config.ffn_dim);
        Self {
            tokens,
            rope_cos: buffer(config.head_dim / 2),
            rope_sin: buffer(config.head_dim / 2),
            x: buffer(d),
            attn_norm: buffer(d),
            xq: buffer(q),
            xk: buffer(kv),
            xv: buffer(kv),
            xq_norm: buffer(if config.qk_norm { q } else { 0 }),
            xk_norm: buffer(if config.qk_norm { kv } else { 0 }),
            xq_rope: buffer(q),
            xk_rope: buffer(kv),
            attn_heads: buffer(q),
            attn_output: buffer(d),
            attn_residual: buffer(d),
            ffn_norm: buffer(d),
            ffn_gate: buffer(f),
            ffn_silu: buffer(f),
            ffn_up: buffer(f),
            ffn_hidden: buffer(f),
            ffn_down: buffer(d),
            ffn_residual: buffer(d),
            some: model.backend.buffer(0),
            final_norm: model.backend.buffer(0),
            logits: model.backend.buffer(0),
            input: model.backend.input(),
            logit_rows: 0,
            last_row: 0,
        }
    }

    /// Puts `x` (T, D) where [`layer`] and [`finish`] read their input.
    pub fn set_input(&mut self, model: &Model<B>, x: &[f32]) {
        model.backend.write(x, &mut self.x);
    }
}

/// About how many bytes the buffers of a pass over `tokens` tokens take, those of the head for all of its rows
/// included: what [`Activations`] holds besides the weights and the cache.
pub fn buffer_bytes(config: &ModelConfig, tokens: usize) -> usize {
    let (d, q, kv, f) = (config.dim, config.q_dim(), config.kv_dim(), config.ffn_dim);
    let norms = if config.qk_norm { q + kv } else { 0 };
    let input = d.max(q).max(f);
    let row = [config.head_dim, 7 * d, 3 * q, 3 * kv, norms, 4 * f, input]
        .into_iter()
        .fold(0, usize::saturating_add);
    let head = LOGITS_AT_ONCE.max(config.vocab).min(config.vocab.saturating_mul(tokens));
    row.saturating_mul(tokens).saturating_add(head).saturating_mul(size_of::<f32>())
}

/// Runs `ids` through the model, at the positions after those in `cache`. The logits of the last token are
/// then in `work` ([`last_logits`]).
///
/// # Errors
/// [`crate::error::Error::Interrupted`] where the backend was asked to stop ([`Backend::stop`]). The cache then
/// holds what it held before, and the same pass can be run again.
pub fn forward<B: Backend, P: Probe>(
    model: &Model<B>,
    cache: &mut KvCache<B>,
    work: &mut Activations<B>,
    pass: usize,
    ids: &[u32],
    probe: &mut P,
) -> Result<()> {
    let dims = PassDims { pass, start: cache.len(), tokens: ids.len() };
    begin(model, work, dims, ids, probe)?;
    cache.reserve(dims.keys(), &model.backend);
    for l in 0..model.config.layers {
        layer(model, cache, work, dims, l, probe)?;
    }
    finish(model, work, dims, probe)?;
    cache.set_len(dims.keys());
    Ok(())
}

/// Everything before the layers: the tokens' embeddings, and the tables that all layers share.
///
/// # Errors
/// As [`forward`]'s.
pub fn begin<B: Backend, P: Probe>(
    model: &Model<B>,
    work: &mut Activations<B>,
    dims: PassDims,
    ids: &[u32],
    probe: &mut P,
) -> Result<()> {
    let (backend, t) = (&model.backend, dims.tokens);
    if work.tokens < t {
        *work = Activations::with_room(model, t);
    }
    let mut see = Observer::once(model, probe, dims);

    see.ids(Stage::Tokens, ids)?;

    backend.embedding(&model.weights.embedding, ids, &mut work.x)?;
    see.stage(Stage::Embedding, &work.x)?;

    let (cos, sin) = (&mut work.rope_cos, &mut work.rope_sin);
    backend.rope_table(&model.rope_frequencies, dims.start, t, cos, sin);
    see.stage(Stage::RopeCos, cos)?;
    see.stage(Stage::RopeSin, sin)?;

    see.mask()
}

/// One layer: reads `work.x` and writes `work.x`; keys and values of this pass go into the cache.
///
/// # Errors
/// As [`forward`]'s.
pub fn layer<B: Backend, P: Probe>(
    model: &Model<B>,
    cache: &mut KvCache<B>,
    work: &mut Activations<B>,
    dims: PassDims,
    l: usize,
    probe: &mut P,
) -> Result<()> {
    let (config, backend, t) = (&model.config, &model.backend, dims.tokens);
    let (d, kv, f) = (config.dim, config.kv_dim(), config.ffn_dim);
    let LayerWeights { attn_norm, wq, wk, wv, q_norm, k_norm, wo, ffn_norm, w1, w2, w3 } =
        &model.weights.layers[l];
    let (cache_k, cache_v) = cache.layer(l);
    let mut see = Observer::layer(model, probe, dims, l);

    // Attention: what does each token take from the ones before it?
    backend.rms_norm(&work.x, attn_norm, config.norm_eps, t, &mut work.attn_norm)?;
    see.stage(Stage::AttnNorm, &work.attn_norm)?;

    backend.prepare(&work.attn_norm, d, t, t, &mut work.input)?;
    see.quantized(Stage::AttnNormQ8, Stage::AttnNormScale, &work.input)?;
    backend.matmul(&work.input, &wq.matrix, wq.bias.as_ref(), &mut work.xq)?;
    see.stage(Stage::Xq, &work.xq)?;
    backend.matmul(&work.input, &wk.matrix, wk.bias.as_ref(), &mut work.xk)?;
    see.stage(Stage::Xk, &work.xk)?;
    backend.matmul(&work.input, &wv.matrix, wv.bias.as_ref(), &mut work.xv)?;
    see.stage(Stage::Xv, &work.xv)?;

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

    backend.cache(&work.xk_rope, kv, dims.start, t, cache_k);
    see.cache(Stage::CacheK, cache_k)?;
    backend.cache(&work.xv, kv, dims.start, t, cache_v);
    see.cache(Stage::CacheV, cache_v)?;

    // keys, values, qk, scores, masked_scores and softmax are inside; the observer sees them there.
    let shape = AttentionShape {
        tokens: t,
        start: dims.start,
        heads: config.heads,
        kv_heads: config.kv_heads,
        head_dim: c,
        window: model.sizes().window_of(l),
    };
    backend.attention(shape, &work.xq_rope, cache_k, cache_v, &mut work.attn_heads, &mut see)?;
    see.stage(Stage::AttnHeads, &work.attn_heads)?;

    backend.prepare(&work.attn_heads, config.q_dim(), t, t, &mut work.input)?;
    see.quantized(Stage::AttnHeadsQ8, Stage::AttnHeadsScale, &work.input)?;
    backend.matmul(&work.input, &wo.matrix, wo.bias.as_ref(), &mut work.attn_output)?;
    see.stage(Stage::AttnOutput, &work.attn_output)?;
    backend.add(&work.x, &work.attn_output, t * d, &mut work.attn_residual)?;
    see.stage(Stage::AttnResidual, &work.attn_residual)?;

    // Feed-forward: what does each token make of it, on its own?
    backend.rms_norm(&work.attn_residual, ffn_norm, config.norm_eps, t, &mut work.ffn_norm)?;
    see.stage(Stage::FfnNorm, &work.ffn_norm)?;

    backend.prepare(&work.ffn_norm, d, t, t, &mut work.input)?;
    see.quantized(Stage::FfnNormQ8, Stage::FfnNormScale, &work.input)?;
    backend.matmul(&work.input, &w1.matrix, w1.bias.as_ref(), &mut work.ffn_gate)?;
    see.stage(Stage::FfnGate, &work.ffn_gate)?;
    backend.silu(&work.ffn_gate, t * f, &mut work.ffn_silu)?;
    see.stage(Stage::FfnSilu, &work.ffn_silu)?;
    backend.matmul(&work.input, &w3.matrix, w3.bias.as_ref(), &mut work.ffn_up)?;
    see.stage(Stage::FfnUp, &work.ffn_up)?;
    backend.mul(&work.ffn_silu, &work.ffn_up, t * f, &mut work.ffn_hidden)?;
    see.stage(Stage::FfnHidden, &work.ffn_hidden)?;

    backend.prepare(&work.ffn_hidden, f, t, t, &mut work.input)?;
    see.quantized(Stage::FfnHiddenQ8, Stage::FfnHiddenScale, &work.input)?;
    backend.matmul(&work.input, &w2.matrix, w2.bias.as_ref(), &mut work.ffn_down)?;
    see.stage(Stage::FfnDown, &work.ffn_down)?;
    backend.add(&work.attn_residual, &work.ffn_down, t * d, &mut work.ffn_residual)?;
    see.stage(Stage::FfnResidual, &work.ffn_residual)?;

    std::mem::swap(&mut work.x, &mut work.ffn_residual);
    Ok(())
}

/// Logits that are computed at once: more rows go one block after the other.
const LOGITS_AT_ONCE: usize = 1 << 22;

/// Everything after the layers: from `work.x` to the logits, of the last token only unless the probe wants
/// every row.
///
/// # Errors
/// As [`forward`]'s.
pub fn finish<B: Backend, P: Probe>(
    model: &Model<B>,
    work: &mut Activations<B>,
    dims: PassDims,
    probe: &mut P,
) -> Result<()> {
    let see = Observer::once(model, probe, dims);
    let stages = [Stage::FinalNorm, Stage::FinalNormQ8, Stage::FinalNormScale, Stage::Logits];
    let every_row = stages.into_iter().any(|stage| see.wants(stage));
    let first = if every_row { 0 } else { dims.tokens - 1 };
    finish_rows(model, work, dims, first..dims.tokens, probe)
}

/// [`finish`] for the tokens `rows`.
///
/// # Errors
/// As [`forward`]'s.
pub fn finish_rows<B: Backend, P: Probe>(
    model: &Model<B>,
    work: &mut Activations<B>,
    dims: PassDims,
    rows: Range<usize>,
    probe: &mut P,
) -> Result<()> {
    let (config, backend) = (&model.config, &model.backend);
    let (d, at_once) = (config.dim, (LOGITS_AT_ONCE / config.vocab).clamp(1, rows.len().max(1)));
    if work.logit_rows < at_once {
        (work.some, work.final_norm) = (backend.buffer(at_once * d), backend.buffer(at_once * d));
        (work.logits, work.logit_rows) = (backend.buffer(at_once * config.vocab), at_once);
    }
    let last = dims.tokens - 1;
    let mut first = rows.start;
    while first < rows.end {
        // The last token's row goes alone and is summed as in a pass of one token: it is the only one that a pass
        // computes which nobody watches, and it must not differ where somebody does.
        let (t, order) =
            if first == last { (1, 1) } else { (at_once.min(rows.end.min(last) - first), dims.tokens) };
        let mut see = Observer::some(model, probe, dims, first..first + t);
        backend.rows(&work.x, first..first + t, d, &mut work.some);
        backend.rms_norm(&work.some, &model.weights.final_norm, config.norm_eps, t, &mut work.final_norm)?;
        see.stage(Stage::FinalNorm, &work.final_norm)?;

        backend.prepare(&work.final_norm, d, t, order, &mut work.input)?;
        see.quantized(Stage::FinalNormQ8, Stage::FinalNormScale, &work.input)?;
        backend.matmul(&work.input, model.weights.head(), None, &mut work.logits)?;
        see.stage(Stage::Logits, &work.logits)?;
        work.last_row = t - 1;
        first += t;
    }
    Ok(())
}

/// Shows the logits (V) of the last token of the pass that ran last.
pub fn last_logits<B: Backend>(model: &Model<B>, work: &Activations<B>, mut see: impl FnMut(&[f32])) {
    let vocab = model.config.vocab;
    let first = work.last_row * vocab;
    model.backend.read(&work.logits, first + vocab, &mut |logits| see(&logits[first..]));
}
