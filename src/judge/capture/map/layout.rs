//! The memory layout of a captured tensor, and its conversion to the layout of `export`.

use std::path::{Component, Path};

use ndarray::{ArrayD, Axis as At, IxDyn, Slice};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{WIDEST, named};
use crate::capture::npy;
use crate::diff::Found;
use llama_trace_core::error::printable;
use llama_trace_core::trace::{Axis, Site, Stage};

/// The place of a pass's rows in a padded batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Padding {
    /// Rows of padding before the first token and after the last token.
    pub(crate) around: [usize; 2],
    /// The index of the sequence in the batch; `None` without a batch.
    pub(crate) batch: Option<usize>,
    /// The number of tokens between the padding.
    pub(crate) tokens: usize,
}

impl Padding {
    /// Returns whether `shape` has a leading batch axis: it has one axis more than the stage, or the same number of
    /// axes if the heads are merged into one axis.
    fn is_batch(self, shape: &[usize], stage: Stage, head_dim: usize) -> bool {
        let (own, rows) = (stage.axes(), self.around.into_iter().fold(self.tokens, usize::saturating_add));
        let side_by_side =
            || own.len() == 3 && own[0] == Axis::Token && shape[1] == rows && shape[2] != head_dim;
        shape.len() > own.len() || (shape.len() == own.len() && side_by_side())
    }
}

/// Memory layout of a captured tensor: an entry of `[stages]`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(
    deny_unknown_fields,
    default,
    expecting = "a table with file, layers, columns, axes, pairs, times, plus, minus or maybe"
)]
pub(crate) struct Layout {
    /// The file's path relative to the folder, with {pass} and {layer}. {layer+1} counts from 1, {layer:02} pads with
    /// zeros.
    pub(crate) file: Option<String>,
    /// The first layer that the entry covers, and the layer after the last one. Without this range, all layers.
    pub(crate) layers: Option<[usize; 2]>,
    /// A range of the last axis: a part of a fused tensor.
    pub(crate) columns: Option<[usize; 2]>,
    /// The names of the axes in the file's order, `batch` included.
    pub(crate) axes: Option<Vec<String>>,
    /// The conversion of the order of RoPE's pairs.
    pub(crate) pairs: Option<Pairs>,
    /// A file of one row, by which each row is multiplied: the weight of a norm, if the tensor was captured before this
    /// multiplication.
    pub(crate) times: Option<String>,
    /// A file to add: the residual, if the tensor was captured before the sum.
    pub(crate) plus: Option<String>,
    /// A file to subtract: the residual, if the tensor was captured after the sum.
    pub(crate) minus: Option<String>,
    /// Other stages that the file may hold: the proposed map could not tell them apart.
    pub(crate) maybe: Option<Vec<String>>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Pairs {
    NeighboursToHalves,
    HalvesToNeighbours,
}

impl Layout {
    /// Returns whether the file has the layout of `export`.
    pub(crate) fn is_plain(&self) -> bool {
        *self == Self { file: self.file.clone(), layers: self.layers, ..Self::default() }
    }

    /// Returns whether the entry covers the layer of `site`.
    pub(crate) fn is_of(&self, site: Site) -> bool {
        match (self.layers, site.layer) {
            (Some([from, to]), Some(layer)) => (from..to).contains(&layer),
            _ => true,
        }
    }

    pub(super) fn check(&self, name: &str, config: &Map<String, Value>) -> Result<(), String> {
        if Stage::from_name(name).is_none() {
            return Err(format!("there is no stage `{name}`"));
        }
        if let Some(other) = self.maybe.iter().flatten().find(|other| Stage::from_name(other).is_none()) {
            return Err(format!(
                "stage {name}: its key `maybe` lists `{}`, but there is no such stage",
                printable(other)
            ));
        }
        for file in [&self.file, &self.times, &self.plus, &self.minus].into_iter().flatten() {
            let below = Path::new(file).components().all(|part| matches!(part, Component::Normal(_)));
            if !below {
                return Err(format!("stage {name}: the path `{file}` is not below the folder"));
            }
            // An unknown placeholder is not replaced, so its braces are still there.
            let filled = named(file, Site::layer(0, 0, Stage::Xq));
            if let Some((_, place)) = filled.to_string_lossy().split_once('{') {
                let place = place.split('}').next().unwrap_or_default();
                return Err(format!(
                    "stage {name}: `{{{place}}}` in `{file}` is not a place for a number: use {{pass}} and {{layer}}, \
                     {{layer+1}} for numbers that begin at 1, and {{layer:02}} to {{layer:0{WIDEST}}} for leading zeros"
                ));
            }
        }
        if let Some([from, to]) = self.layers.filter(|[from, to]| from >= to) {
            return Err(format!(
                "stage {name}: its key `layers` is an empty range: from {from} to before {to}"
            ));
        }
        for axis in self.axes.iter().flatten() {
            let known =
                axis == "batch" || Stage::from_name(name).is_some_and(|stage| axis_of(stage, axis).is_some());
            if !known {
                return Err(format!("{name} has no axis `{axis}`"));
            }
            if axis != "batch" && self.axes.iter().flatten().filter(|other| *other == axis).count() > 1 {
                return Err(format!("stage {name}: its key `axes` has `{axis}` twice"));
            }
        }
        if self.pairs.is_some() && config.get("head_dim").and_then(Value::as_u64).is_none_or(|c| c == 0) {
            return Err(format!("stage {name}: its key `pairs` needs head_dim in [config]"));
        }
        Ok(())
    }

    /// The values in the layout of `export`.
    ///
    /// # Errors
    /// A description of what does not fit.
    pub(crate) fn arranged(
        &self,
        mut values: ArrayD<f32>,
        path: &Path,
        site: Site,
        padded: Padding,
        head_dim: usize,
    ) -> Result<ArrayD<f32>, String> {
        if let Some([from, to]) = self.columns {
            let last = values.ndim().checked_sub(1).ok_or("it has no axes")?;
            let count = values.len_of(At(last));
            if from >= to || to > count {
                return Err(format!(
                    "it has {count} columns, but `columns` in capture.toml asks for {from} to {to}"
                ));
            }
            values = values.slice_axis(At(last), Slice::from(from..to)).to_owned();
        }
        let Padding { around: [before, after], batch, tokens } = padded;
        let is_padded = [before, after] != [0; 2] || batch.is_some();
        let one = batch.unwrap_or(0);
        let has_batch = match &self.axes {
            Some(axes) => axes.iter().any(|axis| axis == "batch"),
            None => padded.is_batch(values.shape(), site.stage, head_dim),
        };
        if let Some(axes) = &self.axes {
            values = in_order(values, axes, site.stage, one)?;
        } else if is_padded && has_batch {
            values = one_of(values, 0, one)?;
        }
        // All sequences of a batch may share these stages.
        let shared = site.stage.is_rope_table() || site.stage == Stage::Mask;
        if one > 0 && !has_batch && !shared {
            return Err(format!("it has no batch axis, but capture.toml has batch = {one}"));
        }
        for (at, axis) in site.stage.axes().iter().enumerate().filter(|_| is_padded) {
            let length = values.shape().get(at).copied().unwrap_or(0);
            let all = before.saturating_add(tokens).saturating_add(after);
            // A later pass reads padded keys and need not be padded itself. For logits, the last row is enough.
            let is_bare = site.pass > 0 && length == tokens || site.stage == Stage::Logits && length == 1;
            let is_cut = match axis {
                Axis::Token if length == all => true,
                Axis::Token if is_bare => false,
                Axis::Token => {
                    return Err(format!(
                        "it has {length} rows, but {tokens} tokens with {before} rows of padding before and {after} after them make {all}: \
                         see `padding` and `padding_after` in capture.toml"
                    ));
                }
                Axis::Key => before.saturating_add(after) < length,
                _ => false,
            };
            if is_cut {
                values = values.slice_axis(At(at), Slice::from(before..length - after)).to_owned();
            }
        }
        let (shape, mut flat) =
            (values.shape().to_vec(), values.as_standard_layout().iter().copied().collect::<Vec<_>>());
        if let Some(pairs) = self.pairs {
            let half = head_dim / 2;
            for head in flat.chunks_exact_mut(head_dim) {
                let before = head.to_vec();
                for i in 0..half {
                    let (a, b, [first, second]) = (i, i + half, [2 * i, 2 * i + 1]);
                    match pairs {
                        Pairs::NeighboursToHalves => (head[a], head[b]) = (before[first], before[second]),
                        Pairs::HalvesToNeighbours => (head[first], head[second]) = (before[a], before[b]),
                    }
                }
            }
        }
        let other = |key: &str, name: &str| {
            let file = named(name, site);
            let shown = printable(&file.to_string_lossy()).to_string();
            match npy::read(&path.join(&file), site) {
                Found::Frame(frame) => {
                    Ok((frame.values().numbers().map(|x| x as f32).collect::<Vec<_>>(), shown))
                }
                Found::Missing => Err(format!("`{key}` in capture.toml names {shown}, which is not there")),
                Found::Damaged(why) | Found::TooLarge(why) => Err(format!("{shown}: {why}")),
            }
        };
        if let Some(name) = &self.times {
            let ((row, file), columns) = (other("times", name)?, shape.last().copied().unwrap_or(1));
            if row.len() != columns {
                return Err(format!(
                    "{file} has {} values and not {columns}, one for each column: see `times` in capture.toml",
                    row.len()
                ));
            }
            flat.iter_mut().enumerate().for_each(|(at, value)| *value *= row[at % row.len()]);
        }
        for (key, name, sign) in [("plus", &self.plus, 1.0), ("minus", &self.minus, -1.0)] {
            let Some(name) = name else { continue };
            let (more, file) = other(key, name)?;
            if more.len() != flat.len() {
                return Err(format!(
                    "{file} has {} values and not {}: see `{key}` in capture.toml",
                    more.len(),
                    flat.len()
                ));
            }
            flat.iter_mut().zip(more).for_each(|(value, more)| *value += sign * more);
        }
        ArrayD::from_shape_vec(IxDyn(&shape), flat).map_err(|error| error.to_string())
    }
}

/// The index of the stage's axis with this name.
fn axis_of(stage: Stage, name: &str) -> Option<usize> {
    stage.axes().iter().position(|axis| axis.name() == name)
}

/// One sequence of a batch.
fn one_of(values: ArrayD<f32>, axis: usize, one: usize) -> Result<ArrayD<f32>, String> {
    match values.len_of(At(axis)) {
        0 => Err("its batch is empty".into()),
        count if one >= count => {
            Err(format!("its batch has {count} sequences, numbered from 0: there is no number {one}"))
        }
        _ => Ok(values.index_axis_move(At(axis), one)),
    }
}

/// The values with the axes in the stage's order, without the batch.
fn in_order(
    mut values: ArrayD<f32>,
    axes: &[String],
    stage: Stage,
    one: usize,
) -> Result<ArrayD<f32>, String> {
    if axes.len() != values.ndim() {
        return Err(format!(
            "it has {} axes and not {}: see `axes` in capture.toml",
            values.ndim(),
            axes.len()
        ));
    }
    let mut axes = axes.to_vec();
    while let Some(batch) = axes.iter().position(|axis| axis == "batch") {
        values = one_of(values, batch, one)?;
        axes.remove(batch);
    }
    let order: Option<Vec<usize>> =
        stage.axes().iter().map(|axis| axes.iter().position(|name| name == axis.name())).collect();
    match order {
        Some(order) if order.len() == axes.len() => Ok(values.permuted_axes(IxDyn(&order))),
        _ => Err(format!(
            "its axes are {} and not those of {stage}: see `axes` in capture.toml",
            axes.join(", ")
        )),
    }
}
