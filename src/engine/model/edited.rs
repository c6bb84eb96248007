//! The edits of a run ([`llama_trace_core::edit`]), applied where the pass offers a stage.

use super::observe::{Observer, Part, copy};
use crate::backend::edited::{self, Attention};
use crate::backend::{AttentionPart, AttentionShape, Buffer, Cache, Span};
use llama_trace_core::error::Result;
use llama_trace_core::trace::{Stage, Values};

impl Observer<'_> {
    /// Whether an edit changes one of `stages` here.
    pub(super) fn edits(&self, stages: &[Stage]) -> bool {
        self.edits.is_some_and(|edits| {
            self.parts.iter().any(|part| stages.iter().any(|&stage| edits.touches(self.site(part, stage))))
        })
    }

    /// Whether an edit changes a stage inside attention here.
    pub(super) fn edits_attention(&self) -> bool {
        self.edits(&AttentionPart::ALL.map(AttentionPart::stage))
    }

    /// Applies the edits of `stage` to `values`, the rows of `part`. Returns whether one of them wrote a value.
    pub(super) fn edit(&mut self, part: &Part, stage: Stage, values: &mut [f32]) -> Result<bool> {
        let Some(edits) = self.edits else { return Ok(false) };
        let site = self.site(part, stage);
        let precision = self.config.rounded_to(stage, self.backend.precision());
        let wrote = edits.touches(site)
            && edits.apply(
                (&self.sizes, precision),
                &mut self.pending.kept,
                site,
                part.dims,
                &part.tokens,
                values,
            )?;
        if edits.keeps(&self.sizes, part.dims, site, false) {
            self.pending.kept.keep(site.sequence, Some(stage), values);
        }
        Ok(wrote)
    }

    /// Applies the edits of `stage` to the values at the beginning of `buffer`.
    pub(super) fn edit_buffer(&mut self, stage: Stage, buffer: &mut Buffer) -> Result<()> {
        let Some(edits) = self.edits else { return Ok(()) };
        for part in self.parts.clone() {
            let site = self.site(&part, stage);
            if !site.present(&self.sizes, part.dims)
                || !edits.touches(site) && !edits.keeps(&self.sizes, part.dims, site, false)
            {
                continue;
            }
            let (first, mut values) =
                self.read(&part, self.values(stage, part.dims) / part.dims.tokens, buffer)?;
            if self.edit(&part, stage, &mut values)? {
                self.backend.write(&values, first, buffer)?;
            }
        }
        Ok(())
    }

    /// The rows of `part` in a buffer with `width` values for each token, and the index of the first value.
    fn read(&self, part: &Part, width: usize, buffer: &Buffer) -> Result<(usize, Vec<f32>)> {
        let (held, mut values) = (part.held(), Vec::new());
        let range = held.start * width..held.end * width;
        self.backend.read(buffer, range.clone(), &mut |read| copy(read, &mut values))?;
        Ok((range.start, values))
    }

    /// Keeps `x`, the input of the layer or of the head, if an edit switches off the operation that reads it.
    pub(super) fn input(&mut self, x: &Buffer) -> Result<()> {
        let Some(edits) = self.edits else { return Ok(()) };
        for part in self.parts.clone() {
            let site = self.site(&part, Stage::Embedding);
            if edits.keeps(&self.sizes, part.dims, site, true) {
                let (_, values) = self.read(&part, self.sizes.dim, x)?;
                self.pending.kept.keep(site.sequence, None, &values);
            }
        }
        Ok(())
    }

    /// Attention of span number `span`, with the edits of the stages inside it. It runs on the host.
    pub(super) fn edited_attention(
        &mut self,
        shape: AttentionShape,
        q: &Buffer,
        span: usize,
        (keys, values): (&Cache, &Cache),
        out: &mut Buffer,
    ) -> Result<()> {
        let (backend, part) = (self.backend, self.parts[span].clone());
        let dims = part.dims;
        let (first, q) = self.read(&part, shape.heads * shape.head_dim, q)?;
        let count = dims.keys() * shape.kv_heads * shape.head_dim;
        let (mut cached_keys, mut cached_values) = (Vec::new(), Vec::new());
        backend.read_cache(keys, count, &mut |read| copy(read, &mut cached_keys))?;
        backend.read_cache(values, count, &mut |read| copy(read, &mut cached_values))?;
        let of = Attention {
            shape,
            span: Span { sequence: part.sequence, start: dims.start, tokens: dims.tokens },
            precision: backend.precision(),
            q: &q,
            keys: &cached_keys,
            values: &cached_values,
        };
        let mut change = |inside: AttentionPart, values: &mut [f32]| {
            let stage = inside.stage();
            if !stage.present(&self.sizes, dims) {
                return Ok(());
            }
            self.edit(&part, stage, values)?;
            match self.wanted(&part, stage) {
                Some(site) => self.record(site, 0..self.sizes.rows(stage.axes(), dims), Values::F32(values)),
                None => Ok(()),
            }
        };
        let mixed = edited::attention(of, backend.stop(), &mut change)?;
        backend.write(&mixed, first, out)
    }
}
