//! Which ways of reading a file give a stage's shape, and how far its values are from the reference's.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::super::capture::{Lies, Padded, Pairs, in_pass, named};
use super::super::npy;
use super::names::Names;
use super::{Found, SURE};
use crate::diff::{self, Found as OfStage};
use crate::error::Result;
use crate::trace::{Axis, Frame, FrameData, PassDims, Site, Sizes, Stage};

/// Passes that are looked at.
pub(super) const PASSES: usize = 2;

/// Values of the largest stage that is held.
const LARGEST: usize = 1 << 24;

/// Files that a stage is looked for in at most, and offsets of a part of one.
const WAYS: usize = 20_000;
const OFFSETS: usize = 256;

/// What a file is held against.
pub(super) struct Fits<'f> {
    pub(super) folder: &'f Path,
    names: &'f Names,
    sizes: Sizes,
    /// The passes of the reference.
    all: Vec<PassDims>,
    /// Those that are looked at.
    passes: Vec<PassDims>,
    frames: BTreeMap<Site, Arc<Frame>>,
    padded: Padded,
    /// Patterns without a pass in them that are another's with one: the files of a single pass of several.
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
            for pattern in self.names.patterns.iter().take(WAYS) {
                let Some(shape) = self.names.shape(pattern, site) else { continue };
                let (rows, batch) = match *shape {
                    [rows, width] if width == self.sizes.dim => (rows, 1),
                    [batch, rows, width] if width == self.sizes.dim => (rows, batch),
                    _ => continue,
                };
                let Some(more) = rows.checked_sub(dims.tokens) else { continue };
                for before in (0..=more).take(OFFSETS) {
                    for one in 0..batch.min(OFFSETS) {
                        let (around, batch) = ([before, more - before], (batch > 1).then_some(one));
                        let padded = Padded { around, batch, tokens: dims.tokens };
                        let lies = Lies { file: Some(pattern.clone()), ..Lies::default() };
                        let error =
                            self.distance(site, &lies, padded).map_or(f64::INFINITY, |[error, _]| error);
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
        let patterns = self.names.patterns.iter().filter(of_all);
        patterns.flat_map(|pattern| passes().map(|pass| in_pass(pattern, pass))).collect()
    }

    /// The ways in which files may be a stage, by their shapes in its first place.
    pub(super) fn ways(&self, stage: Stage) -> Vec<Lies> {
        let Some((&site, _)) = self.frames.iter().find(|(site, _)| site.stage == stage) else {
            return Vec::new();
        };
        let mut ways = Vec::new();
        for pattern in &self.names.patterns {
            let Some(shape) = self.names.shape(pattern, site) else { continue };
            let is_other =
                pattern.contains("{layer") != stage.in_layer() || self.of_one_pass.contains(pattern);
            if is_other || ways.len() > WAYS {
                continue;
            }
            for lies in self.readings(stage, site, shape) {
                ways.push(Lies { file: Some(pattern.clone()), ..lies });
            }
        }
        if matches!(stage, Stage::AttnNorm | Stage::FfnNorm | Stage::FinalNorm) {
            // What was captured before the norm's weight, with a file that may be that.
            let weights = self.names.patterns.iter().filter(|pattern| {
                let is_row = self.names.shape(pattern, site).is_some_and(|shape| *shape == [self.sizes.dim]);
                is_row && !pattern.contains("{pass") && pattern.contains("{layer") == stage.in_layer()
            });
            let weights: Vec<_> = weights.cloned().collect();
            let plain: Vec<Lies> = ways.iter().filter(|lies| lies.axes.is_none()).cloned().collect();
            for lies in plain {
                ways.extend(weights.iter().map(|times| Lies { times: Some(times.clone()), ..lies.clone() }));
            }
        }
        ways.truncate(WAYS);
        ways
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

    /// Whether two stages would be read from the same file, or from the same part of one.
    pub(super) fn share(&self, stage: Stage, a: &Lies, other: Stage, b: &Lies) -> bool {
        let file = |stage: Stage, lies: &Lies| {
            let site = self.frames.keys().find(|site| site.stage == stage)?;
            Some(named(lies.file.as_deref()?, *site))
        };
        let apart = match (a.columns, b.columns) {
            (Some(a), Some(b)) => a[1] <= b[0] || b[1] <= a[0],
            _ => false,
        };
        !apart && file(stage, a) == file(other, b)
    }

    /// Whether something is worth a guess, where the values do not say that it is right: a whole file, or the part of
    /// one in which queries, keys and values, or gate and up, lie side by side in their order.
    pub(super) fn may_be(&self, stage: Stage, lies: &Lies) -> bool {
        let pattern = lies.file.as_deref().unwrap_or_default();
        let once = |site: Site| self.names.shape(pattern, site).is_some();
        let Sizes { heads, kv_heads, head_dim: c, hidden: ffn_dim, .. } = self.sizes;
        let (q, kv) = (heads * c, kv_heads * c);
        let parts = match stage {
            Stage::Xq => [0, q],
            Stage::Xk => [q, q + kv],
            Stage::Xv => [q + kv, q + 2 * kv],
            Stage::FfnGate => [0, ffn_dim],
            Stage::FfnUp => [ffn_dim, 2 * ffn_dim],
            _ => [0, 0],
        };
        // Of these the values alone say nothing where they are not near.
        let needs_name = matches!(stage, Stage::RopeCos | Stage::RopeSin | Stage::Mask);
        let of_a_layer = || {
            // A file like it is there for each layer.
            let layers =
                (0..self.sizes.layers).map(|layer| Site::layer(self.passes[0].pass, layer, Stage::Xq));
            let like = |other: &&String| {
                let all = layers.clone().all(|site| self.names.shape(other, site).is_some());
                all && layers.clone().any(|site| named(other, site) == named(pattern, site))
            };
            // Where this one has the pass, there is no layer: there may be as many passes as layers.
            let own = pattern.replace("{pass", "{layer");
            let layered =
                self.names.patterns.iter().filter(|other| other.contains("{layer") && **other != own);
            self.sizes.layers > 1 && layered.filter(like).count() > 0
        };
        let whole = lies.columns.is_none_or(|columns| columns == parts);
        whole
            && (!needs_name || calls(pattern, stage))
            && lies.times.is_none()
            && (stage.in_layer() || (once(Site::once(self.passes[0].pass, stage)) && !of_a_layer()))
    }

    /// How far what is read so is from the reference, over the places that are held; none where it has no such file.
    pub(super) fn judge(&self, stage: Stage, lies: Lies) -> Result<Option<Found>> {
        let pattern = lies.file.clone().unwrap_or_default();
        let held: Vec<Site> = self.frames.keys().copied().filter(|site| site.stage == stage).collect();
        let (mut errors, mut sines, mut of_first) = (Vec::new(), Vec::new(), 0);
        for site in held.into_iter().filter(|site| self.names.shape(&pattern, *site).is_some()) {
            let Some(dims) = self.dims(site) else { continue };
            // A name without a pass in it is the first pass's alone.
            if dims.pass != self.passes[0].pass && !pattern.contains("{pass") {
                continue;
            }
            let Some([error, sine]) = self.distance(site, &lies, self.padded_in(dims)) else {
                // It fits in one place and not in another: it is something else.
                return Ok(None);
            };
            errors.push(if error.is_nan() { f64::INFINITY } else { error });
            let is_of_first = dims.pass == self.passes[0].pass;
            of_first += usize::from(is_of_first);
            sines.push(if sine.is_nan() { 1.0 } else { sine });
            // Where the first place is nothing like it, no other is looked at, but where the name says which stage it is.
            if errors.len() == 1 && sines[0] > 0.999 && !calls(&pattern, stage) {
                return Ok(None);
            }
        }
        let Some(&first) = errors.first() else { return Ok(None) };
        let mean = |of: &[f64]| of.iter().map(|x| x.min(1.0)).sum::<f64>() / of.len() as f64;
        // One layer that fits and others that do not are another order of layers and passes. Where all of the first pass
        // fit, it is later passes that are wrong.
        let error = if mean(&errors[..of_first.max(1)]) <= SURE {
            errors.iter().copied().fold(first, f64::min)
        } else {
            mean(&errors).max(SURE * 1.01)
        };
        let pass = |site: &Site| site.pass == self.passes[0].pass || pattern.contains("{pass");
        let places = self.sites().filter(|site| site.stage == stage && pass(site));
        let places = places.filter(|site| self.names.shape(&pattern, *site).is_some()).count();
        let odd = errors.iter().any(|error| error.is_infinite());
        Ok(Some(Found { stage, lies, error, sine: mean(&sines), odd, places }))
    }

    /// How far a file read so is from the reference at a site, and the sine of the angle between them.
    fn distance(&self, site: Site, lies: &Lies, padded: Padded) -> Option<[f64; 2]> {
        let read = self.values(site, lies, padded)?;
        let dims = self.dims(site)?;
        diff::distance(site, &self.sizes, dims, self.frames.get(&site)?, &read)
    }

    fn values(&self, site: Site, lies: &Lies, padded: Padded) -> Option<Frame> {
        let file = named(lies.file.as_deref()?, site);
        let OfStage::Frame(frame) = npy::read(&self.folder.join(file), site) else { return None };
        let FrameData::F32(values) = &frame.data else { return None };
        let laid = lies.laid(values.clone(), self.folder, site, padded, self.sizes.head_dim).ok()?;
        Some(Frame { site, axes: site.stage.axes(), data: FrameData::F32(laid) })
    }

    /// The number type of 16 bits that every value of what was `found` has the bits of; none where some have more.
    pub(super) fn bits(&self, found: &[Found]) -> Option<&'static str> {
        let of = |says: fn(Stage) -> bool| found.iter().filter(move |one| says(one.stage));
        let mut all: Option<[bool; 2]> = None;
        // Logits are often widened after the run, so they are asked where nothing else says it.
        let logits = of(|stage| stage == Stage::Logits).filter(|_| of(is_rounded).next().is_none());
        for one in of(is_rounded).chain(logits) {
            for &site in self.frames.keys().filter(|site| site.stage == one.stage) {
                let Some(file) = one.lies.file.as_deref() else { continue };
                let OfStage::Frame(frame) = npy::read(&self.folder.join(named(file, site)), site) else {
                    continue;
                };
                let FrameData::F32(values) = &frame.data else { continue };
                let bf16 = values.iter().all(|&x| half::bf16::from_f32(x).to_f32() == x);
                let f16 = values.iter().all(|&x| half::f16::from_f32(x).to_f32() == x);
                let [were_bf16, were_f16] = all.unwrap_or([true, true]);
                all = Some([were_bf16 && bf16, were_f16 && f16]);
                if all == Some([false, false]) {
                    return None;
                }
            }
        }
        match all? {
            [true, _] => Some("bf16"),
            [_, true] => Some("f16"),
            _ => None,
        }
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
                Site::all(&self.sizes, *dims)
                    .into_iter()
                    .any(|site| self.names.shape(pattern, site).is_some())
            };
            if pattern.contains("{pass") { self.all.iter().filter(|dims| there(dims)).count() } else { 1 }
        };
        patterns.map(more).max().unwrap_or(1)
    }
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

/// Whether a file of this name is called as the stage is here or in transformers: who calls it so means that stage, whatever is
/// wrong with the values.
pub(super) fn calls(pattern: &str, stage: Stage) -> bool {
    let stem = pattern.strip_suffix(".npy").unwrap_or(pattern);
    let module = stage.info().aliases.hugging_face;
    let is_module = !module.is_empty() && (stem == module || stem.ends_with(&format!(".{module}")));
    is_module || stem.split(['/', '.', '-', '{', '}']).any(|part| part == stage.name())
}
