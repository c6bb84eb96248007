//! The observer between the pass and the probe. It turns a buffer of a stage into rows of a site, if the probe wants
//! them. In a pass over several sequences, the rows of each sequence get their own site.
//!
//! A device may copy values to the host asynchronously during a whole pass ([`Pending`]). They are handed to the probe
//! at the end of the pass, or earlier if there is no room for more. Values that are already on the host wait for these
//! copies, so the probe receives all values in the order of the pass.

use std::ops::Range;

use crate::backend::{
    AttentionPart, AttentionSink, Backend, Buffer, Cache, Fetched, Input, Pass, PassRows, Span,
};
use llama_trace_core::config::ModelConfig;
use llama_trace_core::edit::{Edits, Kept};
use llama_trace_core::error::Result;
use llama_trace_core::ops;
use llama_trace_core::trace::{PassDims, Probe, Run, Site, Sizes, Stage, Values};

use super::Model;

/// The number of values recorded between two checks of the backend's [`llama_trace_core::stop::Stop`].
const VALUES_AT_ONCE: usize = 1 << 20;

/// Values of a pass that the probe wants and has not received yet.
#[derive(Default)]
pub(super) struct Pending {
    /// Whether the pass runs as a whole. The end of the pass then hands these values over.
    deferred: bool,
    queue: Vec<(Site, Range<usize>, Late)>,
    /// The number of values stored here.
    host_values: usize,
    /// Values that edits read later in the pass.
    pub(super) kept: Kept,
}

/// Values that the probe receives later.
enum Late {
    /// Fetched asynchronously by the backend, as float32 or int8.
    Fetched(Fetched),
    FetchedInt8(Fetched),
    /// Already on the host, but queued behind fetched values.
    Here(Vec<f32>),
}

/// The maximum number of host values queued behind fetched ones.
const MOST_WAITING: usize = 1 << 20;

impl Pending {
    /// No values yet, in a pass that runs as a whole: fetched values may be handed over later.
    pub(super) fn of_whole_pass() -> Self {
        Self { deferred: true, ..Self::default() }
    }
}

/// Offers the stages of one place in the forward pass to the probe.
pub(super) struct Observer<'a> {
    pub(super) backend: &'a dyn Backend,
    pub(super) config: &'a ModelConfig,
    probe: &'a mut dyn Probe,
    /// The edits of the run; `None` if there are none.
    pub(super) edits: Option<&'a Edits>,
    pass: &'a Pass,
    pub(super) pending: &'a mut Pending,
    pub(super) sizes: Sizes,
    layer: Option<usize>,
    /// The parts of the buffers that belong to each sequence, in order; empty if there is no probe and no edit.
    pub(super) parts: Vec<Part>,
}

/// The rows of one sequence.
#[derive(Clone)]
pub(super) struct Part {
    pub(super) sequence: usize,
    pub(super) dims: PassDims,
    /// The tokens of the sequence's span whose rows are in the buffers.
    pub(super) tokens: Range<usize>,
    /// The buffer row of the first of these tokens.
    at: usize,
}

impl<'a> Observer<'a> {
    /// Creates an observer outside the layers. The buffers hold `rows` of a pass over `spans`, which is pass number
    /// `number`.
    pub(super) fn new(
        model: &'a Model,
        probe: &'a mut dyn Probe,
        (pass, number): (&'a Pass, usize),
        pending: &'a mut Pending,
        spans: &[Span],
        rows: &PassRows,
    ) -> Self {
        let edits = Some(&*model.edits).filter(|edits| !edits.is_empty());
        let mut parts = Vec::new();
        if probe.enabled() || edits.is_some() {
            let mut at = 0;
            for (i, &Span { sequence, start, tokens }) in spans.iter().enumerate() {
                let held = match rows {
                    PassRows::All => 0..tokens,
                    PassRows::Of { span, rows } if *span == i => rows.clone(),
                    PassRows::Of { .. } => continue,
                    PassRows::Last => tokens - 1..tokens,
                };
                at += held.len();
                let dims = PassDims { pass: number, start, tokens, ..PassDims::default() };
                parts.push(Part { sequence, dims, at: at - held.len(), tokens: held });
            }
        }
        let (backend, config, sizes) = (&*model.backend, &model.config, model.sizes());
        Self { backend, config, probe, edits, pass, pending, sizes, layer: None, parts }
    }

    /// The same observer inside a layer.
    pub(super) fn in_layer(self, layer: usize) -> Self {
        Self { layer: Some(layer), ..self }
    }

    pub(super) fn site(&self, part: &Part, stage: Stage) -> Site {
        let Part { sequence, dims, .. } = *part;
        Site { run: Run::ITSELF, sequence, pass: dims.pass, layer: self.layer, stage }
    }

    /// The site of `stage`, if the probe wants it for `part`.
    pub(super) fn wanted(&self, part: &Part, stage: Stage) -> Option<Site> {
        let site = self.site(part, stage);
        (site.present(&self.sizes, part.dims) && self.probe.wants(site)).then_some(site)
    }

    /// Whether the probe wants `stage` of span number `span`, or an edit changes it.
    pub(super) fn wants(&self, span: usize, stage: Stage) -> bool {
        self.parts.get(span).is_some_and(|part| {
            let edited = self.edits.is_some_and(|edits| edits.touches(self.site(part, stage)));
            edited || self.wanted(part, stage).is_some()
        })
    }

    /// Calls `show` with the part and the site of each sequence whose `stage` the probe wants.
    fn each(
        &mut self,
        stage: Stage,
        mut show: impl FnMut(&mut Self, &Part, Site) -> Result<()>,
    ) -> Result<()> {
        for i in 0..self.parts.len() {
            if let Some(site) = self.wanted(&self.parts[i], stage) {
                let part = self.parts[i].clone();
                show(self, &part, site)?;
            }
        }
        Ok(())
    }

    /// Edits `stage` and offers it; its values are at the beginning of `buffer`.
    pub(super) fn stage(&mut self, stage: Stage, buffer: &mut Buffer) -> Result<()> {
        if self.edits.is_some() {
            self.edit_buffer(stage, buffer)?;
        }
        self.each(stage, |see, part, site| {
            let (backend, width) = (see.backend, see.values(stage, part.dims) / part.dims.tokens);
            let range = part.held().start * width..part.held().end * width;
            let rows = see.rows(stage, part);
            if see.fetch(site, &rows, |backend, pass| backend.fetch(buffer, range.clone(), pass))? {
                return Ok(());
            }
            backend.read(buffer, range, &mut |values| see.record(site, rows.clone(), Values::F32(values)))
        })
    }

    /// A callback for a fused operation. It edits and offers each output as the stage with the same number.
    pub(super) fn stages(
        &mut self,
        stages: &'static [Stage],
    ) -> impl FnMut(usize, &mut Buffer) -> Result<()> {
        |i, buffer| self.stage(stages[i], buffer)
    }

    /// Edits and offers the current cache contents of span number `span`.
    pub(super) fn cache(&mut self, span: usize, stage: Stage, cache: &mut Cache) -> Result<()> {
        let Some(part) = self.parts.get(span).cloned() else { return Ok(()) };
        if self.edits.is_some_and(|edits| edits.touches(self.site(&part, stage))) {
            let mut values = Vec::new();
            let count = self.values(stage, part.dims);
            self.backend.read_cache(cache, count, &mut |read| copy(read, &mut values))?;
            if self.edit(&part, stage, &mut values)? {
                self.backend.write_cache(&values, cache)?;
            }
        }
        let Some(site) = self.wanted(&part, stage) else { return Ok(()) };
        let (count, rows) = (self.values(stage, part.dims), self.sizes.rows(stage.axes(), part.dims));
        if self.fetch(site, &(0..rows), |backend, pass| backend.fetch_cache(cache, count, pass))? {
            return Ok(());
        }
        let backend = self.backend;
        backend.read_cache(cache, count, &mut |values| self.record(site, 0..rows, Values::F32(values)))
    }

    /// The number of values of the whole `stage`.
    pub(super) fn values(&self, stage: Stage, dims: PassDims) -> usize {
        self.sizes.shape(stage.axes(), dims).iter().product()
    }

    /// The rows of `stage` that the buffers hold for `part`. The stage must have rows for each token.
    fn rows(&self, stage: Stage, part: &Part) -> Range<usize> {
        let of_token = self.sizes.rows(stage.axes(), part.dims) / part.dims.tokens;
        part.tokens.start * of_token..part.tokens.end * of_token
    }

    /// Starts an asynchronous fetch of `rows` of a site with `begin`. Returns whether it was started.
    fn fetch(
        &mut self,
        site: Site,
        rows: &Range<usize>,
        begin: impl Fn(&dyn Backend, &Pass) -> Result<Option<Fetched>>,
    ) -> Result<bool> {
        let fetched = self.begin_to_fetch(begin)?.map(|fetched| (site, rows.clone(), Late::Fetched(fetched)));
        let begun = fetched.is_some();
        self.pending.queue.extend(fetched);
        Ok(begun)
    }

    /// Starts an asynchronous fetch with `begin`. If there is no room, the pending values are handed over first.
    fn begin_to_fetch<T>(
        &mut self,
        begin: impl Fn(&dyn Backend, &Pass) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        if !self.pending.deferred {
            return Ok(None);
        }
        let fetched = begin(self.backend, self.pass)?;
        if fetched.is_some() || self.pending.queue.is_empty() {
            return Ok(fetched);
        }
        self.show()?;
        begin(self.backend, self.pass)
    }

    /// Lets the device copy the pending values to the host while it continues.
    pub(super) fn bring(&self) -> Result<()> {
        match self.pending.queue.is_empty() {
            true => Ok(()),
            false => self.backend.bring(self.pass),
        }
    }

    /// Hands the pending values over to the probe.
    pub(super) fn show(&mut self) -> Result<()> {
        let (backend, pass) = (self.backend, self.pass);
        for (site, rows, late) in std::mem::take(&mut self.pending.queue) {
            let mut give = |values: Values<'_>| self.hand_over(site, rows.clone(), values);
            match late {
                Late::Fetched(fetched) => {
                    let give = &mut |bytes: &[u8]| give(Values::F32(bytemuck::cast_slice(bytes)));
                    backend.fetched(&fetched, pass, give)?;
                }
                Late::FetchedInt8(fetched) => {
                    let give = &mut |bytes: &[u8]| give(Values::I8(bytemuck::cast_slice(bytes)));
                    backend.fetched(&fetched, pass, give)?;
                }
                Late::Here(values) => give(Values::F32(&values))?,
            }
        }
        self.pending.host_values = 0;
        backend.all_shown(pass);
        Ok(())
    }

    /// Records `rows` of a site, after the pending values.
    pub(super) fn record(&mut self, site: Site, rows: Range<usize>, values: Values<'_>) -> Result<()> {
        if !self.pending.queue.is_empty() {
            if let Values::F32(few) = values
                && self.pending.host_values + few.len() <= MOST_WAITING
            {
                self.pending.host_values += few.len();
                self.pending.queue.push((site, rows, Late::Here(few.to_vec())));
                return Ok(());
            }
            self.show()?;
        }
        self.hand_over(site, rows, values)
    }

    /// Hands over `rows` of a site, block by block.
    fn hand_over(&mut self, site: Site, rows: Range<usize>, values: Values<'_>) -> Result<()> {
        let width = values.len() / rows.len();
        let at_once = (VALUES_AT_ONCE / width.max(1)).max(1);
        for first in rows.clone().step_by(at_once) {
            self.backend.stop().check()?;
            let now = first..rows.end.min(first + at_once);
            let values = values.slice((first - rows.start) * width..(now.end - rows.start) * width);
            self.probe.record(site, now, values);
        }
        Ok(())
    }

    /// Offers the int8 values and the scales of the next products' input, if they run in int8.
    pub(super) fn quantized(&mut self, values: Stage, scales: Stage, input: &Input) -> Result<()> {
        for i in 0..self.parts.len() {
            let part = self.parts[i].clone();
            let sites = [values, scales].map(|stage| self.wanted(&part, stage));
            if sites == [None; 2] {
                continue;
            }
            let rows = [values, scales].map(|stage| self.rows(stage, &part));
            let fetched =
                self.begin_to_fetch(|backend, pass| backend.fetch_quantized(input, part.held(), pass))?;
            if let Some([of_values, of_scales]) = fetched {
                let late = [Late::FetchedInt8(of_values), Late::Fetched(of_scales)];
                for ((site, rows), late) in sites.into_iter().zip(rows).zip(late) {
                    self.pending.queue.extend(site.map(|site| (site, rows, late)));
                }
                continue;
            }
            let backend = self.backend;
            backend.read_quantized(input, part.held(), &mut |q8, scale| {
                let shown = [Values::I8(q8), Values::F32(scale)];
                sites.iter().zip(&rows).zip(shown).try_for_each(|((site, rows), shown)| match site {
                    Some(site) => self.record(*site, rows.clone(), shown),
                    None => Ok(()),
                })
            })?;
        }
        Ok(())
    }

    /// Offers the token ids.
    pub(super) fn ids(&mut self, stage: Stage, ids: &[u32]) -> Result<()> {
        self.each(stage, |see, part, site| {
            let ids: Vec<i64> = ids[part.held()].iter().map(|&id| i64::from(id)).collect();
            see.record(site, 0..1, Values::I64(&ids))
        })
    }

    /// Offers the mask (T, K), which the pass itself never stores: attention reads only the keys between the window's
    /// start and the causal edge. If only some layers have a window, this is their mask.
    pub(super) fn mask(&mut self) -> Result<()> {
        self.each(Stage::Mask, |see, part, site| {
            let mut row = vec![0.0; part.dims.keys()];
            for t in 0..part.dims.tokens {
                row.fill(0.0);
                let position = part.dims.start + t;
                ops::attention::mask(&mut row, see.sizes.sees(None).keys(position));
                see.record(site, t..t + 1, Values::F32(&row))?;
            }
            Ok(())
        })
    }

    /// The sink for the parts of attention of span number `span`.
    pub(super) fn attention(&mut self, span: usize) -> Sink<'_, 'a> {
        Sink { see: self, span }
    }
}

impl Part {
    /// The buffer rows of this part.
    pub(super) fn held(&self) -> Range<usize> {
        self.at..self.at + self.tokens.len()
    }
}

/// Offers the attention stages of one span to the probe.
pub(super) struct Sink<'s, 'a> {
    see: &'s mut Observer<'a>,
    span: usize,
}

impl AttentionSink for Sink<'_, '_> {
    fn wants(&self, part: AttentionPart) -> bool {
        self.see.wants(self.span, part.stage())
    }

    fn rows(&mut self, part: AttentionPart, rows: Range<usize>, values: &[f32]) -> Result<()> {
        let site = self.see.site(&self.see.parts[self.span], part.stage());
        self.see.record(site, rows, Values::F32(values))
    }

    fn waits(&self) -> bool {
        self.see.pending.deferred
    }

    fn fetched(&mut self, part: AttentionPart, fetched: Fetched) {
        let (held, stage) = (&self.see.parts[self.span], part.stage());
        let rows = 0..self.see.sizes.rows(stage.axes(), held.dims);
        let late = (self.see.site(held, stage), rows, Late::Fetched(fetched));
        self.see.pending.queue.push(late);
    }
}

impl AttentionPart {
    /// The stage.
    pub fn stage(self) -> Stage {
        match self {
            Self::Keys => Stage::Keys,
            Self::Values => Stage::Values,
            Self::Qk => Stage::Qk,
            Self::Scores => Stage::Scores,
            Self::CappedScores => Stage::CappedScores,
            Self::MaskedScores => Stage::MaskedScores,
            Self::Softmax => Stage::Softmax,
        }
    }
}

/// Copies `read` to `values`.
pub(super) fn copy(read: &[f32], values: &mut Vec<f32>) -> Result<()> {
    values.clear();
    values.extend_from_slice(read);
    Ok(())
}
