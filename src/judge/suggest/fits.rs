//! The ways of reading a folder's files as stages, and the distance of each from the reference.

mod bits;
mod padding;
mod readings;
mod way;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use ndarray::ArrayD;

pub(super) use bits::Bits;
pub(super) use way::{SURE, Way, is_scaled};

use super::names::{Names, Pattern};
use super::plausible;
use super::words::{calls, hinted};
use crate::capture::{Layout, Padding, in_pass, named, npy};
use crate::diff::{self, Distance, Found as OfStage};
use llama_trace_core::error::Result;
use llama_trace_core::stop;
use llama_trace_core::trace::{Axis, Frame, FrameData, Op, PassDims, Site, Sizes, Stage};

/// The number of passes that are compared.
pub(super) const PASSES: usize = 2;

/// The maximum number of values of a stage that is compared.
const LARGEST: usize = 1 << 24;

/// The maximum number of patterns that are tried, and the maximum number of offsets of a part of a file.
const WAYS: usize = 20_000;
const OFFSETS: usize = 256;

/// The reference's stages, and the folder whose files are compared with them.
pub(super) struct Fits<'f> {
    pub(super) folder: &'f Path,
    names: &'f Names,
    pub(super) sizes: Sizes,
    /// All passes of the reference.
    all: Vec<PassDims>,
    /// The passes that are compared.
    passes: Vec<PassDims>,
    frames: BTreeMap<Site, Arc<Frame>>,
    padded: Padding,
    /// Names of files of a single pass that another pattern covers with `{pass}`.
    of_one_pass: BTreeSet<String>,
}

impl<'f> Fits<'f> {
    pub(super) fn new(folder: &'f Path, names: &'f Names, sizes: Sizes, passes: &[PassDims]) -> Self {
        let (all, frames) = (passes.to_vec(), BTreeMap::new());
        let passes = passes.iter().copied().take(PASSES).collect();
        Self {
            folder,
            names,
            sizes,
            all,
            passes,
            frames,
            padded: Padding::default(),
            of_one_pass: BTreeSet::new(),
        }
    }

    /// Returns whether several passes are compared.
    pub(super) fn has_several(&self) -> bool {
        self.passes.len() > 1
    }

    /// Returns whether a site is compared. These are stages of floats: those outside the layers, and those of the first
    /// two layers and the last layer.
    pub(super) fn samples(&self, site: Site) -> bool {
        let layer = site.layer.is_none_or(|layer| layer < 2 || layer + 1 == self.sizes.layers);
        let dims = self.passes.iter().find(|dims| dims.pass == site.pass);
        let count = |dims| self.sizes.shape(site.stage.axes(), dims).iter().product::<usize>();
        let float = !site.stage.is_ids() && !site.stage.is_int8();
        layer && float && dims.is_some_and(|&dims| count(dims) <= LARGEST)
    }

    /// Adds a stage of the reference.
    pub(super) fn add(&mut self, site: Site, found: OfStage) {
        if let OfStage::Frame(frame) = found {
            self.frames.insert(site, frame);
        }
    }

    /// The stages that the reference has.
    pub(super) fn stages(&self) -> impl Iterator<Item = Stage> + '_ {
        Stage::ALL.iter().copied().filter(|stage| self.frames.keys().any(|site| site.stage == *stage))
    }

    /// Every site of all passes.
    pub(super) fn sites(&self) -> impl Iterator<Item = Site> + Clone + '_ {
        let sites = |dims: &PassDims| Site::all(&self.sizes, *dims);
        self.all.iter().flat_map(sites)
    }

    fn dims(&self, site: Site) -> Option<PassDims> {
        self.passes.iter().copied().find(|dims| dims.pass == site.pass)
    }

    fn padded_in(&self, dims: PassDims) -> Padding {
        Padding { tokens: dims.tokens, ..self.padded }
    }

    /// Every way of reading files as stages that the shapes allow, with its distance from the reference.
    ///
    /// # Errors
    /// [`llama_trace_core::error::Error::Interrupted`].
    pub(super) fn ways(&self) -> Result<Vec<Way<'f>>> {
        let mut sites: BTreeMap<Stage, Vec<Site>> = BTreeMap::new();
        self.frames.keys().for_each(|site| sites.entry(site.stage).or_default().push(*site));
        let mut ways = Vec::new();
        for pattern in self.names.patterns.iter().take(WAYS) {
            stop::check()?;
            if self.of_one_pass.contains(&pattern.name) {
                continue;
            }
            // Each file is read once for all stages.
            let mut read = BTreeMap::new();
            for (&stage, sites) in sites.iter().filter(|(stage, _)| stage.in_layer() == pattern.has_layer) {
                let there = |site: &&Site| {
                    let is_own = site.pass == self.passes[0].pass || pattern.has_pass;
                    is_own && self.names.shape(&pattern.name, **site).is_some()
                };
                let there: Vec<Site> = sites.iter().filter(there).copied().collect();
                let shape = there.first().and_then(|site| self.names.shape(&pattern.name, *site));
                let Some(shape) = shape else { continue };
                for layout in self.all_readings(stage, there[0], shape) {
                    let layout = Layout { file: Some(pattern.name.clone()), ..layout };
                    ways.extend(self.way(pattern, stage, layout, &there, &mut read));
                }
            }
        }
        Ok(ways)
    }

    /// A way with its distances; `None` if its values are unlike the stage and the reading is unlikely.
    fn way(
        &self,
        pattern: &'f Pattern,
        stage: Stage,
        layout: Layout,
        sites: &[Site],
        read: &mut BTreeMap<Site, Option<ArrayD<f32>>>,
    ) -> Option<Way<'f>> {
        let (is_called, hinted) = (calls(&pattern.name, stage), hinted(&pattern.name, pattern.has_layer));
        let whole = sites
            .first()
            .and_then(|site| self.names.shape(&pattern.name, *site)?.last().copied())
            .unwrap_or(0);
        let may_be =
            self.may_be(stage, &layout, whole) && (!needs_name(stage) || is_called || hinted == Some(stage));
        let mut way = Way {
            stage,
            layout,
            pattern,
            is_called,
            hinted,
            places: Vec::new(),
            of_first: 0,
            is_paired: false,
            is_normed: is_norm(stage),
            is_stream: false,
            is_turned: matches!(stage, Stage::XqRope | Stage::XkRope),
        };
        let (mut may_have_values, mut is_unchanged) = (true, false);
        for &site in sites {
            let dims = self.dims(site)?;
            let place = Site { stage: Stage::Xq, ..site };
            let values = read.entry(place).or_insert_with(|| self.file(&pattern.name, site)).as_ref()?;
            // If the file fits the stage in only some places, it is another stage's file.
            let laid = self.arranged(site, &way.layout, self.padded_in(dims), values)?;
            way.is_normed = way.is_normed && self.is_normed(site, &laid);
            way.is_turned = way.is_turned && self.is_turned(site, &laid);
            may_have_values &= plausible::may_be(stage, &laid);
            is_unchanged |= self.is_unchanged(site, &laid);
            let apart = self.apart(site, laid)?;
            way.places.push((site, apart));
            way.of_first += usize::from(site.pass == sites[0].pass);
            // If only its values could confirm a reading, two wrong places refute it.
            if !may_be && way.places.len() == 2 && way.matched() == 0 && !way.has_first_token() {
                return None;
            }
        }
        if way.matched() == 0 && !may_have_values && !is_unchanged && !way.is_called {
            return None;
        }
        let is_like_logits = stage == Stage::Logits && !is_called && way.matched() == 0;
        if is_like_logits && read.values().flatten().any(|values| self.is_of_shares(sites[0], values)) {
            return None;
        }
        (may_be || way.matched() > 0 || way.has_first_token()).then_some(way)
    }

    /// Returns whether values of the logits' shape are probabilities or their logarithms: rows with sum 1, or the
    /// logits up to a constant per row.
    fn is_of_shares(&self, site: Site, values: &ArrayD<f32>) -> bool {
        let Some(FrameData::F32(logits)) = self.frames.get(&site).map(|frame| &frame.data) else {
            return false;
        };
        let rows = |of: &ArrayD<f32>, change: fn(&[f64]) -> Vec<f64>| -> Vec<f64> {
            let of: Vec<f64> = of.iter().copied().map(f64::from).collect();
            of.chunks(self.sizes.vocab.max(1)).flat_map(change).collect()
        };
        let centred = |row: &[f64]| {
            let mean = row.iter().sum::<f64>() / row.len() as f64;
            row.iter().map(|x| x - mean).collect()
        };
        let (ours, theirs) = (rows(logits, centred), rows(values, centred));
        let norm = |of: &mut dyn Iterator<Item = f64>| of.map(|x| x * x).sum::<f64>().sqrt();
        let apart = norm(&mut ours.iter().zip(&theirs).map(|(a, b)| a - b));
        let is_log = ours.len() == theirs.len() && apart <= SURE * norm(&mut ours.iter().copied());
        let sums = rows(values, |row| vec![row.iter().sum()]);
        let is_share =
            values.iter().all(|x| (0.0..=1.0).contains(x)) && sums.iter().all(|sum| (sum - 1.0).abs() < 1e-2);
        is_log || is_share
    }

    /// The names of the way's files.
    pub(super) fn files(&self, way: &Way<'_>) -> BTreeSet<String> {
        let [from, to] = way.layout.layers.unwrap_or([0, self.sizes.layers]);
        self.names.of(&way.pattern.name, self.all.len(), from..to)
    }

    /// The number of the way's files.
    pub(super) fn count(&self, way: &Way<'_>) -> usize {
        self.files(way).len()
    }

    /// The values of a pattern's file for a site, in the file's own layout.
    fn file(&self, pattern: &str, site: Site) -> Option<ArrayD<f32>> {
        let OfStage::Frame(frame) = npy::read(&self.folder.join(named(pattern, site)), site) else {
            return None;
        };
        let FrameData::F32(values) = &frame.data else { return None };
        Some(values.clone())
    }

    /// The distance of values in a layout from the reference.
    fn distance(
        &self,
        site: Site,
        layout: &Layout,
        padded: Padding,
        values: &ArrayD<f32>,
    ) -> Option<Distance> {
        self.apart(site, self.arranged(site, layout, padded, values)?)
    }

    /// The values, converted to the stage's layout.
    fn arranged(
        &self,
        site: Site,
        layout: &Layout,
        padded: Padding,
        values: &ArrayD<f32>,
    ) -> Option<ArrayD<f32>> {
        layout.arranged(values.clone(), self.folder, site, padded, self.sizes.head_dim).ok()
    }

    /// The values of a file, converted to the stage's layout.
    pub(super) fn values(&self, pattern: &str, site: Site) -> Option<ArrayD<f32>> {
        let padded = self.padded_in(self.dims(site)?);
        self.arranged(site, &Layout::default(), padded, &self.file(pattern, site)?)
    }

    /// The distance of values in the stage's layout from the reference.
    fn apart(&self, site: Site, laid: ArrayD<f32>) -> Option<Distance> {
        let read = Frame { site, axes: site.stage.axes(), data: FrameData::F32(laid) };
        diff::distance(site, &self.sizes, self.dims(site)?, self.frames.get(&site)?, &read)
    }

    /// Returns whether the rows of a norm's values have the size that this norm gives: with its weight, with 1 plus its
    /// weight, or without a weight.
    fn is_normed(&self, site: Site, values: &ArrayD<f32>) -> bool {
        let input = self.dims(site).and_then(|dims| {
            let input = site.inputs(&self.sizes, dims).into_iter().next()?;
            self.frames.get(&site.input(input, &self.sizes)?)
        });
        let (Some(input), Some(of_a)) = (input, self.frames.get(&site)) else { return false };
        let (FrameData::F32(input), FrameData::F32(of_a)) = (&input.data, &of_a.data) else { return false };
        plausible::is_normed(values, input, of_a, self.sizes.dim)
    }

    /// Returns whether the heads have the same lengths as in the reference, but other directions, as after RoPE with
    /// other angles.
    fn is_turned(&self, site: Site, values: &ArrayD<f32>) -> bool {
        let Some(FrameData::F32(of_a)) = self.frames.get(&site).map(|frame| &frame.data) else {
            return false;
        };
        plausible::is_turned(values, of_a, self.sizes.head_dim)
    }

    /// Returns whether the values of an activation equal its input: the port left the activation out.
    fn is_unchanged(&self, site: Site, values: &ArrayD<f32>) -> bool {
        let given = site.other(Stage::FfnGate);
        let apart = (site.stage == Stage::FfnSilu).then(|| self.apart(given, values.clone())).flatten();
        apart.is_some_and(|apart| apart.error <= SURE)
    }

    /// Returns whether a file of the final norm's shape has the values of the last layer's output.
    pub(super) fn is_last_output(&self, way: &Way<'f>) -> bool {
        let Some(last) = self.sizes.layers.checked_sub(1) else { return false };
        let site = Site::layer(self.first_pass(), last, Stage::FfnResidual);
        let place = Site::once(self.first_pass(), way.stage);
        let apart = self.values(&way.pattern.name, place).and_then(|values| self.apart(site, values));
        apart.is_some_and(|apart| apart.error <= SURE)
    }

    /// The number of the first pass that is compared.
    pub(super) fn first_pass(&self) -> usize {
        self.passes.first().map_or(0, |dims| dims.pass)
    }

    /// The number of passes for which these patterns have files.
    pub(super) fn passes_of<'a>(&self, patterns: impl Iterator<Item = &'a str>) -> usize {
        let more = |pattern: &str| {
            let there = |dims: &PassDims| {
                !self.names.of(&in_pass(pattern, dims.pass), 1, 0..self.sizes.layers).is_empty()
            };
            if pattern.contains("{pass") { self.all.iter().filter(|dims| there(dims)).count() } else { 1 }
        };
        patterns.map(more).max().unwrap_or(1)
    }
}

/// Returns whether the stage is a norm over the model's width.
pub(super) fn is_norm(stage: Stage) -> bool {
    stage.info().op == Op::RmsNorm && stage.axes() == [Axis::Token, Axis::Dim]
}

/// Returns whether the stage is the residual stream.
fn is_residual(stage: Stage) -> bool {
    matches!(stage, Stage::AttnResidual | Stage::FfnResidual)
}

/// Returns whether only a name can identify the stage if its values differ from the reference's: it is a copy of
/// another stage (caches, keys, values), or its values resemble no other stage's (RoPE's tables, the mask, scales).
pub(super) fn needs_name(stage: Stage) -> bool {
    matches!(stage, Stage::Mask | Stage::CacheK | Stage::CacheV | Stage::Keys | Stage::Values)
        || stage.is_rope_table()
        || stage.is_scale()
}
