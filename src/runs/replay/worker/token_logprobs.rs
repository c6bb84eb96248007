//! The model's probabilities of tokens before they were read, from the logits at the previous position.

use std::ops::Range;

use super::{Worker, missing};
use llama_trace_core::error::Result;
use llama_trace_core::trace::token_logprobs::{TokenLogprob, TokenLogprobsAt};
use llama_trace_core::trace::{Probe, Region, Site, Stage, Values};
use llama_trace_engine::generate::Session;
use llama_trace_engine::model::pass;

impl Worker<'_> {
    /// The probability of each token of `at`; `None` for the first token of the text.
    pub(super) fn token_logprobs(&mut self, at: &TokenLogprobsAt) -> Result<Vec<Option<TokenLogprob>>> {
        let (dims, sizes) = self.dims(at.site)?;
        let tokens = at.tokens.start..at.tokens.end.min(dims.tokens);
        let ids = self.passes[dims.pass].ids.get(tokens.clone()).ok_or_else(|| missing(at.site))?.to_vec();
        let mut told = vec![None; ids.len()];
        if tokens.start == 0
            && let Some(pass) = dims.pass.checked_sub(1)
        {
            // The first token of a pass follows the last logits of the previous pass.
            let last = self.passes[pass].dims.tokens - 1;
            let site = Site { pass, ..at.site };
            let block = self.block(site, &Region(vec![last..last + 1, 0..sizes.vocab]))?;
            let run = block.run(last * sizes.vocab).ok_or_else(|| missing(site))?;
            if let (Values::F32(logits), Some(id)) = (block.frame.values().slice(run), ids.first()) {
                told[0] = TokenLogprob::of(logits, *id);
            }
        }
        // The row before each token. The row before the first may belong to another pass.
        let rows = tokens.start.max(1) - 1..tokens.end.max(1) - 1;
        if !rows.is_empty() {
            self.enter(dims.pass, sizes.layers)?;
            let skipped = rows.start + 1 - tokens.start;
            let (ids, told) = (&ids[skipped..], &mut told[skipped..]);
            let Session { model, work, .. } = &mut self.session;
            let mut probe = LogprobProbe {
                first: rows.start,
                logits: sizes.last_logits(),
                vocab: sizes.vocab,
                ids,
                told,
            };
            pass::finish_rows(model, work, rows, &mut probe)?;
            model.backend.sync()?;
        }
        Ok(told)
    }
}

/// Reads rows of logits as they arrive, without keeping them.
struct LogprobProbe<'a> {
    /// The first row.
    first: usize,
    /// The stage with the final logits.
    logits: Stage,
    /// V.
    vocab: usize,
    /// The token that follows each row.
    ids: &'a [u32],
    /// The results of the rows.
    told: &'a mut [Option<TokenLogprob>],
}

impl Probe for LogprobProbe<'_> {
    fn enabled(&self) -> bool {
        true
    }

    fn wants(&self, site: Site) -> bool {
        site.stage == self.logits
    }

    fn record(&mut self, _: Site, rows: Range<usize>, values: Values<'_>) {
        let Values::F32(logits) = values else { return };
        for (token, row) in rows.zip(logits.chunks_exact(self.vocab)) {
            let Some(at) = token.checked_sub(self.first) else { continue };
            if let (Some(id), Some(told)) = (self.ids.get(at), self.told.get_mut(at)) {
                *told = TokenLogprob::of(row, *id);
            }
        }
    }
}
