//! Which ways of reading a file give a stage's shape, and how far its values are from the reference's.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use ndarray::ArrayD;

use super::super::capture::{Lies, Padded, Pairs, in_pass, named};
use super::super::npy;
use super::looks;
use super::names::{Names, Pattern};
use super::words::{calls, hinted};
use llama_trace_core::error::Result;
use llama_trace_core::stop;
use llama_trace_core::trace::{Axis, Frame, FrameData, Op, PassDims, Site, Sizes, Stage};
use llama_trace_judge::diff::{self, Distance, Found as OfStage};

/// How far a stage may be off, ‖B − A‖ / ‖A‖, and be surely the one that it is taken for.
pub(super) const SURE: f64 = 0.05;

/// Passes that are looked at.
pub(super) const PASSES: usize = 2;

/// Values of the largest stage that is held.
const LARGEST: usize = 1 << 24;

/// Patterns that are looked at, and offsets of a part of a file, at most.
const WAYS: usize = 20_000;
const OFFSETS: usize = 256;

/// What a file is held against.
pub(super) struct Fits<'f> {
    pub(super) folder: &'f Path,
    names: &'f Names,
    pub(super) sizes: Sizes,
    /// The passes of the reference.
    all: Vec<PassDims>,
    /// Those that are looked at.
    passes: Vec<PassDims>,
    frames: BTreeMap<Site, Arc<Frame>>,
    padded: Padded,
    /// Patterns without a pass in them that are another's with one: the files of a single pass of several.
    of_one_pass: BTreeSet<String>,
}

/// What the bits of values tell of a run's precision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Bits {
    /// Some stage that is rounded wherever results are has all of them, or no stage shows a rounding.
    All,
    /// All of them have those of this type of 16 bits.
    Sixteen(&'static str),
    /// All but the logits.
    ButLogits(&'static str),
    /// The same, and nothing but the residual stream was rounded.
    Alone(&'static str),
    /// These stages have them, and no stage that every such run rounds is there to tell.
    Some(&'static str, Vec<Stage>),
}

/// A way of reading files as a stage.
#[derive(Clone, Debug)]
pub(super) struct Way<'f> {
    pub(super) stage: Stage,
    pub(super) lies: Lies,
    pub(super) pattern: &'f Pattern,
    /// Whether its name is the stage's, and the stage that the words of it speak of.
    pub(super) is_called: bool,
    pub(super) hinted: Option<Stage>,
    /// How far it is off in the places that are held, the first pass first.
    pub(super) places: Vec<(Site, Distance)>,
    /// How many of them are in the first pass that it has.
    of_first: usize,
    /// Whether it is the last of a family that is cut for it.
    pub(super) is_paired: bool,
    /// Whether its rows are as large as a norm makes them.
    pub(super) is_normed: bool,
    /// Whether it goes on from the embedding, in a family whose number 0 that is.
    pub(super) is_stream: bool,
    /// Whether every head of it is what RoPE gives, turned by another angle: as long, and not the same.
    pub(super) is_turned: bool,
}

impl Way<'_> {
    /// Keeps some of its places.
    pub(super) fn retain(&mut self, keep: impl Fn(&Site) -> bool) {
        self.places.retain(|(site, _)| keep(site));
        self.of_first = self.places.iter().filter(|(site, _)| site.pass == self.places[0].0.pass).count();
    }

    /// The places of the first pass. Where all of them fit, it is later passes that are wrong.
    pub(super) fn first(&self) -> &[(Site, Distance)] {
        &self.places[..self.of_first]
    }

    /// In how many of those the values are the stage's.
    pub(super) fn matched(&self) -> usize {
        self.first().iter().filter(|(_, apart)| apart.error <= SURE).count()
    }

    /// In how many of them, from the first on, before the first in which they are not.
    pub(super) fn until_wrong(&self) -> usize {
        self.first().iter().take_while(|(_, apart)| apart.error <= SURE).count()
    }

    /// In how many places of all passes they are.
    pub(super) fn hits(&self) -> usize {
        self.places.iter().filter(|(_, apart)| apart.error <= SURE).count()
    }

    /// Whether they are in all of them.
    pub(super) fn is_full(&self) -> bool {
        self.matched() == self.of_first
    }

    /// Whether the first token's values are the stage's in all of them.
    pub(super) fn has_first_token(&self) -> bool {
        self.first().iter().all(|(_, apart)| apart.is_near_first())
    }

    /// How far it is off where it is off least, and where it is off most.
    pub(super) fn errors(&self) -> [f64; 2] {
        let errors = self
            .first()
            .iter()
            .map(|(_, apart)| if apart.error.is_nan() { f64::INFINITY } else { apart.error });
        errors.fold([f64::INFINITY, 0.0], |[least, most], error| [least.min(error), most.max(error)])
    }

    /// The sine of the angle between it and the stage, in the mean.
    pub(super) fn sine(&self) -> f64 {
        let sines = self.first().iter().map(|(_, apart)| if apart.sine.is_nan() { 1.0 } else { apart.sine });
        sines.sum::<f64>() / self.of_first as f64
    }

    /// Whether it points where the stage does in all places, however long it is.
    pub(super) fn is_scaled(&self) -> bool {
        self.first().iter().all(|(_, apart)| is_scaled(apart))
    }

    /// Whether a value is infinite, or no number, in one of the two alone.
    pub(super) fn is_odd(&self) -> bool {
        self.errors()[1].is_infinite()
    }
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
            padded: Padded::default(),
            of_one_pass: BTreeSet::new(),
        }
    }

    /// Whether several passes are looked at.
    pub(super) fn has_several(&self) -> bool {
        self.passes.len() > 1
    }

    /// Whether a site is among those that are held: the first two layers and the last.
    pub(super) fn samples(&self, site: Site) -> bool {
        let layer = site.layer.is_none_or(|layer| layer < 2 || layer + 1 == self.sizes.layers);
        let dims = self.passes.iter().find(|dims| dims.pass == site.pass);
        let count = |dims| self.sizes.shape(site.stage.axes(), dims).iter().product::<usize>();
        let float = !site.stage.is_ids() && !site.stage.is_int8();
        layer && float && dims.is_some_and(|&dims| count(dims) <= LARGEST)
    }

    /// Holds a stage of the reference.
    pub(super) fn add(&mut self, site: Site, found: OfStage) {
        if let OfStage::Frame(frame) = found {
            self.frames.insert(site, frame);
        }
    }

    /// The stages that the reference has.
    pub(super) fn stages(&self) -> impl Iterator<Item = Stage> + '_ {
        Stage::ALL.iter().copied().filter(|stage| self.frames.keys().any(|site| site.stage == *stage))
    }

    /// Every site of the passes, to fill in names.
    pub(super) fn sites(&self) -> impl Iterator<Item = Site> + Clone + '_ {
        let sites = |dims: &PassDims| Site::all(&self.sizes, *dims);
        self.all.iter().flat_map(sites)
    }

    fn dims(&self, site: Site) -> Option<PassDims> {
        self.passes.iter().copied().find(|dims| dims.pass == site.pass)
    }

    fn padded_in(&self, dims: PassDims) -> Padded {
        Padded { tokens: dims.tokens, ..self.padded }
    }

    /// Finds where the tokens are in files that have more rows than the reference has.
    pub(super) fn find_padding(&mut self) -> Result<Padded> {
        let Some(&dims) = self.passes.first() else { return Ok(self.padded) };
        let mut best: Option<(f64, Padded)> = None;
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
                        let padded = Padded { around, batch, tokens: dims.tokens };
                        let lies = Lies { file: Some(pattern.clone()), ..Lies::default() };
                        let apart = self.distance(site, &lies, padded, &values);
                        let error = apart.map_or(f64::INFINITY, |apart| apart.error);
                        // What is not padded at all is preferred.
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
        self.padded = best.map_or_else(Padded::default, |(_, padded)| padded);
        self.of_one_pass = self.find_those_of_one_pass();
        Ok(self.padded)
    }

    /// Where each of the passes that are looked at has a file of a name, with as many rows as it has tokens or sees keys, that
    /// name is every pass's: what it is for one of them is nothing by itself.
    fn find_those_of_one_pass(&self) -> BTreeSet<String> {
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

    /// Every way in which files may be stages, by their shapes, with how far each is off.
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
            // A file is read once for all that it may be.
            let mut read = BTreeMap::new();
            for (&stage, sites) in sites.iter().filter(|(stage, _)| stage.in_layer() == pattern.has_layer) {
                let there = |site: &&Site| {
                    let is_own = site.pass == self.passes[0].pass || pattern.has_pass;
                    is_own && self.names.shape(&pattern.name, **site).is_some()
                };
                let there: Vec<Site> = sites.iter().filter(there).copied().collect();
                let shape = there.first().and_then(|site| self.names.shape(&pattern.name, *site));
                let Some(shape) = shape else { continue };
                for lies in self.all_readings(stage, there[0], shape) {
                    let lies = Lies { file: Some(pattern.name.clone()), ..lies };
                    ways.extend(self.way(pattern, stage, lies, &there, &mut read));
                }
            }
        }
        Ok(ways)
    }

    /// How a file of `shape` may be a stage, and what was captured before a norm's weight, with a file that may be that.
    fn all_readings(&self, stage: Stage, site: Site, shape: &[usize]) -> Vec<Lies> {
        let mut readings = self.readings(stage, site, shape);
        if matches!(stage, Stage::AttnNorm | Stage::FfnNorm | Stage::FinalNorm) {
            let is_weight = |pattern: &&Pattern| {
                let is_row =
                    self.names.shape(&pattern.name, site).is_some_and(|shape| *shape == [self.sizes.dim]);
                is_row && !pattern.has_pass && pattern.has_layer == stage.in_layer()
            };
            let weights: Vec<_> =
                self.names.patterns.iter().filter(is_weight).map(|pattern| &pattern.name).collect();
            let plain: Vec<Lies> = readings.iter().filter(|lies| lies.axes.is_none()).cloned().collect();
            for lies in plain {
                let times = |times: &&String| Lies { times: Some((*times).clone()), ..lies.clone() };
                readings.extend(weights.iter().map(times));
            }
        }
        readings
    }

    /// A way, with how far it is off; none where it says nothing: values that are nothing like the stage, in a reading that
    /// nobody would guess.
    fn way(
        &self,
        pattern: &'f Pattern,
        stage: Stage,
        lies: Lies,
        sites: &[Site],
        read: &mut BTreeMap<Site, Option<ArrayD<f32>>>,
    ) -> Option<Way<'f>> {
        let (is_called, hinted) = (calls(&pattern.name, stage), hinted(&pattern.name, pattern.has_layer));
        let whole = sites
            .first()
            .and_then(|site| self.names.shape(&pattern.name, *site)?.last().copied())
            .unwrap_or(0);
        let may_be =
            self.may_be(stage, &lies, whole) && (!needs_name(stage) || is_called || hinted == Some(stage));
        let mut way = Way {
            stage,
            lies,
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
            // Where it fits in one place and not in another it is something else.
            let laid = self.laid(site, &way.lies, self.padded_in(dims), values)?;
            way.is_normed = way.is_normed && self.is_normed(site, &laid);
            way.is_turned = way.is_turned && self.is_turned(site, &laid);
            may_have_values &= looks::may_be(stage, &laid);
            is_unchanged |= self.is_unchanged(site, &laid);
            let apart = self.apart(site, laid)?;
            way.places.push((site, apart));
            way.of_first += usize::from(site.pass == sites[0].pass);
            // Of a reading that is only right where the values are, two places that are wrong are enough.
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

    /// Whether values of the logits' shape are the shares that follow from them, or those shares' logarithms: rows that add up
    /// to 1, or that are the logits less one number.
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

    /// How a file of `shape` may be a stage.
    fn readings(&self, stage: Stage, site: Site, shape: &[usize]) -> Vec<Lies> {
        let Some(dims) = self.dims(site) else { return Vec::new() };
        let padded = self.padded_in(dims);
        let more = padded.around[0] + padded.around[1];
        let own: Vec<usize> = self.sizes.shape(stage.axes(), dims);
        // The stage's shape as the file has it, with its padding.
        let wide = |(axis, &length): (&Axis, &usize)| match axis {
            Axis::Token | Axis::Key => length + more,
            _ => length,
        };
        let wide: Vec<usize> = stage.axes().iter().zip(&own).map(wide).collect();
        let count: usize = wide.iter().product();
        let held: usize = shape.iter().product();
        let mut readings = Vec::new();
        let batch = padded.batch.and(shape.first().copied()).unwrap_or(1);
        let last = stage == Stage::Logits && held == own.last().copied().unwrap_or(0);
        if held == count * batch || last {
            readings.push(Lies::default());
        }
        readings.extend(orders(stage, &wide, shape));
        // A part of a fused tensor: its offsets are multiples of what both widths are of.
        let rows = wide.first().copied().unwrap_or(0);
        let (width, whole) = (count / rows.max(1), shape.last().copied().unwrap_or(0));
        if stage.axes().first() == Some(&Axis::Token)
            && whole > width
            && width > 0
            && held == rows * whole * batch
        {
            let step = gcd(width, whole);
            let offsets = (0..=whole - width).step_by(step).take(OFFSETS);
            readings
                .extend(offsets.map(|from| Lies { columns: Some([from, from + width]), ..Lies::default() }));
        }
        if matches!(
            stage,
            Stage::Xq | Stage::Xk | Stage::XqNorm | Stage::XkNorm | Stage::XqRope | Stage::XkRope
        ) {
            let plain = readings.clone();
            for pairs in [Pairs::NeighboursToHalves, Pairs::HalvesToNeighbours] {
                readings.extend(plain.iter().map(|lies| Lies { pairs: Some(pairs), ..lies.clone() }));
            }
        }
        readings
    }

    /// The files that are read so.
    pub(super) fn files(&self, way: &Way<'_>) -> BTreeSet<String> {
        let [from, to] = way.lies.layers.unwrap_or([0, self.sizes.layers]);
        self.names.of(&way.pattern.name, self.all.len(), from..to)
    }

    /// In how many places the folder has a file that is read so.
    pub(super) fn count(&self, way: &Way<'_>) -> usize {
        self.files(way).len()
    }

    /// Whether something is worth a guess, where the values do not say that it is right: a whole file, or the part of
    /// one in which queries, keys and values, or gate and up, lie side by side in their order.
    /// Its rows have `whole` values.
    fn may_be(&self, stage: Stage, lies: &Lies, whole: usize) -> bool {
        let Sizes { heads, kv_heads, head_dim: c, hidden: ffn_dim, .. } = self.sizes;
        let (q, kv) = (heads * c, kv_heads * c);
        let (parts, all) = match stage {
            Stage::Xq => ([0, q], q + 2 * kv),
            Stage::Xk => ([q, q + kv], q + 2 * kv),
            Stage::Xv => ([q + kv, q + 2 * kv], q + 2 * kv),
            Stage::FfnGate => ([0, ffn_dim], 2 * ffn_dim),
            Stage::FfnUp => ([ffn_dim, 2 * ffn_dim], 2 * ffn_dim),
            _ => ([0, 0], 0),
        };
        lies.columns.is_none_or(|columns| (columns, whole) == (parts, all))
            && lies.times.is_none()
            && lies.pairs.is_none()
    }

    /// The values of the file of a pattern.
    fn file(&self, pattern: &str, site: Site) -> Option<ArrayD<f32>> {
        let OfStage::Frame(frame) = npy::read(&self.folder.join(named(pattern, site)), site) else {
            return None;
        };
        let FrameData::F32(values) = &frame.data else { return None };
        Some(values.clone())
    }

    /// How far values read so are from the reference at a site.
    fn distance(&self, site: Site, lies: &Lies, padded: Padded, values: &ArrayD<f32>) -> Option<Distance> {
        self.apart(site, self.laid(site, lies, padded, values)?)
    }

    /// Values in the stage's order.
    fn laid(&self, site: Site, lies: &Lies, padded: Padded, values: &ArrayD<f32>) -> Option<ArrayD<f32>> {
        lies.laid(values.clone(), self.folder, site, padded, self.sizes.head_dim).ok()
    }

    /// The values of a file in the stage's order.
    pub(super) fn values(&self, pattern: &str, site: Site) -> Option<ArrayD<f32>> {
        let padded = self.padded_in(self.dims(site)?);
        self.laid(site, &Lies::default(), padded, &self.file(pattern, site)?)
    }

    /// How far values in the stage's order are from the reference.
    fn apart(&self, site: Site, laid: ArrayD<f32>) -> Option<Distance> {
        let read = Frame { site, axes: site.stage.axes(), data: FrameData::F32(laid) };
        diff::distance(site, &self.sizes, self.dims(site)?, self.frames.get(&site)?, &read)
    }

    /// Whether each row of a norm's values is as large as this norm makes all rows: with its weight, with one that is off by 1,
    /// or with none.
    fn is_normed(&self, site: Site, values: &ArrayD<f32>) -> bool {
        let input = self.dims(site).and_then(|dims| {
            let input = site.stage.inputs(&self.sizes, dims).into_iter().next()?;
            self.frames.get(&site.input(input, &self.sizes)?)
        });
        let (Some(input), Some(of_a)) = (input, self.frames.get(&site)) else { return false };
        let (FrameData::F32(input), FrameData::F32(of_a)) = (&input.data, &of_a.data) else { return false };
        looks::is_normed(values, input, of_a, self.sizes.dim)
    }

    /// Whether heads are as long as the reference's, and some are not the same: what RoPE turned by other angles.
    fn is_turned(&self, site: Site, values: &ArrayD<f32>) -> bool {
        let Some(FrameData::F32(of_a)) = self.frames.get(&site).map(|frame| &frame.data) else {
            return false;
        };
        looks::is_turned(values, of_a, self.sizes.head_dim)
    }

    /// Whether values of an activation are those that it was given: it was left out.
    fn is_unchanged(&self, site: Site, values: &ArrayD<f32>) -> bool {
        let given = site.other(Stage::FfnGate);
        let apart = (site.stage == Stage::FfnSilu).then(|| self.apart(given, values.clone())).flatten();
        apart.is_some_and(|apart| apart.error <= SURE)
    }

    /// Whether a file of the final norm's shape has the values that the last layer gives.
    pub(super) fn is_last_output(&self, way: &Way<'f>) -> bool {
        let Some(last) = self.sizes.layers.checked_sub(1) else { return false };
        let site = Site::layer(self.first_pass(), last, Stage::FfnResidual);
        let place = Site::once(self.first_pass(), way.stage);
        let apart = self.values(&way.pattern.name, place).and_then(|values| self.apart(site, values));
        apart.is_some_and(|apart| apart.error <= SURE)
    }

    /// The pass that is looked at first.
    pub(super) fn first_pass(&self) -> usize {
        self.passes.first().map_or(0, |dims| dims.pass)
    }

    /// How far a file that is made of several is off, in the first pass.
    pub(super) fn made(&self, from: &Way<'f>, stage: Stage, lies: Lies) -> Option<Way<'f>> {
        let sites = self
            .frames
            .keys()
            .copied()
            .filter(|site| site.stage == stage && site.pass == self.passes[0].pass);
        let there: Vec<Site> =
            sites.filter(|site| self.names.shape(&from.pattern.name, *site).is_some()).collect();
        let way = self.way(from.pattern, stage, lies, &there, &mut BTreeMap::new())?;
        (!way.places.is_empty()).then_some(way)
    }

    /// What the bits of the values that were `found` tell of the run's precision.
    pub(super) fn bits(&self, found: &[&Way<'_>]) -> Bits {
        let of = |says: fn(Stage) -> bool| found.iter().copied().filter(move |one| says(one.stage));
        let rounded: Vec<_> = of(is_rounded).filter_map(|one| self.sixteen(one)).collect();
        let logits = of(|stage| stage == Stage::Logits).find_map(|one| self.sixteen(one));
        match (name(&rounded), logits) {
            // Logits are often widened after the run, so they are asked where nothing else says it.
            (None, logits) if rounded.is_empty() => match logits.and_then(|logits| name(&[logits])) {
                Some(name) => Bits::Sixteen(name),
                None => self.some_rounded(found),
            },
            (None, _) => Bits::All,
            // What else is rounded says that all of it is.
            (Some(name), None | Some([false, false]))
                if of(is_rounded).all(|one| is_residual(one.stage))
                    && found.iter().any(|one| self.is_rounded_alone(one, name)) =>
            {
                Bits::Alone(name)
            }
            (Some(name), Some([false, false])) => Bits::ButLogits(name),
            (Some(name), _) => Bits::Sixteen(name),
        }
    }

    /// Where no stage is there that every run of 16 bits rounds: those that such a run may round, and did. Where the reference
    /// has those bits too, as embeddings of a table in bfloat16 do, they say nothing.
    fn some_rounded(&self, found: &[&Way<'_>]) -> Bits {
        let is_of_both = |way: &Way<'_>, kinds: [bool; 2]| {
            let of_a = way.places.iter().filter_map(|(site, _)| match &self.frames.get(site)?.data {
                FrameData::F32(values) => Some(kinds_of(values)),
                _ => None,
            });
            let of_a = of_a.reduce(both).unwrap_or_default();
            kinds.iter().zip(of_a).any(|(own, of_a)| *own && of_a)
        };
        let shown: Vec<(Stage, [bool; 2])> = found
            .iter()
            .filter(|way| may_be_rounded(way.stage))
            .filter_map(|way| {
                let kinds = self.sixteen(way).filter(|kinds| kinds.contains(&true))?;
                (!is_of_both(way, kinds)).then_some((way.stage, kinds))
            })
            .collect();
        let kinds: Vec<[bool; 2]> = shown.iter().map(|(_, kinds)| *kinds).collect();
        let stages = shown.into_iter().map(|(stage, _)| stage).collect();
        name(&kinds).map_or(Bits::All, |name| Bits::Some(name, stages))
    }

    /// Whether every value is a bfloat16, and a float16; none where it has no file.
    fn sixteen(&self, way: &Way<'_>) -> Option<[bool; 2]> {
        let read = way.places.iter().filter_map(|(site, _)| self.file(&way.pattern.name, *site));
        read.map(|values| kinds_of(&values)).reduce(both)
    }

    /// Whether nothing but the residual stream was rounded on the way to its first place: it is hardly further off than the
    /// reference rounded is. Where all results are rounded, it is more than twice as far.
    fn is_rounded_alone(&self, way: &Way<'_>, name: &str) -> bool {
        /// How many times as far off it may be: it is rounded twice in a layer.
        const ONCE_OR_TWICE: f64 = 1.75;
        let first = way.places.first().filter(|(site, _)| is_residual(way.stage) && site.layer == Some(0));
        let Some((site, apart)) = first else { return false };
        let Some(FrameData::F32(values)) = self.frames.get(site).map(|frame| &frame.data) else {
            return false;
        };
        let square = |x: f32| f64::from(x).powi(2);
        let rounded = |x: f32| match name {
            "f16" => half::f16::from_f32(x).to_f32(),
            _ => half::bf16::from_f32(x).to_f32(),
        };
        let off: f64 = values.iter().map(|&x| square(rounded(x) - x)).sum();
        let norm: f64 = values.iter().map(|&x| square(x)).sum();
        apart.error <= ONCE_OR_TWICE * (off / norm).sqrt()
    }

    /// Whether the folder has what products read in int8: a file of the shape of such a stage, each row of which goes up
    /// to the largest number that there is, as what is scaled by its largest value does.
    pub(super) fn reads_int8(&self) -> bool {
        self.names.int8.iter().any(|name| {
            let site = Site::once(0, Stage::AttnNormQ8);
            let OfStage::Frame(frame) = npy::read(&self.folder.join(name), site) else { return false };
            let FrameData::I8(values) = &frame.data else { return false };
            let own = |dims: &PassDims, stage: Stage| {
                let [before, after] = self.padded.around;
                let shape = self.sizes.shape(stage.axes(), *dims);
                let width = shape.iter().skip(1).product::<usize>();
                (values.len() == (dims.tokens + before + after) * width).then_some(width)
            };
            let stages = Stage::ALL.iter().copied().filter(|stage| stage.is_int8());
            let width = stages.flat_map(|stage| self.passes.iter().map(move |dims| (dims, stage)));
            let Some(width) = width.filter_map(|(dims, stage)| own(dims, stage)).find(|&width| width > 0)
            else {
                return false;
            };
            let values: Vec<i8> = values.iter().copied().collect();
            values.chunks(width).all(|row| row.iter().any(|x| x.unsigned_abs() >= 127))
        })
    }

    /// How many passes these files are of.
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

/// Whether the stage is a norm over the model's width.
pub(super) fn is_norm(stage: Stage) -> bool {
    stage.info().op == Op::RmsNorm && stage.axes() == [Axis::Token, Axis::Dim]
}

/// Whether the stage is the residual stream.
fn is_residual(stage: Stage) -> bool {
    matches!(stage, Stage::AttnResidual | Stage::FfnResidual)
}

/// Whether a stage is far off only in how long it is.
pub(super) fn is_scaled(apart: &Distance) -> bool {
    /// How far the directions may be apart, as a sine.
    const SAME: f64 = 0.02;
    apart.sine <= SAME
}

/// Whether values that are not near say nothing of a stage: other stages are like it, or nothing is.
pub(super) fn needs_name(stage: Stage) -> bool {
    matches!(
        stage,
        Stage::RopeCos
            | Stage::RopeSin
            | Stage::Mask
            | Stage::CacheK
            | Stage::CacheV
            | Stage::Keys
            | Stage::Values
    ) || stage.is_scale()
}

/// Whether every value is a bfloat16, and a float16.
fn kinds_of(values: &ArrayD<f32>) -> [bool; 2] {
    let bf16 = values.iter().all(|&x| half::bf16::from_f32(x).to_f32() == x);
    [bf16, values.iter().all(|&x| half::f16::from_f32(x).to_f32() == x)]
}

fn both(a: [bool; 2], b: [bool; 2]) -> [bool; 2] {
    [a[0] && b[0], a[1] && b[1]]
}

/// The type of 16 bits that all of these are of.
fn name(kinds: &[[bool; 2]]) -> Option<&'static str> {
    match kinds.iter().copied().reduce(both)? {
        [true, _] => Some("bf16"),
        [_, true] => Some("f16"),
        _ => None,
    }
}

/// Whether some runs of 16 bits round in this stage, and others make it in float32.
fn may_be_rounded(stage: Stage) -> bool {
    matches!(
        stage,
        Stage::Embedding
            | Stage::RopeCos
            | Stage::RopeSin
            | Stage::Qk
            | Stage::Scores
            | Stage::MaskedScores
            | Stage::Softmax
    )
}

/// Whether a run that rounds does so in this stage, and one that does not leaves more bits there: what is looked up has
/// those of the table, angles and probabilities are often made in float32, and a cache may have its own.
fn is_rounded(stage: Stage) -> bool {
    matches!(
        stage,
        Stage::AttnNorm
            | Stage::Xq
            | Stage::Xk
            | Stage::Xv
            | Stage::XqNorm
            | Stage::XkNorm
            | Stage::XqRope
            | Stage::XkRope
            | Stage::AttnHeads
            | Stage::AttnOutput
            | Stage::AttnResidual
            | Stage::FfnNorm
            | Stage::FfnGate
            | Stage::FfnSilu
            | Stage::FfnUp
            | Stage::FfnHidden
            | Stage::FfnDown
            | Stage::FfnResidual
            | Stage::FinalNorm
    )
}

/// The orders of axes, other than the stage's own, in which a file of `shape` may be one of shape `own`.
fn orders(stage: Stage, own: &[usize], shape: &[usize]) -> Vec<Lies> {
    let axes = stage.axes();
    // Where the file has an axis more it is a batch: one of length 1, or the first.
    let batch = match shape.len().checked_sub(axes.len()) {
        Some(0) => None,
        Some(1) => Some(shape.iter().position(|&length| length == 1).unwrap_or(0)),
        _ => return Vec::new(),
    };
    let rest: Vec<usize> =
        shape.iter().enumerate().filter(|(at, _)| Some(*at) != batch).map(|(_, &length)| length).collect();
    let orders: &[&[usize]] = match axes.len() {
        2 => &[&[1, 0]],
        3 => &[&[0, 2, 1], &[1, 0, 2], &[1, 2, 0], &[2, 0, 1], &[2, 1, 0]],
        _ => &[],
    };
    let fits = |order: &&&[usize]| order.iter().map(|&at| own[at]).eq(rest.iter().copied());
    let named = |order: &&[usize]| {
        let mut names: Vec<String> = order.iter().map(|&at| axes[at].name().to_owned()).collect();
        batch.iter().for_each(|&at| names.insert(at, "batch".into()));
        Lies { axes: Some(names), ..Lies::default() }
    };
    orders.iter().filter(fits).map(named).collect()
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}
