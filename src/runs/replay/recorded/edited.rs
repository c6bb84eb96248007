//! Edits of a recorded run without its model. The values that are computed from edited ones without weights are computed
//! again. Values that need weights are absent from there on.

use std::ops::Range;
use std::sync::Arc;

use ndarray::{ArrayD, IxDyn};

use super::{NEEDS_MODEL, Reader};
use crate::record::read::Pass;
use crate::record::{Branch, Kept};
use crate::replay::derive::values as values_of;
use llama_trace_core::config::CacheDtype;
use llama_trace_core::edit::{Edit, Edits, Kept as Inputs, Reach};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::ops::elementwise::times;
use llama_trace_core::ops::rope::rope;
use llama_trace_core::ops::round;
use llama_trace_core::trace::manifest::Drawing;
use llama_trace_core::trace::stage::Input;
use llama_trace_core::trace::{Frame, FrameData, ModelCard, PassDims, Run, Site, Stage, Stats};
use llama_trace_engine::backend::edited::{Attention, attention};
use llama_trace_engine::backend::{AttentionPart, AttentionShape, Span};

/// A sequence of a recorded run without the values that edits reach. It is the only sequence, and it ends with the first
/// pass that has edited cells: the tokens after it are not known.
pub(super) struct Unreached {
    kept: Arc<dyn Kept>,
    card: ModelCard,
    /// The number of the sequence in the recorded run.
    sequence: usize,
    passes: Vec<Pass>,
    reach: Vec<Reach>,
}

impl Unreached {
    /// The run with these edits.
    ///
    /// # Errors
    /// [`Error::Usage`] if the recorded run has edits of its own, if it does not have a cell that an edit names, or if no
    /// pass has an edited cell.
    pub(super) fn new(kept: Arc<dyn Kept>, sequence: usize, list: &[Edit]) -> Result<Self> {
        let mut card = kept.card().clone();
        if !card.without.is_empty() || !card.edits.is_empty() {
            return Err(Error::usage("this trace has edits already, and other edits of it need the model")
                .next(NEEDS_MODEL));
        }
        let mut passes = kept.passes(Run::ITSELF, sequence).to_vec();
        let dims: Vec<PassDims> = passes.iter().map(|pass| pass.dims).collect();
        let of_sequence: Vec<_> = dims.iter().map(|&dims| (0, dims)).collect();
        Edits::new(list.to_vec()).check(&card, &of_sequence)?;
        let has_cells = |dims: &PassDims| {
            let mut places = list.iter().flat_map(|edit| &edit.parts).map(|part| &part.place);
            places.any(|place| place.passes.contains(dims.pass) && place.has_cells(&card.sizes(), *dims))
        };
        let Some(first) = dims.iter().position(has_cells) else {
            return Err(Error::usage("no pass of the trace has a cell that the edit changes")
                .expected(format!("cells of passes 0 to {}", dims.len().saturating_sub(1)))
                .next("name other cells"));
        };
        passes.truncate(first + 1);
        let reach: Vec<_> =
            (0..list.len()).map(|number| Reach::new((list, number), &card, 0, &dims[..=first])).collect();
        let sampled = Site::once(first, Stage::Sampled);
        if let Some(last) = passes.last_mut().filter(|_| reach.iter().any(|reach| reach.has(sampled))) {
            last.sampled = None;
        }
        card.edits = list.iter().map(|edit| edit.text.clone()).collect();
        Ok(Self { kept, card, sequence, passes, reach })
    }

    fn is_reached(&self, site: Site) -> bool {
        self.reach.iter().any(|reach| reach.has(site))
    }

    /// Whether `site` is computed from values that an edit changes.
    fn is_stale(&self, site: Site) -> bool {
        let Some(dims) = self.dims(site) else { return false };
        let sizes = self.card.sizes();
        let inputs = site.inputs(&sizes, dims).into_iter();
        inputs.filter_map(|input| site.input(input, &sizes)).any(|input| self.is_reached(input))
    }

    fn original(&self, site: Site) -> Site {
        Site { run: Run::ITSELF, sequence: self.sequence, ..site }
    }
}

impl Kept for Unreached {
    fn card(&self) -> &ModelCard {
        &self.card
    }

    fn cache(&self) -> Option<CacheDtype> {
        self.kept.cache()
    }

    fn sampling(&self) -> Option<Drawing> {
        self.kept.sampling()
    }

    fn place(&self) -> &str {
        self.kept.place()
    }

    fn sequences(&self) -> usize {
        1
    }

    fn branches(&self) -> &[Branch] {
        &[]
    }

    fn passes(&self, _: Run, sequence: usize) -> &[Pass] {
        if sequence == 0 { &self.passes } else { &[] }
    }

    fn prompt(&self, _: usize) -> Option<String> {
        self.kept.prompt(self.sequence)
    }

    fn label(&self, id: u32) -> Option<String> {
        self.kept.label(id)
    }

    fn holds(&self, site: Site) -> bool {
        !self.is_reached(site) && self.kept.holds(self.original(site))
    }

    fn rows(&self, site: Site, rows: Range<usize>) -> Result<Option<FrameData>> {
        match self.is_stale(site) {
            true => Ok(None),
            false => self.kept.rows(self.original(site), rows),
        }
    }

    fn stats(&self, site: Site) -> Option<Stats> {
        self.kept.stats(self.original(site)).filter(|_| !self.is_reached(site))
    }

    fn keeps_values(&self) -> bool {
        self.kept.keeps_values()
    }

    fn why_not(&self, site: Site) -> String {
        match self.is_reached(site) {
            true => "an edit reaches it, and it is computed with weights".into(),
            false => self.kept.why_not(self.original(site)),
        }
    }
}

impl Reader {
    /// Rows of a stage that edits change, or that attention with edits inside computes. `None` for all other stages.
    pub(super) fn edited(&mut self, site: Site, rows: &Range<usize>) -> Result<Option<Frame>> {
        let Some(edits) = self.edits.clone() else { return Ok(None) };
        let inside = AttentionPart::ALL.map(AttentionPart::stage);
        let of_attention = (inside.contains(&site.stage) || site.stage == Stage::AttnHeads)
            && inside.into_iter().any(|stage| edits.touches(site.other(stage)));
        if !of_attention && !edits.touches(site) {
            return Ok(None);
        }
        let (dims, sizes) = (self.dims(site)?, self.sizes());
        let all = 0..sizes.rows(site.stage.axes(), dims);
        let mut values = match of_attention {
            true => self.edited_attention(&edits, site)?,
            false => values_of(&self.unedited(site, all.clone())?).to_vec(),
        };
        if !of_attention || site.stage == Stage::AttnHeads {
            self.apply(&edits, site, &mut values)?;
        }
        let width = values.len() / all.len().max(1);
        let values = values[rows.start * width..rows.end * width].to_vec();
        let array = ArrayD::from_shape_vec(IxDyn(&[rows.len(), width]), values);
        let array = array.unwrap_or_else(|_| unreachable!("the values were cut to these rows"));
        Ok(Some(Frame { site, axes: site.stage.axes(), data: FrameData::F32(array) }))
    }

    /// Applies the edits of `site` to all its values.
    fn apply(&mut self, edits: &Edits, site: Site, values: &mut [f32]) -> Result<()> {
        let (dims, sizes) = (self.dims(site)?, self.sizes());
        let mut inputs = Inputs::default();
        for input in site.inputs(&sizes, dims) {
            let stage = match input {
                Input::Stage(stage) if edits.keeps(&sizes, dims, site.other(stage), false) => Some(stage),
                Input::LayerInput if edits.keeps(&sizes, dims, site, true) => None,
                _ => continue,
            };
            if let Some(from) = site.input(input, &sizes) {
                let frame = self.frame(from)?;
                inputs.keep(site.sequence, stage, values_of(&frame));
            }
        }
        let card = self.trace.card();
        let precision = card.config.rounded_to(site.stage, card.precision);
        edits.apply((&sizes, precision), &mut inputs, site, dims, &(0..dims.tokens), values).map(drop)
    }

    /// A stage inside attention, or its result, before the edits of the result.
    fn edited_attention(&mut self, edits: &Edits, site: Site) -> Result<Vec<f32>> {
        let (dims, sizes) = (self.dims(site)?, self.sizes());
        let layer = site.layer.unwrap_or(0);
        let stages = [sizes.attended(layer)[0], Stage::CacheK, Stage::CacheV];
        let [q, keys, values] = stages.map(|stage| site.other(stage));
        let (q, keys, values) = (self.frame(q)?, self.frame(keys)?, self.frame(values)?);
        let card = self.trace.card().clone();
        let of = Attention {
            shape: AttentionShape::of(&card.config, layer),
            span: Span { sequence: site.sequence, start: dims.start, tokens: dims.tokens },
            precision: card.precision,
            q: values_of(&q),
            keys: values_of(&keys),
            values: values_of(&values),
        };
        let (mut taken, mut inputs) = (None, Inputs::default());
        let mut change = |part: AttentionPart, values: &mut [f32]| {
            let stage = part.stage();
            let here = site.other(stage);
            if !here.present(&sizes, dims) {
                return Ok(());
            }
            let precision = card.config.rounded_to(stage, card.precision);
            edits.apply((&sizes, precision), &mut inputs, here, dims, &(0..dims.tokens), values)?;
            if edits.keeps(&sizes, dims, here, false) {
                inputs.keep(site.sequence, Some(stage), values);
            }
            if stage == site.stage {
                taken = Some(values.to_vec());
            }
            Ok(())
        };
        let mixed = attention(of, &self.stop, &mut change)?;
        Ok(taken.unwrap_or(mixed))
    }

    /// Queries or keys after RoPE, whose input an edit reaches.
    pub(super) fn rotated(&mut self, site: Site, rows: Range<usize>) -> Result<Frame> {
        let (dims, sizes, card) = (self.dims(site)?, self.sizes(), self.trace.card().clone());
        let inputs: Vec<_> =
            site.inputs(&sizes, dims).into_iter().map(|input| site.input(input, &sizes)).collect();
        let [Some(from), Some(cos), Some(sin)] = inputs[..] else {
            return Err(self.not_here(site));
        };
        let x = self.rows(from, rows.clone())?;
        let of_token = sizes.rows(site.stage.axes(), dims) / dims.tokens;
        let tokens = rows.start / of_token..rows.end.div_ceil(of_token);
        let turned = 2 * sizes.pairs;
        let products = card.config.rope_rounding.of_products(card.precision);
        let scale = card.config.query_scale.filter(|_| site.stage == Stage::XqRope);
        let (cos, sin) = (self.rows(cos, tokens.clone())?, self.rows(sin, tokens)?);
        let mut out = vec![0.0; rows.len() * sizes.head_dim];
        for (row, out) in rows.clone().zip(out.chunks_exact_mut(sizes.head_dim)) {
            let t = row / of_token;
            let (cos, sin) = (cos.floats(t..t + 1), sin.floats(t..t + 1));
            let x = x.floats(row..row + 1);
            rope(&x[..turned], cos, sin, card.config.pairing, products, &mut out[..turned]);
            out[turned..].copy_from_slice(&x[turned..]);
            round::row(card.precision, out);
            if let Some(scale) = scale {
                let by = round::value(card.precision, scale.at(dims.start + t));
                times(by, card.precision, out);
            }
        }
        let array = ArrayD::from_shape_vec(IxDyn(&[rows.len(), sizes.head_dim]), out);
        let array = array.unwrap_or_else(|_| unreachable!("each row was computed"));
        Ok(Frame { site, axes: site.stage.axes(), data: FrameData::F32(array) })
    }
}
