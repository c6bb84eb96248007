//! Hashes of all rows of all stages. Two runs are compared by their hashes, without keeping both runs in memory.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Check;
use llama_trace_core::trace::stage::Section;
use llama_trace_core::trace::{Address, Axis, PassDims, Probe, Site, Stage, Step, Values};
use llama_trace_engine::model::Model;

/// A hash of each row of each site. Rows with different bits have different hashes, except for one case in 2⁶⁴.
#[derive(Debug, Default)]
pub(super) struct RowHashes(BTreeMap<Site, Vec<u64>>);

/// The probe that computes the hashes.
pub(super) struct RowHasher<F> {
    pub(super) hashes: RowHashes,
    layer_done: F,
}

impl<F: Fn()> RowHasher<F> {
    /// Calls `layer_done` after each layer.
    pub(super) fn new(layer_done: F) -> Self {
        Self { hashes: RowHashes::default(), layer_done }
    }
}

impl<F: Fn()> Probe for RowHasher<F> {
    fn enabled(&self) -> bool {
        true
    }

    fn wants(&self, site: Site) -> bool {
        if site.stage == Stage::FfnResidual && site.sequence == 0 {
            (self.layer_done)();
        }
        true
    }

    fn record(&mut self, site: Site, rows: Range<usize>, values: Values<'_>) {
        self.hashes.add(site, rows, values);
    }
}

/// A hash of `bits` that depends on each of them and on their order.
fn hash(bits: impl Iterator<Item = u64>) -> u64 {
    /// An odd number without a pattern: 2⁶⁴ / φ.
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    bits.fold(MIX, |hash, bits| (hash.rotate_left(23) ^ bits).wrapping_mul(MIX))
}

impl RowHashes {
    /// Adds rows of `site`, in any order.
    pub(super) fn add(&mut self, site: Site, rows: Range<usize>, values: Values<'_>) {
        let width = values.len() / rows.len().max(1);
        let hashes = self.0.entry(site).or_default();
        if hashes.len() < rows.end {
            hashes.resize(rows.end, 0);
        }
        for (i, row) in rows.enumerate() {
            hashes[row] = match values.slice(i * width..(i + 1) * width) {
                Values::F32(values) => hash(values.iter().map(|x| u64::from(x.to_bits()))),
                Values::I64(values) => hash(values.iter().map(|x| x.cast_unsigned())),
                Values::I8(values) => hash(values.iter().map(|x| u64::from(x.cast_unsigned()))),
            };
        }
    }

    pub(super) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// The hashes of one sequence.
    pub(super) fn of(&self, sequence: usize) -> Self {
        let own = self.0.iter().filter(|(site, _)| site.sequence == sequence);
        Self(own.map(|(site, rows)| (*site, rows.clone())).collect())
    }

    /// The hashes of the sites before `end` in the order of the passes.
    pub(super) fn before(&self, end: Site) -> Self {
        let place = |site: Site| (site.pass, order(site));
        let before = self.0.iter().filter(|(site, _)| place(**site) < place(end));
        Self(before.map(|(site, rows)| (*site, rows.clone())).collect())
    }

    /// The first site for which `is_one` is true, in the order of the passes.
    pub(super) fn first(&self, is_one: impl Fn(Site) -> bool) -> Option<Site> {
        self.0.keys().copied().filter(|site| is_one(*site)).min_by_key(|site| (site.pass, order(*site)))
    }

    /// Adds to `check` the number of rows that differ in `other`, and the first address.
    pub(super) fn compare(&self, other: &Self, model: &Model, check: &mut Check) {
        let missing = Vec::new();
        let mut sites: Vec<_> = self.0.iter().collect();
        sites.sort_unstable_by_key(|(site, _)| (site.pass, order(**site)));
        for (site, rows) in sites {
            let others = other.0.get(site).unwrap_or(&missing);
            let differs = |row: &usize| rows.get(*row) != others.get(*row);
            let different: Vec<usize> = (0..rows.len().max(others.len())).filter(differs).collect();
            check.differ(different.len(), || address(model, *site, rows.len(), different[0]));
        }
    }
}

/// The position of a site in its pass.
fn order(site: Site) -> (usize, Stage) {
    let part = match site.stage.info().section {
        Section::Start => 0,
        Section::Layer => 1 + site.layer.unwrap_or(0),
        Section::End | Section::Sampler => usize::MAX,
    };
    (part, site.stage)
}

/// The address of row `row` of the `rows` of `site`: an index on each axis except the last.
fn address(model: &Model, site: Site, rows: usize, row: usize) -> Address {
    let axes = site.stage.axes();
    let sizes = model.sizes();
    // Only the token and key axes vary between passes. Their length is the number of rows divided by the lengths of the
    // other axes.
    let nothing = PassDims { pass: 0, start: 0, tokens: 1, ..PassDims::default() };
    let fixed = |axis: &Axis| !matches!(axis, Axis::Token | Axis::Key);
    let outer = &axes[..axes.len() - 1];
    let known: usize =
        outer.iter().filter(|axis| fixed(axis)).map(|axis| sizes.axis(*axis, nothing)).product();
    let (mut at, mut indices) = (row, Vec::new());
    for axis in outer.iter().rev() {
        let length = if fixed(axis) { sizes.axis(*axis, nothing) } else { rows / known.max(1) };
        indices.push(at % length.max(1));
        at /= length.max(1);
    }
    indices.reverse();
    Address::of(site, Step::Stage(site.stage), &indices)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_print_changes_with_a_bit_and_with_the_order_and_not_with_how_the_rows_came() {
        let site = Site::once(0, Stage::Embedding);
        let of = |parts: &[(Range<usize>, &[f32])]| {
            let mut hashes = RowHashes::default();
            for (rows, values) in parts {
                hashes.add(site, rows.clone(), Values::F32(values));
            }
            hashes.0[&site].clone()
        };
        let whole = of(&[(0..2, &[1.0, 2.0, 0.0, 4.0])]);
        assert_eq!(of(&[(1..2, &[0.0, 4.0]), (0..1, &[1.0, 2.0])]), whole);
        assert_ne!(of(&[(0..2, &[2.0, 1.0, 0.0, 4.0])])[0], whole[0]);
        let minus = of(&[(0..2, &[1.0, 2.0, -0.0, 4.0])]);
        assert_eq!((minus[0] == whole[0], minus[1] == whole[1]), (true, false));
    }
}
