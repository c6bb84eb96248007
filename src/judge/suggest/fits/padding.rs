//! The padding and the batch of a folder's files, found by the values of the first stages.

use std::collections::BTreeSet;

use super::{Fits, OFFSETS, SURE, WAYS};
use crate::capture::{Layout, Padding, in_pass};
use crate::suggest::names::Pattern;
use llama_trace_core::error::Result;
use llama_trace_core::trace::{PassDims, Site, Stage};

impl Fits<'_> {
    /// Finds and returns the position of the tokens in files that have more rows than the reference.
    pub(in crate::suggest) fn find_padding(&mut self) -> Result<Padding> {
        let Some(&dims) = self.passes.first() else { return Ok(self.padded) };
        let mut best: Option<(f64, Padding)> = None;
        let stages = [Site::once(dims.pass, Stage::Embedding), Site::layer(dims.pass, 0, Stage::AttnNorm)];
        let stages = stages.into_iter().chain([Site::layer(dims.pass, 0, Stage::AttnResidual)]);
        for site in stages.filter(|site| self.frames.contains_key(site)) {
            for Pattern { name: pattern, .. } in self.names.patterns.iter().take(WAYS) {
                let Some(shape) = self.names.shape(pattern, site) else { continue };
                let (rows, batch) = match *shape {
                    [rows, width] if width == self.sizes.dim => (rows, 1),
                    [batch, rows, width] if width == self.sizes.dim => (rows, batch),
                    _ => continue,
                };
                let Some(more) = rows.checked_sub(dims.tokens) else { continue };
                let Some(values) = self.file(pattern, site) else { continue };
                for before in (0..=more).take(OFFSETS) {
                    for one in 0..batch.min(OFFSETS) {
                        let (around, batch) = ([before, more - before], (batch > 1).then_some(one));
                        let padded = Padding { around, batch, tokens: dims.tokens };
                        let layout = Layout { file: Some(pattern.clone()), ..Layout::default() };
                        let apart = self.distance(site, &layout, padded, &values);
                        let error = apart.map_or(f64::INFINITY, |apart| apart.error);
                        // No padding is tried first, and wins a tie.
                        let better = best.is_none_or(|(least, _)| error < least);
                        if error <= SURE && better {
                            best = Some((error, padded));
                        }
                    }
                }
            }
            if best.is_some() {
                break;
            }
        }
        self.padded = best.map_or_else(Padding::default, |(_, padded)| padded);
        self.of_one_pass = self.names_of_one_pass();
        Ok(self.padded)
    }

    /// The names of single passes that a pattern with `{pass}` covers. A pattern covers them if each pass that is compared has
    /// its file, with as many rows as the pass has tokens or keys.
    fn names_of_one_pass(&self) -> BTreeSet<String> {
        if !self.has_several() {
            return BTreeSet::new();
        }
        let [before, after] = self.padded.around;
        let has_rows = |pattern: &str, dims: &PassDims| {
            let shape = self.names.shape(pattern, Site::layer(dims.pass, 0, Stage::Xq));
            let rows = [dims.tokens, dims.keys()].map(|rows| [rows, before + rows + after]).concat();
            shape.is_some_and(|shape| shape.iter().any(|length| rows.contains(length)))
        };
        let of_all = |pattern: &&String| {
            pattern.contains("{pass") && self.passes.iter().all(|dims| has_rows(pattern, dims))
        };
        let passes = || self.all.iter().map(|dims| dims.pass);
        let patterns = self.names.patterns.iter().map(|pattern| &pattern.name).filter(of_all);
        patterns.flat_map(|pattern| passes().map(|pass| in_pass(pattern, pass))).collect()
    }
}
