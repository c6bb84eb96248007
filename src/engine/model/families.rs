//! The steps of the forward pass that differ between families. A step that a Llama does not have does nothing there, or
//! is Llama's own operation.

use super::Model;
use super::norms::{Norm, families};
use crate::backend::{Buffer, Pass, Span};
use llama_trace_core::config::Precision;
use llama_trace_core::error::Result;
use llama_trace_core::ops;
use llama_trace_core::ops::round;
use llama_trace_core::trace::Stage;

impl Model {
    /// Whether the residual before `norm` and the norm are Llama's, so that one operation computes both.
    pub(super) fn is_llama_residual(&self, norm: &Norm) -> bool {
        norm.is_plain() && !self.config.placement.after() && self.config.multipliers.residual == 1.0
    }
}

/// Multiplies the embeddings of `tokens` tokens by the family's factor. It is rounded to the precision, as in Gemma.
pub(super) fn scale_embedding(model: &Model, tokens: usize, x: &mut Buffer) -> Result<()> {
    let by = model.config.multipliers.embedding;
    if by == 1.0 {
        return Ok(());
    }
    let by = round::value(model.backend.precision(), by);
    families(&*model.backend)?.times(by, tokens * model.config.dim, x)
}

/// The cosines and sines of RoPE number `number`.
pub(super) fn rope_table(
    model: &Model,
    number: usize,
    pass: &Pass,
    spans: &[Span],
    (cos, sin): (&mut Buffer, &mut Buffer),
) -> Result<()> {
    let (rope, pairs) = (model.config.rope(number), model.config.turned() / 2);
    let factor = rope.attention_factor();
    let precision = model.config.rounded_to(Stage::RopeCos, model.backend.precision());
    let is_llama = precision == Precision::Bf16 || model.backend.precision() != Precision::Bf16;
    if factor == 1.0 && !rope.varies() && is_llama {
        return model.backend.rope_table(&model.ropes[number], pairs, pass, cos, sin);
    }
    // LongRoPE and dynamic scaling depend on the length of the text, YaRN has a factor of all cosines and sines, and OLMo
    // 2 does not round them to bfloat16.
    let arithmetic = model.backend.arithmetic();
    let mut row = 0;
    for span in spans {
        let frequencies = ops::rope::frequencies(arithmetic, 2 * pairs, &rope, span.keys());
        let (mut cosines, mut sines) = (vec![0.0; span.tokens * pairs], vec![0.0; span.tokens * pairs]);
        let rows = cosines.chunks_exact_mut(pairs).zip(sines.chunks_exact_mut(pairs));
        for (position, (cos, sin)) in (span.start..).zip(rows) {
            ops::rope::angles(arithmetic, position, &frequencies, cos, sin);
        }
        for (values, buffer) in [(&mut cosines, &mut *cos), (&mut sines, &mut *sin)] {
            ops::elementwise::times(factor, precision, values);
            model.backend.write(values, row * pairs, buffer)?;
        }
        row += span.tokens;
    }
    Ok(())
}

/// out (T, heads, C) = x rotated. GLM-4, Phi-4-mini and StableLM rotate only the first components of a head. Command R
/// and OLMo 2 round only the result to bfloat16.
pub(super) fn rope(
    model: &Model,
    x: &Buffer,
    (cos, sin): (&Buffer, &Buffer),
    (tokens, heads): (usize, usize),
    out: &mut Buffer,
) -> Result<()> {
    let (config, backend) = (&model.config, &model.backend);
    let (c, turned, pairing) = (config.head_dim, config.turned(), config.pairing);
    let rounding = config.rope_rounding;
    if turned == c && (rounding.rounds_products() || backend.precision() != Precision::Bf16) {
        return backend.rope(x, cos, sin, pairing, heads, c, tokens, out);
    }
    families(&**backend)?.rope_part(x, (cos, sin, turned / 2), (pairing, rounding), (tokens, heads, c), out)
}

/// Multiplies the queries by the factor of their position.
pub(super) fn scale_queries(model: &Model, spans: &[Span], q: &mut Buffer) -> Result<()> {
    let Some(scale) = model.config.query_scale else { return Ok(()) };
    let precision = model.backend.precision();
    let positions = spans.iter().flat_map(|span| span.start..span.keys());
    let factors: Vec<f32> = positions.map(|position| round::value(precision, scale.at(position))).collect();
    families(&*model.backend)?.times_rows(&factors, model.config.q_dim(), q)
}

/// out = x + m · added, with Granite's residual multiplier m.
pub(super) fn residual(
    model: &Model,
    x: &Buffer,
    added: &Buffer,
    count: usize,
    out: &mut Buffer,
) -> Result<()> {
    match model.config.multipliers.residual {
        1.0 => model.backend.add(x, added, count, out),
        by => families(&*model.backend)?.add_scaled(x, added, by, count, out),
    }
}

/// out = the activation of x in layer `l`.
pub(super) fn activate(model: &Model, l: usize, x: &Buffer, count: usize, out: &mut Buffer) -> Result<()> {
    let mut numbers = [0.0; 2];
    if let Some(xielu) = &model.weights.layers[l].xielu {
        model.backend.read_vector(xielu, &mut |values| {
            numbers.copy_from_slice(&values[..2]);
            Ok(())
        })?;
    }
    families(&*model.backend)?.activate(model.config.activation, numbers, x, count, out)
}

/// Multiplies the logits of `rows` rows by the family's factor.
pub(super) fn scale_logits(model: &Model, rows: usize, logits: &mut Buffer) -> Result<()> {
    match model.config.multipliers.logits {
        1.0 => Ok(()),
        by => families(&*model.backend)?.times(by, rows * model.config.vocab, logits),
    }
}

/// Applies the soft cap to the logits of `rows` rows.
pub(super) fn cap_logits(model: &Model, cap: f32, rows: usize, logits: &mut Buffer) -> Result<()> {
    families(&*model.backend)?.cap(cap, rows * model.config.vocab, logits)
}
