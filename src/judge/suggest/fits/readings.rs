//! The layouts in which a file of some shape may hold a stage.

use super::{Fits, OFFSETS};
use crate::capture::{Layout, Pairs};
use crate::suggest::names::Pattern;
use llama_trace_core::trace::{Axis, Site, Sizes, Stage};

impl Fits<'_> {
    /// The layouts of [`Self::readings`], and for a norm also the layouts with a file that may be its weight.
    pub(super) fn all_readings(&self, stage: Stage, site: Site, shape: &[usize]) -> Vec<Layout> {
        let mut readings = self.readings(stage, site, shape);
        if matches!(stage, Stage::AttnNorm | Stage::FfnNorm | Stage::FinalNorm) {
            let is_weight = |pattern: &&Pattern| {
                let is_row =
                    self.names.shape(&pattern.name, site).is_some_and(|shape| *shape == [self.sizes.dim]);
                is_row && !pattern.has_pass && pattern.has_layer == stage.in_layer()
            };
            let weights: Vec<_> =
                self.names.patterns.iter().filter(is_weight).map(|pattern| &pattern.name).collect();
            let plain: Vec<Layout> =
                readings.iter().filter(|layout| layout.axes.is_none()).cloned().collect();
            for layout in plain {
                let times = |times: &&String| Layout { times: Some((*times).clone()), ..layout.clone() };
                readings.extend(weights.iter().map(times));
            }
        }
        readings
    }

    /// The layouts in which a file of `shape` may hold a stage.
    fn readings(&self, stage: Stage, site: Site, shape: &[usize]) -> Vec<Layout> {
        let Some(dims) = self.dims(site) else { return Vec::new() };
        let padded = self.padded_in(dims);
        let more = padded.around[0] + padded.around[1];
        let own: Vec<usize> = self.sizes.shape(stage.axes(), dims);
        // The stage's shape with the file's padding.
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
            readings.push(Layout::default());
        }
        readings.extend(orders(stage, &wide, shape));
        // A part of a fused tensor. Offsets are multiples of the widths' greatest common divisor.
        let rows = wide.first().copied().unwrap_or(0);
        let (width, whole) = (count / rows.max(1), shape.last().copied().unwrap_or(0));
        if stage.axes().first() == Some(&Axis::Token)
            && whole > width
            && width > 0
            && held == rows * whole * batch
        {
            let step = gcd(width, whole);
            let offsets = (0..=whole - width).step_by(step).take(OFFSETS);
            readings.extend(
                offsets.map(|from| Layout { columns: Some([from, from + width]), ..Layout::default() }),
            );
        }
        if matches!(
            stage.first_of_name(),
            Stage::Xq | Stage::Xk | Stage::XqNorm | Stage::XkNorm | Stage::XqRope | Stage::XkRope
        ) {
            let plain = readings.clone();
            for pairs in [Pairs::NeighboursToHalves, Pairs::HalvesToNeighbours] {
                readings.extend(plain.iter().map(|layout| Layout { pairs: Some(pairs), ..layout.clone() }));
            }
        }
        readings
    }

    /// Returns whether a reading is likely without the evidence of its values: a whole file, or a part of a fused QKV
    /// or gate-up tensor in the usual order. The file's rows have `whole` values.
    pub(super) fn may_be(&self, stage: Stage, layout: &Layout, whole: usize) -> bool {
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
        layout.columns.is_none_or(|columns| (columns, whole) == (parts, all))
            && layout.times.is_none()
            && layout.pairs.is_none()
    }
}

/// The layouts with the axes in another order than the stage's, in which a file of `shape` may hold a stage of shape
/// `own`.
fn orders(stage: Stage, own: &[usize], shape: &[usize]) -> Vec<Layout> {
    let axes = stage.axes();
    // If the file has one axis more, that is the batch: an axis of length 1, or else the first axis.
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
        Layout { axes: Some(names), ..Layout::default() }
    };
    orders.iter().filter(fits).map(named).collect()
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}
