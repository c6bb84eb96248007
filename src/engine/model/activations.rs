//! The activation buffers of a forward pass. They are reused by the next pass.

use crate::backend::{Buffer, Input, Pass, PassRows, Span};
use llama_trace_core::config::ModelConfig;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::Stage;

use super::Model;
use super::launched::Launched;
use super::observe::Pending;

/// The maximum number of logits computed at once. Further rows are computed block by block.
pub(super) const LOGITS_AT_ONCE: usize = 1 << 24;

/// The input of a forward pass and all its activation buffers, with room for `rows` rows. The rows are the tokens of
/// all spans; the shapes call their number R. The buffers are reused, so a decode pass allocates no memory.
pub struct Activations {
    /// Row capacity of the buffers.
    pub(super) rows: usize,
    /// Number of the current pass.
    pub(super) number: usize,
    /// The tokens that the pass reads of each sequence.
    pub(super) spans: Vec<Span>,
    /// Ids and positions (R), in the memory that the operations read.
    pub(super) pass: Pass,
    /// (R, C/2)
    pub(super) rope_cos: Buffer,
    /// (R, C/2)
    pub(super) rope_sin: Buffer,
    /// (R, D): the input of a layer.
    pub(super) x: Buffer,
    /// (R, D)
    pub(super) attn_norm: Buffer,
    /// (R, H, C)
    pub(super) xq: Buffer,
    /// (R, G, C)
    pub(super) xk: Buffer,
    /// (R, G, C)
    pub(super) xv: Buffer,
    /// (R, H, C); empty if the family has no QK norm.
    pub(super) xq_norm: Buffer,
    /// (R, G, C); empty if the family has no QK norm.
    pub(super) xk_norm: Buffer,
    /// (R, H, C); empty if the family has no QK norm after RoPE.
    pub(super) xq_rope_norm: Buffer,
    /// (R, G, C); empty if the family has no QK norm after RoPE.
    pub(super) xk_rope_norm: Buffer,
    /// (R, H, C)
    pub(super) xq_rope: Buffer,
    /// (R, G, C)
    pub(super) xk_rope: Buffer,
    /// (R, H, C)
    pub(super) attn_heads: Buffer,
    /// (R, D)
    pub(super) attn_output: Buffer,
    /// (R, D): the norm of what a sublayer adds; empty if the family has no norm there.
    pub(super) post_norm: Buffer,
    /// (R, D)
    pub(super) attn_residual: Buffer,
    /// (R, D)
    pub(super) ffn_norm: Buffer,
    /// (R, F)
    pub(super) ffn_gate: Buffer,
    /// (R, F)
    pub(super) ffn_silu: Buffer,
    /// (R, F)
    pub(super) ffn_up: Buffer,
    /// (R, F)
    pub(super) ffn_hidden: Buffer,
    /// (R, D)
    pub(super) ffn_down: Buffer,
    /// (R, D): the output of a layer; swapped with `x`.
    pub(super) ffn_residual: Buffer,
    /// (rows, D): the input rows of the head.
    pub(super) head_input: Buffer,
    /// (rows, D)
    pub(super) final_norm: Buffer,
    /// (rows, V)
    pub(super) logits: Buffer,
    /// The prepared input of the next matrix products.
    pub(super) input: Input,
    /// Row capacity of the head's three buffers.
    pub(super) logit_rows: usize,
    /// For each span, the row of `logits` of its last token.
    pub(super) last_rows: Vec<usize>,
    /// Values that the probe has not received yet.
    pub(super) pending: Pending,
    /// The pass that was launched ahead, before its token ids were known on the host.
    pub(super) ahead: Option<Launched>,
}

impl Activations {
    /// Creates empty buffers; [`begin`](super::pass::begin) allocates them.
    ///
    /// # Errors
    /// Returns an error if the backend cannot create even empty buffers.
    pub fn new(model: &Model) -> Result<Self> {
        Self::with_room(model, 0)
    }

    fn with_room(model: &Model, rows: usize) -> Result<Self> {
        let config = &model.config;
        let buffer = |width: usize| model.backend.buffer(rows * width);
        let (d, q, kv, f) = (config.dim, config.q_dim(), config.kv_dim(), config.ffn_dim);
        let last = config.qk_norm_form.after_rope;
        Ok(Self {
            rows,
            number: 0,
            spans: Vec::new(),
            pass: model.backend.new_pass()?,
            rope_cos: buffer(config.turned() / 2)?,
            rope_sin: buffer(config.turned() / 2)?,
            x: buffer(d)?,
            attn_norm: buffer(d)?,
            xq: buffer(q)?,
            xk: buffer(kv)?,
            xv: buffer(kv)?,
            xq_norm: buffer(if config.qk_norm && !last { q } else { 0 })?,
            xk_norm: buffer(if config.qk_norm && !last { kv } else { 0 })?,
            xq_rope_norm: buffer(if config.qk_norm && last { q } else { 0 })?,
            xk_rope_norm: buffer(if config.qk_norm && last { kv } else { 0 })?,
            xq_rope: buffer(q)?,
            xk_rope: buffer(kv)?,
            attn_heads: buffer(q)?,
            attn_output: buffer(d)?,
            post_norm: buffer(if config.placement.after() { d } else { 0 })?,
            attn_residual: buffer(d)?,
            ffn_norm: buffer(d)?,
            ffn_gate: buffer(f)?,
            ffn_silu: buffer(f)?,
            ffn_up: buffer(f)?,
            ffn_hidden: buffer(f)?,
            ffn_down: buffer(d)?,
            ffn_residual: buffer(d)?,
            head_input: model.backend.buffer(0)?,
            final_norm: model.backend.buffer(0)?,
            logits: model.backend.buffer(0)?,
            input: model.backend.input(),
            logit_rows: 0,
            last_rows: Vec::new(),
            pending: Pending::default(),
            ahead: None,
        })
    }

    /// Allocates the buffers for a pass over `tokens` tokens of `spans` sequences. The pass itself then allocates
    /// nothing.
    ///
    /// # Errors
    /// Returns [`Error::Prompt`] if there is not enough memory.
    pub fn reserve(&mut self, model: &Model, tokens: usize, spans: usize) -> Result<()> {
        if self.rows < tokens {
            *self = Self::with_room(model, tokens).map_err(|error| no_room(error, &model.config, tokens))?;
        }
        self.reserve_head(model, spans)
    }

    /// Allocates the head's buffers for `rows` rows.
    pub(super) fn reserve_head(&mut self, model: &Model, rows: usize) -> Result<()> {
        if self.logit_rows < rows {
            let config = &model.config;
            let room = |width: usize| {
                model.backend.buffer(rows * width).map_err(|error| no_room(error, config, rows))
            };
            (self.head_input, self.final_norm, self.logits) =
                (room(config.dim)?, room(config.dim)?, room(config.vocab)?);
            self.logit_rows = rows;
        }
        Ok(())
    }

    /// The row capacity of the buffers.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Writes `x` (R, D) into the input buffer of [`layer`](super::forward::layer) and [`finish`](super::pass::finish).
    ///
    /// # Errors
    /// Returns an error if the backend fails.
    pub fn set_input(&mut self, model: &Model, x: &[f32]) -> Result<()> {
        model.backend.write(x, 0, &mut self.x)
    }

    /// Writes the rows of `stage`, from which [`rest`](super::forward::rest) goes on.
    ///
    /// # Errors
    /// Returns an error if the backend fails.
    pub fn write(&mut self, model: &Model, stage: Stage, values: &[f32]) -> Result<()> {
        let buffer = match stage {
            Stage::AttnHeads => &mut self.attn_heads,
            Stage::AttnOutput => &mut self.attn_output,
            Stage::AttnResidual => &mut self.attn_residual,
            // Without a gate, the activation is the hidden layer.
            Stage::FfnHidden | Stage::FfnAct if stage == model.sizes().neurons() => &mut self.ffn_hidden,
            Stage::FfnDown => &mut self.ffn_down,
            _ => return Err(Error::usage(format!("no layer goes on from {}", stage.name()))),
        };
        model.backend.write(values, 0, buffer)
    }

    /// Appends the first `count` values of the output of the layer to `values`.
    ///
    /// # Errors
    /// Returns an error if the backend fails.
    pub fn output(&self, model: &Model, count: usize, values: &mut Vec<f32>) -> Result<()> {
        model.backend.read(&self.x, 0..count, &mut |read| {
            values.extend_from_slice(read);
            Ok(())
        })
    }

    /// Discards the pass that was launched ahead, if any. Must be called before the contents of the caches are changed.
    pub fn forget_ahead(&mut self) {
        self.ahead = None;
    }

    /// Sets the pass number to `pass` and the spans to `spans`.
    pub(super) fn set(&mut self, pass: usize, spans: &[Span]) {
        (self.number, self.ahead) = (pass, None);
        self.spans.clear();
        self.spans.extend_from_slice(spans);
        self.last_rows.clear();
        self.last_rows.resize(spans.len(), 0);
    }

    /// R: the number of tokens of all spans.
    pub(super) fn tokens(&self) -> usize {
        PassRows::All.count(&self.spans)
    }
}

/// Returns roughly how many bytes the buffers of a pass over `tokens` tokens of `spans` sequences take. These are all
/// buffers of [`Activations`], with the head's buffers for all of its rows. A run needs this memory besides the weights
/// and the cache.
pub fn buffer_bytes(config: &ModelConfig, tokens: usize, spans: usize) -> usize {
    let (d, q, kv, f) = (config.dim, config.q_dim(), config.kv_dim(), config.ffn_dim);
    let norms = if config.qk_norm { q + kv } else { 0 };
    // The prepared inputs of matrix products. In int8: values and scales of the widest input. On a device with
    // bfloat16: all five inputs.
    let input = d.max(q).max(f).max((3 * d + q + f).div_ceil(2));
    let others = if config.placement.after() { d } else { 0 };
    let row = [config.turned(), others, 7 * d, 3 * q, 3 * kv, norms, 4 * f, input]
        .into_iter()
        .fold(0, usize::saturating_add);
    let head =
        LOGITS_AT_ONCE.max(config.vocab.saturating_mul(spans)).min(config.vocab.saturating_mul(tokens));
    row.saturating_mul(tokens).saturating_add(head).saturating_mul(size_of::<f32>())
}

/// Adds the pass and its size to an out-of-memory error.
fn no_room(error: Error, config: &ModelConfig, tokens: usize) -> Error {
    if error.says_next() {
        return error;
    }
    error
        .at(format!("the buffers of a pass over {tokens} tokens"))
        .expected(format!("room for {} bytes", buffer_bytes(config, tokens, 1)))
        .next("use a shorter prompt, or end other programs")
}
