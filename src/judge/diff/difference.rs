//! The distance between two stages.

use std::ops::Range;
use std::sync::Arc;

use ndarray::{ArrayD, IxDyn};

use super::traced::Found;
use llama_trace_core::trace::{Axis, Frame, FrameData, Site, Sizes, Stage, Stats, Values, wide};

/// Masked scores below this value count as −∞. Other runtimes add the lowest number of a float type instead of −∞. The
/// one nearest to 0 is float16's, −65504.
const HIDDEN: f64 = -6e4;

/// A stage of both runs, in one shape.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    pub(super) site: Site,
    pub(super) a: Arc<Frame>,
    pub(super) b: Arc<Frame>,
    /// The index of the first value that both runs have; above 0 if one run has only the last row.
    pub(super) first: usize,
}

/// The differences of some cells from their expected values.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Apart {
    error: f64,
    norm: f64,
    /// The largest difference and its cell.
    most: Option<(f64, usize)>,
    /// The first value that cannot be compared: NaN or infinite on one side.
    broken: Option<(f64, usize)>,
    /// Whether some values are NaN in both runs.
    no_numbers: bool,
}

impl Apart {
    /// Adds cell `at` with the value `found`.
    pub(super) fn add(&mut self, at: usize, found: f64, expected: f64) {
        let no_numbers = found.is_nan() && expected.is_nan();
        self.no_numbers |= no_numbers;
        if found == expected || no_numbers {
            self.norm += if expected.is_finite() { expected * expected } else { 0.0 };
            return;
        }
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
    }

    /// Adds cells from `at` on, if all of them are finite. Otherwise adds nothing and returns false. The sums are
    /// vectorised.
    pub(super) fn add_finite(&mut self, at: usize, expected: &[f32], found: &[f32]) -> bool {
        let wide::Distance { error, norm, most } = wide::distance(expected, found);
        // The sum is finite exactly if all float32 values are.
        if !(error + norm).is_finite() {
            return false;
        }
        self.error += error;
        self.norm += norm;
        let apart = |i: &usize| (f64::from(found[*i]) - f64::from(expected[*i])).abs() == most;
        if most > 0.0
            && let Some(i) = (wide::near(expected, found, most)..expected.len()).find(apart)
        {
            larger(&mut self.most, (most, at + i));
        }
        true
    }

    /// Adds the result of later cells.
    pub(super) fn merge(&mut self, later: &Self) {
        self.error += later.error;
        self.norm += later.norm;
        later.most.into_iter().for_each(|most| larger(&mut self.most, most));
        self.broken = self.broken.or(later.broken);
        self.no_numbers |= later.no_numbers;
    }

    /// ‖found − expected‖ / ‖expected‖. NaN or ∞ if a difference is not finite.
    pub(super) fn error(&self) -> f64 {
        match self.broken {
            Some((worse, _)) => worse,
            None if self.error == 0.0 => 0.0,
            None => (self.error / self.norm).sqrt(),
        }
    }

    /// Returns whether these cells prove that ‖found − expected‖ / ‖expected‖ over all cells exceeds `most`. `norm` is
    /// ‖found‖² over all cells. Reason: otherwise ‖expected‖ ≤ ‖found‖ + `most` · ‖expected‖, which bounds the error of
    /// these cells.
    pub(super) fn is_above(&self, most: f64, norm: f64) -> bool {
        self.broken.is_some() || most < 1.0 && self.error > norm * (most / (1.0 - most)).powi(2)
    }

    /// A note if values are NaN in both runs. They count as equal, but NaN is seldom intended.
    pub(super) fn note(&self, site: Site) -> Option<String> {
        self.no_numbers.then(|| format!("both have NaN at the same places of {site}"))
    }

    /// The cell of the largest difference, if there is one.
    pub(super) fn cell(&self) -> Option<usize> {
        self.broken.or(self.most).map(|(_, at)| at)
    }
}

fn larger(most: &mut Option<(f64, usize)>, other: (f64, usize)) {
    if most.is_none_or(|most| other.0 > most.0 || (other.0 == most.0 && other.1 < most.1)) {
        *most = Some(other);
    }
}

/// Returns whether a value hides a key.
pub(super) fn is_hidden(x: f32) -> bool {
    f64::from(x) < HIDDEN
}

/// A value in the form in which it is compared: a hidden key is −∞, however it is stored.
pub(super) fn value(stage: Stage, x: f64) -> f64 {
    match stage {
        Stage::Mask | Stage::MaskedScores if x < HIDDEN => f64::NEG_INFINITY,
        _ => x,
    }
}

impl Pair {
    /// The stage of both runs. The error describes why they cannot be compared.
    pub(super) fn new(site: Site, shape: &[usize], a: &Frame, b: &Frame) -> Result<Self, String> {
        let (a, skipped_a) = fitted(site, shape, a).map_err(|what| format!("A: {what}"))?;
        let (b, skipped_b) = fitted(site, shape, b).map_err(|what| format!("B: {what}"))?;
        Ok(Self { site, a: Arc::new(a), b: Arc::new(b), first: skipped_a.max(skipped_b) })
    }

    /// A's value and B's at a cell.
    pub(super) fn at(&self, at: usize) -> [f64; 2] {
        [number(&self.a, at), number(&self.b, at)]
    }

    /// The sine of the angle between A's stage and B's, over the values that are finite in both. 1 if one is 0, or the
    /// angle is larger than 90°.
    pub(super) fn sine(&self) -> f64 {
        let (a, b) = (self.a.values().numbers(), self.b.values().numbers());
        let finite = a.zip(b).skip(self.first).filter(|(a, b)| (a * b).is_finite());
        let seen = |x: f64| value(self.site.stage, x).is_finite();
        let finite = finite.filter(|&(a, b)| seen(a) && seen(b));
        let [mut ab, mut aa, mut bb] = [0.0; 3];
        finite.for_each(|(a, b)| (ab, aa, bb) = (ab + a * b, aa + a * a, bb + b * b));
        let cosine = ab / (aa * bb).sqrt();
        if cosine >= 0.0 { (1.0 - cosine * cosine).max(0.0).sqrt() } else { 1.0 }
    }

    /// The difference of B from A.
    pub(super) fn apart(&self) -> Apart {
        self.apart_in(self.first..self.a.values().len())
    }

    /// The difference over some values, with vectorised sums if all are finite. It is used in the search for a map
    /// among many files.
    pub(super) fn apart_soon(&self, range: Range<usize>) -> Apart {
        let (a, b) = (floats(&self.a), floats(&self.b));
        let hides = matches!(self.site.stage, Stage::Mask | Stage::MaskedScores);
        let mut apart = Apart::default();
        match (a.get(range.clone()), b.get(range.clone())) {
            (Some(a), Some(b)) if !hides && apart.add_finite(range.start, a, b) => apart,
            _ => self.apart_in(range),
        }
    }

    /// The difference over some values.
    pub(super) fn apart_in(&self, range: Range<usize>) -> Apart {
        let mut apart = Apart::default();
        let (a, b) = (self.a.values().numbers(), self.b.values().numbers());
        for (at, (a, b)) in a.zip(b).enumerate().take(range.end).skip(range.start) {
            apart.add(at, value(self.site.stage, b), value(self.site.stage, a));
        }
        apart
    }
}

/// Value `at` of a frame.
pub(super) fn number(frame: &Frame, at: usize) -> f64 {
    match frame.values() {
        Values::F32(values) => f64::from(values[at]),
        Values::I64(values) => values[at] as f64,
        Values::I8(values) => f64::from(values[at]),
    }
}

/// The float32 values of a frame.
pub(super) fn floats(frame: &Frame) -> &[f32] {
    match frame.values() {
        Values::F32(values) => values,
        _ => &[],
    }
}

/// A frame of float32 values in the stage's own shape.
pub(super) fn frame(site: Site, shape: &[usize], values: Vec<f32>) -> Option<Frame> {
    let data = ArrayD::from_shape_vec(IxDyn(shape), values).ok()?;
    Some(Frame { site, axes: site.stage.axes(), data: FrameData::F32(data) })
}

/// `frame` in the stage's own shape and number type, and the number of leading values that are filled in: runtimes may
/// compute only the last row of logits.
///
/// # Errors
/// A description of why it does not fit.
pub fn fitted(site: Site, shape: &[usize], frame: &Frame) -> Result<(Frame, usize), String> {
    let (found, count): (_, usize) = (frame.shape(), shape.iter().product());
    let held: usize = found.iter().product();
    if held == 0 {
        return Err("it is empty".into());
    }
    let width = shape.last().copied().unwrap_or(1);
    let last = site.stage == Stage::Logits && held == width && refines(found, &[width]);
    if !last && !refines(found, shape) {
        return Err(format!("it has the shape {} and not {}", listed(found), listed(shape)));
    }
    let first = count - held;
    let numbers = frame.values().numbers();
    let (axes, shape) = (site.stage.axes(), IxDyn(shape));
    let wrong = || "its values do not fit the shape".to_owned();
    let data = if site.stage.is_ids() {
        ArrayD::from_shape_vec(shape, numbers.map(|x| x as i64).collect()).map(FrameData::I64)
    } else if site.stage.is_int8() {
        ArrayD::from_shape_vec(shape, numbers.map(|x| x as i8).collect()).map(FrameData::I8)
    } else {
        let values = std::iter::repeat_n(0.0, first).chain(numbers.map(|x| x as f32)).collect();
        ArrayD::from_shape_vec(shape, values).map(FrameData::F32)
    };
    Ok((Frame { site, axes, data: data.map_err(|_| wrong())? }, first))
}

/// Returns whether one shape becomes the other by merging or splitting neighbouring axes: concatenated heads, an axis
/// of length 1.
fn refines(a: &[usize], b: &[usize]) -> bool {
    let ends = |shape: &[usize]| {
        let mut count = 1_usize;
        let ends: Vec<usize> = shape
            .iter()
            .rev()
            .filter(|&&length| length != 1)
            .map(|length| {
                count = count.saturating_mul(*length);
                count
            })
            .collect();
        ends
    };
    let (a, b) = (ends(a), ends(b));
    let within = |few: &[usize], many: &[usize]| few.iter().all(|end| many.contains(end));
    a.last() == b.last() && (within(&a, &b) || within(&b, &a))
}

/// The key of a map that may read values of the shape `found` as a stage of `shape`: `axes` for another order of axes,
/// `columns` for a part of wider rows. The part has the same columns in each pass, so it cannot be a range of keys.
pub(super) fn key(stage: Stage, shape: &[usize], found: &[usize]) -> Option<&'static str> {
    let sorted = |shape: &[usize]| {
        let mut lengths: Vec<_> = shape.iter().copied().filter(|&length| length != 1).collect();
        lengths.sort_unstable();
        lengths
    };
    if sorted(shape) == sorted(found) {
        return Some("axes");
    }
    let (axes, rows, width) = (stage.axes(), *shape.first()?, *found.last()?);
    let (own, held): (usize, usize) = (shape.iter().product(), found.iter().product());
    let is_wider = own < held && held == rows * width;
    (is_wider && axes.first() == Some(&Axis::Token) && axes.last() != Some(&Axis::Key)).then_some("columns")
}

/// A shape as text.
pub(super) fn listed(shape: &[usize]) -> String {
    let lengths: Vec<_> = shape.iter().map(ToString::to_string).collect();
    format!("({})", lengths.join(", "))
}

/// A description of unusual values of B in a stage that differs.
pub(super) fn oddities(pair: &Pair) -> Option<String> {
    odd([pair.a.stats(), pair.b.stats()], pair.b.values().len())
}

/// A description of unusual values among `count` values of B. Non-finite values are reported for both A and B.
pub(super) fn odd([a, b]: [Stats; 2], count: usize) -> Option<String> {
    let strange = |stats: &Stats| stats.nan + stats.pos_inf > 0;
    let hides_less = a.neg_inf > 0 && b.neg_inf == 0 && b.min > HIDDEN;
    let told = |stats: &Stats, of: &str| -> Vec<String> {
        let counts = [(stats.nan, "NaN"), (stats.pos_inf, "+inf"), (stats.neg_inf, "-inf")];
        let there = counts.into_iter().filter(|(count, _)| *count > 0);
        there.map(|(some, what)| format!("{some}{of} are {what}")).collect()
    };
    if strange(&b) || strange(&a) || b.neg_inf > a.neg_inf || hides_less {
        let (ours, theirs) = (told(&a, " of A's values"), told(&b, &format!(" of {count} values")));
        let ours = if ours.is_empty() { "A's values are all finite".into() } else { ours.join(", ") };
        let theirs = match theirs.join(", ") {
            none if none.is_empty() => format!("all {count} values are finite, the smallest is {}", b.min),
            _ if b.nan == count => "every value is NaN".into(),
            some => some,
        };
        return Some(format!("{theirs}; {ours}"));
    }
    match b {
        // Minimum and maximum are over the finite values only.
        _ if b.neg_inf > 0 => None,
        _ if b.min == 0.0 && b.max == 0.0 => Some("every value is 0".into()),
        _ if b.min == b.max && count > 1 => Some(format!("every value is {}", b.min)),
        _ => None,
    }
}

impl Found {
    /// The frame, if there is one. The error has the reason, and whether the frame is damaged.
    pub(super) fn frame(self) -> Result<Option<Arc<Frame>>, (String, bool)> {
        match self {
            Self::Frame(frame) => Ok(Some(frame)),
            Self::Missing => Ok(None),
            Self::Damaged(why) => Err((why, true)),
            Self::TooLarge(why) => Err((why, false)),
        }
    }
}

/// The shape of a site.
pub(super) fn shape(site: Site, sizes: &Sizes, dims: llama_trace_core::trace::PassDims) -> Vec<usize> {
    sizes.shape(site.stage.axes(), dims)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(site: Site, shape: &[usize], values: &[f32]) -> Frame {
        frame(site, shape, values.to_vec()).unwrap()
    }

    #[test]
    fn heads_may_lie_side_by_side_and_stand_in_no_other_order() {
        assert!(
            refines(&[3, 8], &[3, 2, 4]) && refines(&[1, 3, 8], &[3, 2, 4]) && refines(&[24], &[3, 2, 4])
        );
        assert!(!refines(&[2, 3, 4], &[3, 2, 4]) && !refines(&[3, 2, 5], &[3, 2, 4]));
        assert!(!refines(&[4, 6], &[3, 2, 4]));
    }

    #[test]
    fn of_logits_the_last_row_alone_is_compared_where_one_run_has_no_other() {
        let site = Site::once(0, Stage::Logits);
        let (a, b) = (of(site, &[2, 2], &[9.0, 9.0, 3.0, 4.0]), of(site, &[1, 2], &[3.0, 4.5]));
        let pair = Pair::new(site, &[2, 2], &a, &b).unwrap();
        let apart = pair.apart();
        assert_eq!((pair.first, apart.error(), apart.cell()), (2, 0.1, Some(3)));
        let site = Site::once(0, Stage::FinalNorm);
        assert!(
            Pair::new(site, &[2, 2], &of(site, &[2, 2], &[0.0; 4]), &of(site, &[1, 2], &[0.0; 2])).is_err()
        );
    }

    #[test]
    fn what_is_no_number_is_further_than_anything_and_a_hidden_key_is_hidden_however_it_is_written() {
        let site = Site::layer(0, 0, Stage::MaskedScores);
        let (hidden, lowest) = (f32::NEG_INFINITY, f32::MIN);
        let a = of(site, &[1, 1, 3], &[1.0, 2.0, hidden]);
        let pair = |b: &[f32]| Pair::new(site, &[1, 1, 3], &a, &of(site, &[1, 1, 3], b)).unwrap().apart();
        assert_eq!(pair(&[1.0, 2.0, lowest]).error(), 0.0);
        let seen = pair(&[1.0, 2.5, 3.0]);
        assert_eq!((seen.error(), seen.cell()), (f64::INFINITY, Some(2)));
        let nan = pair(&[1.0, f32::NAN, hidden]);
        assert!(nan.error().is_nan() && nan.cell() == Some(1) && nan.note(site).is_none());
        // The text says which side has them.
        let told = |b: &[f32]| odd([a.stats(), of(site, &[1, 1, 3], b).stats()], 3);
        assert_eq!(
            told(&[1.0, 2.0, f32::INFINITY]).unwrap(),
            "1 of 3 values are +inf; 1 of A's values are -inf"
        );
        assert_eq!(told(&[1.0, hidden, hidden]).unwrap(), "2 of 3 values are -inf; 1 of A's values are -inf");
        assert_eq!(
            told(&[1.0, 2.0, 3.0]).unwrap(),
            "all 3 values are finite, the smallest is 1; 1 of A's values are -inf"
        );
        assert_eq!((told(&[1.0, 2.0, lowest]), told(&[1.0, 2.5, hidden])), (None, None));
        // If some keys are hidden and the other values are equal, not all values are equal.
        assert_eq!((told(&[0.0, 0.0, hidden]), told(&[3.0, 3.0, hidden])), (None, None));
        assert_eq!(
            told(&[0.0; 3]).unwrap(),
            "all 3 values are finite, the smallest is 0; 1 of A's values are -inf"
        );
        // The number that another runtime adds is shown.
        let told_of = told(&[1.0, 2.0, -10000.0]).unwrap();
        assert_eq!(told_of, "all 3 values are finite, the smallest is -10000; 1 of A's values are -inf");
        // NaN in both counts as equal, with a note.
        let own = of(site, &[1, 1, 3], &[1.0, f32::NAN, hidden]);
        let both = Pair::new(site, &[1, 1, 3], &own, &own).unwrap().apart();
        assert_eq!((both.error(), both.cell()), (0.0, None));
        assert!(both.note(site).unwrap().contains("p0/L0/masked_scores"));
    }
}
