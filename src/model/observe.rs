//! Between the pass and the probe: turns "this buffer is that stage" into rows of a site, where wanted.

use std::ops::Range;

use crate::backend::{AttentionPart, AttentionSink, Backend};
use crate::error::Result;
use crate::ops;
use crate::trace::{PassDims, Probe, Site, Sizes, Stage, Values};

use super::Model;

/// Values that are recorded between two looks at the backend's [`crate::stop::Stop`].
const VALUES_AT_ONCE: usize = 1 << 20;

/// The probe, as the forward pass sees it in one place of one pass.
pub(super) struct Observer<'a, B, P> {
    backend: &'a B,
    probe: &'a mut P,
    sizes: Sizes,
    dims: PassDims,
    layer: Option<usize>,
    /// The rows that are offered: all, or some of a stage that has one for each token.
    rows: Option<Range<usize>>,
}

impl<'a, B: Backend, P: Probe> Observer<'a, B, P> {
    /// Outside the layers.
    pub(super) fn once(model: &'a Model<B>, probe: &'a mut P, dims: PassDims) -> Self {
        Self { backend: &model.backend, probe, sizes: model.sizes(), dims, layer: None, rows: None }
    }

    /// In a layer.
    pub(super) fn layer(model: &'a Model<B>, probe: &'a mut P, dims: PassDims, layer: usize) -> Self {
        Self { layer: Some(layer), ..Self::once(model, probe, dims) }
    }

    /// Outside the layers, for the tokens `rows`.
    pub(super) fn some(model: &'a Model<B>, probe: &'a mut P, dims: PassDims, rows: Range<usize>) -> Self {
        Self { rows: Some(rows), ..Self::once(model, probe, dims) }
    }

    fn site(&self, stage: Stage) -> Site {
        Site { layer: self.layer, ..Site::once(self.dims.pass, stage) }
    }

    /// Whether the probe wants `stage` here.
    pub(super) fn wants(&self, stage: Stage) -> bool {
        P::ENABLED && stage.present(&self.sizes, self.dims) && self.probe.wants(self.site(stage))
    }

    /// Offers `stage`, whose values `buffer` begins with.
    pub(super) fn stage(&mut self, stage: Stage, buffer: &B::Buffer) -> Result<()> {
        let mut done = Ok(());
        if self.wants(stage) {
            let (count, backend) = (self.count(stage), self.backend);
            backend.read(buffer, count, &mut |values| done = self.record(stage, Values::F32(values)));
        }
        done
    }

    /// Offers what is cached so far.
    pub(super) fn cache(&mut self, stage: Stage, cache: &B::Cache) -> Result<()> {
        let mut done = Ok(());
        if self.wants(stage) {
            let (count, backend) = (self.count(stage), self.backend);
            backend.read_cache(cache, count, &mut |values| done = self.record(stage, Values::F32(values)));
        }
        done
    }

    /// How many values of `stage` are offered.
    fn count(&self, stage: Stage) -> usize {
        let count = self.sizes.shape(stage.axes(), self.dims).iter().product();
        self.rows.as_ref().map_or(count, |rows| count / self.dims.tokens * rows.len())
    }

    /// Hands over every row of `stage` that is offered, some at a time.
    fn record(&mut self, stage: Stage, values: Values<'_>) -> Result<()> {
        let all = || 0..self.sizes.rows(stage.axes(), self.dims);
        let rows = self.rows.clone().unwrap_or_else(all);
        let width = values.len() / rows.len();
        let at_once = (VALUES_AT_ONCE / width.max(1)).max(1);
        for first in rows.clone().step_by(at_once) {
            self.backend.stop().check()?;
            let now = first..rows.end.min(first + at_once);
            let values = values.slice((first - rows.start) * width..(now.end - rows.start) * width);
            self.probe.record(self.site(stage), now, values);
        }
        Ok(())
    }

    /// Offers the int8 values and the scales of what the next products read, where they run in int8.
    pub(super) fn quantized(&mut self, values: Stage, scales: Stage, input: &B::Input) -> Result<()> {
        let (backend, mut done) = (self.backend, Ok(()));
        if self.wants(values) {
            backend.read_quantized(input, &mut |q8, _| done = self.record(values, Values::I8(q8)));
        }
        if done.is_ok() && self.wants(scales) {
            backend.read_quantized(input, &mut |_, scale| done = self.record(scales, Values::F32(scale)));
        }
        done
    }

    /// Offers the token ids.
    pub(super) fn ids(&mut self, stage: Stage, ids: &[u32]) -> Result<()> {
        if !self.wants(stage) {
            return Ok(());
        }
        let ids: Vec<i64> = ids.iter().map(|&id| i64::from(id)).collect();
        self.record(stage, Values::I64(&ids))
    }

    /// Offers the mask (T, K), which the pass itself never stores: attention stays between the window and the
    /// causal edge. Where only some layers have a window, this is their mask.
    pub(super) fn mask(&mut self) -> Result<()> {
        if self.wants(Stage::Mask) {
            let site = self.site(Stage::Mask);
            let mut row = vec![0.0; self.dims.keys()];
            for t in 0..self.dims.tokens {
                self.backend.stop().check()?;
                row.fill(0.0);
                let position = self.dims.start + t;
                ops::attention::mask(&mut row, ops::attention::visible(position, self.sizes.window));
                self.probe.record(site, t..t + 1, Values::F32(&row));
            }
        }
        Ok(())
    }
}

impl<B: Backend, P: Probe> AttentionSink for Observer<'_, B, P> {
    fn wants(&self, part: AttentionPart) -> bool {
        Observer::wants(self, stage(part))
    }

    fn rows(&mut self, part: AttentionPart, rows: Range<usize>, values: &[f32]) {
        self.probe.record(self.site(stage(part)), rows, Values::F32(values));
    }
}

/// The stage that a part of attention is.
fn stage(part: AttentionPart) -> Stage {
    match part {
        AttentionPart::Keys => Stage::Keys,
        AttentionPart::Values => Stage::Values,
        AttentionPart::Qk => Stage::Qk,
        AttentionPart::Scores => Stage::Scores,
        AttentionPart::MaskedScores => Stage::MaskedScores,
        AttentionPart::Softmax => Stage::Softmax,
    }
}
