//! Finds files that are sums of other files. The residual stream is its earlier value plus a sublayer's output, even
//! after a mistake.

use std::collections::{BTreeMap, BTreeSet};

use super::fits::{Fits, Way};
use llama_trace_core::trace::{Site, Stage};

/// The maximum number of files of a layer that are tried, and of values of each file.
const FILES: usize = 24;
const VALUES: usize = 512;

/// The largest error of a sum, relative to the sum: a 16-bit run rounds.
const NEAR: f64 = 0.02;

/// The largest error of a sum, relative to its smallest part: a tiny part would fit every sum.
const OF_PART: f64 = 0.1;

/// The stages that files may hold, by the names of their patterns.
pub(super) type Sums<'f> = BTreeMap<&'f str, BTreeSet<Stage>>;

/// A pattern, with some values of its file in each layer that is tried.
struct Family<'f> {
    name: &'f str,
    layers: Vec<Option<Vec<f64>>>,
}

/// Finds sums among the files of the residual stream's shape and layout. A family that starts with the embedding is
/// used only with the numbering in which its files are the layers' outputs.
pub(super) fn find<'f>(fits: &Fits<'f>, ways: &[Way<'f>]) -> Sums<'f> {
    let streams: BTreeSet<String> =
        ways.iter().filter(|way| way.is_stream).map(|way| way.pattern.zero_based()).collect();
    let mut names: Vec<&'f str> = Vec::new();
    let is_wide = |way: &&Way<'f>| way.stage == Stage::FfnResidual && way.layout.is_plain();
    for way in ways.iter().filter(is_wide) {
        if !names.contains(&&*way.pattern.name) && !streams.contains(&way.pattern.name) {
            names.push(&way.pattern.name);
        }
    }
    names.truncate(FILES);
    let family = |name: &'f str| {
        let values = |layer| {
            let values = fits.values(name, Site::layer(fits.first_pass(), layer, Stage::FfnResidual))?;
            let step = values.len().div_ceil(VALUES).max(1);
            Some(values.iter().step_by(step).copied().map(f64::from).collect())
        };
        Family { name, layers: (0..fits.sizes.layers.min(3)).map(values).collect() }
    };
    let all: Vec<Family<'f>> = names.into_iter().map(family).collect();
    let mut found = Sums::new();
    let mut unclear = BTreeSet::new();
    let mut may_be = |of: &Family<'f>, stages: &[Stage]| {
        let stages: BTreeSet<Stage> = stages.iter().copied().collect();
        let own = found.entry(of.name).or_insert_with(|| stages.clone());
        let both: BTreeSet<Stage> = own.intersection(&stages).copied().collect();
        if both.is_empty() {
            unclear.insert(of.name);
        } else {
            *own = both;
        }
    };
    use Stage::{AttnOutput, AttnResidual, FfnDown};
    for (i, one) in all.iter().enumerate() {
        for (j, other) in all.iter().enumerate() {
            for sum in all.iter().filter(|sum| sum.name != one.name && sum.name != other.name) {
                if i < j && holds(&[(sum, 0)], &[(one, 0), (other, 0)]) {
                    may_be(sum, &[Stage::FfnResidual]);
                    [one, other].into_iter().for_each(|part| may_be(part, &[AttnResidual, FfnDown]));
                }
                if i < j && holds(&[(sum, 0)], &[(sum, 1), (one, 0), (other, 0)]) {
                    may_be(sum, &[Stage::FfnResidual]);
                    [one, other].into_iter().for_each(|part| may_be(part, &[AttnOutput, FfnDown]));
                }
                if i != j && holds(&[(sum, 0)], &[(one, 1), (other, 0)]) {
                    may_be(sum, &[AttnResidual]);
                    may_be(one, &[Stage::FfnResidual]);
                    may_be(other, &[AttnOutput]);
                }
            }
        }
    }
    found.retain(|name, _| !unclear.contains(name));
    found
}

/// Returns whether a file is the sum of the parts in every layer for which all of them have values. The number beside a
/// file says how many layers earlier its values are taken.
fn holds(sum: &[(&Family<'_>, usize); 1], parts: &[(&Family<'_>, usize)]) -> bool {
    let of = |&(family, before): &(&'_ Family<'_>, usize), layer: usize| {
        family.layers.get(layer.checked_sub(before)?)?.clone()
    };
    let norm = |values: &[f64]| values.iter().map(|x| x * x).sum::<f64>().sqrt();
    let mut seen = 0;
    for layer in 0..sum[0].0.layers.len() {
        let whole = of(&sum[0], layer);
        let parts: Option<Vec<Vec<f64>>> = parts.iter().map(|part| of(part, layer)).collect();
        let (Some(whole), Some(parts)) = (whole, parts) else { continue };
        if parts.iter().any(|part| part.len() != whole.len()) {
            return false;
        }
        let left: Vec<f64> = whole
            .iter()
            .enumerate()
            .map(|(at, x)| x - parts.iter().map(|part| part[at]).sum::<f64>())
            .collect();
        let least = parts.iter().map(|part| norm(part)).fold(f64::INFINITY, f64::min);
        // A remainder that is NaN also fails this test.
        if !norm(&left).le(&(NEAR * norm(&whole)).min(OF_PART * least)) {
            return false;
        }
        seen += 1;
    }
    seen > 0
}
