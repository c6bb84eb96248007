//! The distance of a stage from its rule in float64, and its limits.

use std::collections::BTreeMap;

use super::Check;
use llama_trace_core::config::Precision;
use llama_trace_core::explain::{Cell, Exact, Place, Rules};
use llama_trace_core::trace::stage::Rounded;
use llama_trace_core::trace::{Site, Stage};
use llama_trace_engine::backend::{Backend, Operation};

/// The largest relative L2 distance of a stage from float64: ‖ours − exact‖ / ‖exact‖.
const DISTANCE: f64 = 1e-5;

/// The limit for `attn_heads` in bfloat16 on a device that rounds at other points: two roundings of a weight.
pub(super) const FUSED: f64 = 1.0 / 128.0;

/// The largest share of a stage's values that may be rounded to another bfloat16. On a device that truncates its sums,
/// the share is larger: a distance of [`TRUNCATION_TOLERANCE`](llama_trace_engine::backend::TRUNCATION_TOLERANCE) may
/// move more values past the middle between two bfloat16 numbers.
pub(super) fn unequal(truncates_sums: bool) -> f64 {
    if truncates_sums { 0.05 } else { 0.01 }
}

/// The measure and limit of a stage's distance from its rule.
///
/// - float32: the relative L2 distance of each stage of each layer and pass, at most 10⁻⁵.
/// - int8: the same; the int8 values themselves must be equal, a difference counts as 1 or more.
/// - bfloat16: each value is rounded where the rule rounds. It may differ by one unit of its largest term, the distance
///   from that term to the next bfloat16. In each stage at most 1 % of the values may differ, or 5 % on a device that
///   truncates its sums. The distance is relative to these limits: 1 is the maximum. Stages that the pass does not
///   round have the limit 10⁻⁵, as in float32. If a device's attention has its own order of sums, it does not round
///   at the rule's points before `attn_heads`. The stage `attn_heads` then has a relative L2 distance of at most 1/128.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judge {
    /// float32, and int8 with it.
    Distance,
    /// bfloat16.
    Units,
}

impl Judge {
    /// The measure for runs in `precision`.
    pub fn of(precision: Precision) -> Self {
        match precision {
            Precision::F32 | Precision::Q8 { .. } => Self::Distance,
            Precision::Bf16 => Self::Units,
        }
    }

    /// The largest allowed distance.
    pub fn bound(self) -> f64 {
        match self {
            Self::Distance => DISTANCE,
            Self::Units => 1.0,
        }
    }
}

/// The differences of some cells of one stage.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    count: usize,
    unequal: usize,
    /// The sums of the squared differences, and of the squared expected values.
    error: f64,
    norm: f64,
    /// The largest difference and its cell.
    most: (f64, usize),
    /// The largest difference in units of the largest term, and its cell.
    units: (f64, usize),
    /// The first value that cannot be compared, because it is NaN or unexpectedly infinite.
    broken: Option<(f64, usize)>,
    /// The first value that differs.
    first: Option<usize>,
}

/// The distance from `x` to the next bfloat16.
fn unit(x: f64) -> f64 {
    let exponent = x.abs().log2().floor().max(-126.0);
    (exponent - 7.0).exp2()
}

impl Sums {
    /// Adds cell `at` with the value `found`.
    pub(super) fn add(&mut self, at: usize, found: f64, exact: &Exact) {
        let near = |x: f64| (found - x).abs();
        let expected = if near(exact.other) < near(exact.value) { exact.other } else { exact.value };
        self.count += 1;
        if found == expected {
            self.norm += if expected.is_finite() { expected * expected } else { 0.0 };
            return;
        }
        self.unequal += 1;
        earliest(&mut self.first, at);
        let difference = (found - expected).abs();
        if !difference.is_finite() {
            let worse = if found.is_nan() || expected.is_nan() { f64::NAN } else { f64::INFINITY };
            if self.broken.is_none_or(|(_, first)| at < first) {
                self.broken = Some((worse, at));
            }
            return;
        }
        self.error += difference * difference;
        self.norm += expected * expected;
        larger(&mut self.most, (difference, at));
        larger(&mut self.units, (difference / unit(exact.largest.max(expected.abs())), at));
    }

    /// Combines two sums.
    pub(super) fn merge(mut self, other: Self) -> Self {
        self.count += other.count;
        self.unequal += other.unequal;
        self.error += other.error;
        self.norm += other.norm;
        larger(&mut self.most, other.most);
        larger(&mut self.units, other.units);
        if let Some((worse, at)) = other.broken
            && self.broken.is_none_or(|(_, first)| at < first)
        {
            self.broken = Some((worse, at));
        }
        other.first.into_iter().for_each(|at| earliest(&mut self.first, at));
        self
    }

    /// ‖ours − exact‖ / ‖exact‖, and the cell of the largest difference.
    pub(super) fn distance(&self) -> (f64, usize) {
        match self.broken {
            Some(broken) => broken,
            None if self.error == 0.0 => (0.0, self.most.1),
            None => ((self.error / self.norm).sqrt(), self.most.1),
        }
    }

    /// The largest difference in units of the largest term, and its cell.
    pub(super) fn in_units(&self) -> (f64, usize) {
        self.broken.unwrap_or(self.units)
    }

    /// The number of values that differ, and the first of them.
    pub(super) fn different(&self) -> (usize, usize) {
        (self.unequal, self.first.unwrap_or(0))
    }
}

fn larger(most: &mut (f64, usize), other: (f64, usize)) {
    if other.0 > most.0 || (other.0 == most.0 && other.1 < most.1) {
        *most = other;
    }
}

fn earliest(first: &mut Option<usize>, at: usize) {
    *first = Some(first.map_or(at, |first| first.min(at)));
}

/// Combines the stages of a run.
pub(super) struct Verdict {
    judge: Judge,
    check: Check,
    /// Whether attention rounds at the same points as the rule.
    rounds_on_the_way: bool,
    /// The largest fraction of a stage's values that may differ.
    unequal: f64,
    /// For each stage: its number of values, the number that differ, and the first that differs.
    shares: BTreeMap<Stage, (usize, usize, Option<Cell>)>,
}

impl Verdict {
    pub(super) fn new(name: &str, backend: &dyn Backend) -> Self {
        let judge = Judge::of(backend.precision());
        Self {
            judge,
            check: Check::new(name, judge.bound()),
            rounds_on_the_way: backend.bit_exact(Operation::Attention),
            unequal: unequal(backend.truncates_sums()),
            shares: BTreeMap::new(),
        }
    }

    /// Adds a stage of one layer and pass.
    pub(super) fn see(&mut self, rules: &Rules, site: Site, sums: &Sums) {
        let address = |at| move || rules.address(Cell { place: Place::Stage(site), at });
        let rounded = rules.card().config.rounded(site.stage) != Rounded::Never;
        let (distance, at) = sums.distance();
        match self.judge {
            Judge::Distance if site.stage.is_int8() => self.check.see(sums.most.0.max(distance), address(at)),
            Judge::Distance => self.check.see(distance, address(at)),
            Judge::Units if rounded => {
                if site.stage == Stage::AttnHeads && !self.rounds_on_the_way {
                    return self.check.see(distance / FUSED, address(at));
                }
                let (units, at) = sums.in_units();
                self.check.see(units, address(at));
                let (count, unequal, first) = self.shares.entry(site.stage).or_default();
                (*count, *unequal) = (*count + sums.count, *unequal + sums.unequal);
                *first = first.or(sums.first.map(|at| Cell { place: Place::Stage(site), at }));
            }
            Judge::Units => self.check.see(distance / DISTANCE, address(at)),
        }
    }

    /// The line of the report.
    pub(super) fn finish(mut self, rules: &Rules) -> Check {
        for (count, unequal, first) in self.shares.into_values() {
            if let Some(cell) = first {
                let share = unequal as f64 / count as f64;
                self.check.see(share / self.unequal, || rules.address(cell));
            }
        }
        self.check
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exact(value: f64, largest: f64) -> Exact {
        Exact { value, other: value, largest }
    }

    #[test]
    fn what_is_not_a_number_is_further_than_anything_and_the_first_is_named() {
        let mut sums = Sums::default();
        sums.add(9, f64::NAN, &exact(1.0, 1.0));
        sums.add(4, 2.0, &exact(f64::NAN, 1.0));
        sums.add(2, f64::NEG_INFINITY, &exact(f64::NEG_INFINITY, 0.0));
        let (distance, at) = sums.distance();
        assert!(distance.is_nan() && at == 4);
        let mut check = Check::new("float64", 1e-5);
        let address = |text: &str| llama_trace_core::trace::Address::parse(text).unwrap_or_default();
        check.see(1e-7, || address("L0/xq"));
        check.see(distance, || address("L1/xq"));
        check.see(f64::INFINITY, || address("L2/xq"));
        assert!(!check.ok && check.worst.is_nan());
        assert_eq!(check.at, Some(address("L1/xq")), "the first difference above the bound");
    }

    #[test]
    fn a_unit_is_the_step_between_two_bfloat16_numbers() {
        assert_eq!((unit(1.0), unit(1.99), unit(2.0)), (1.0 / 128.0, 1.0 / 128.0, 1.0 / 64.0));
        let mut sums = Sums::default();
        sums.add(3, 1.0, &exact(1.0 + 1.0 / 64.0, 1.5));
        sums.add(5, 1.0, &exact(1.0 + 1.0 / 64.0, 100.0));
        assert_eq!(sums.in_units(), (2.0, 3));
    }
}
