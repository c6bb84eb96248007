//! Evaluates a rule in float64.

use half::bf16;

use super::rule::{Cell, Fold, Line, Place, Rule};
use crate::config::CacheDtype;
use crate::ops;
use crate::ops::quantize::Quantized;
use crate::ops::typical::Typical;
use crate::trace::Sampling;
use crate::trace::stage::Rounded;

/// The numbers of a [`Place`].
#[derive(Clone, Copy, Debug)]
pub enum Numbers<'a> {
    /// float32.
    F32(&'a [f32]),
    /// int8 values of a stage.
    I8(&'a [i8]),
    /// Ids.
    I64(&'a [i64]),
    /// int8 rows of a matrix with their scales, row after row.
    Int8(Quantized<'a>),
}

/// Operands in memory.
#[derive(Clone, Debug, Default)]
pub struct Held<'a>(Vec<(Place, usize, Numbers<'a>)>);

/// The result of a rule in exact arithmetic, rounded where the rule rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exact {
    /// The number.
    pub value: f64,
    /// The result that float32 arithmetic may give instead, if a value is too near the middle between two bfloat16
    /// numbers, or if a random number is too near the end of an interval. Otherwise equal to `value`.
    pub other: f64,
    /// The largest magnitude among the terms, if the rule is a sum; otherwise the magnitude of the number.
    pub largest: f64,
}

/// The relative distance from the middle between two bfloat16 numbers within which float32 may round to either: a few
/// units of float32.
const TIE: f64 = 1e-6;

/// Number of partial sums.
const LANES: usize = 8;

/// Evaluates the rules of one site over operands that do not change. It caches results that all cells of a row share,
/// such as the maximum and the sum of a softmax.
#[derive(Clone, Debug, Default)]
pub struct Folder {
    /// The line that was reduced last, and its results.
    last: Option<(Line, [f64; 4])>,
}

impl<'a> Held<'a> {
    /// Adds the numbers of `place` from index `first` on.
    pub fn add(&mut self, place: Place, first: usize, numbers: Numbers<'a>) {
        self.0.push((place, first, numbers));
    }

    /// The numbers of `place`, and the index of the first number.
    fn of(&self, place: Place) -> (usize, Numbers<'a>) {
        let found = self.0.iter().find(|(held, ..)| *held == place);
        let Some((_, first, numbers)) = found else { unreachable!("{place} is not available") };
        (*first, *numbers)
    }

    /// One number.
    pub fn number(&self, cell: Cell) -> f64 {
        let (first, numbers) = self.of(cell.place);
        let at = cell.at - first;
        match numbers {
            Numbers::F32(values) => f64::from(values[at]),
            Numbers::I8(values) => f64::from(values[at]),
            Numbers::I64(values) => values[at] as f64,
            Numbers::Int8(rows) => f64::from(rows.values[at]) * f64::from(rows.scale(at)),
        }
    }

    /// All float32 numbers from the first to the last cell of a line, also those that its step skips. Empty for other
    /// number types.
    fn floats(&self, line: &Line) -> &'a [f32] {
        let (first, numbers) = self.of(line.place);
        let Numbers::F32(values) = numbers else { return &[] };
        let end = line.count.checked_sub(1).map_or(0, |last| last * line.step + 1);
        &values[line.first - first..][..end]
    }
}

impl Folder {
    /// The result of `rule`, with operands from `held`.
    pub fn fold(&mut self, rule: &Rule, held: &Held<'_>) -> Exact {
        let exact = self.unscaled(rule, held);
        if rule.by == 1.0 {
            return exact;
        }
        let times = |x: f64| near(x * f64::from(rule.by), rule.rounded != Rounded::Never);
        let all = times(exact.value).into_iter().chain(times(exact.other));
        Exact { largest: exact.largest * f64::from(rule.by).abs(), ..one_of(all) }
    }

    /// The result of `rule` before its factor.
    fn unscaled(&mut self, rule: &Rule, held: &Held<'_>) -> Exact {
        let number = |cell: Cell| held.number(cell);
        let round = |x: f64| if rule.rounded == Rounded::Never { x } else { to_bf16(x) };
        let of = |value: f64| Exact { value: round(value), other: round(value), largest: value.abs() };
        let sum = |value: f64, largest: f64| Exact { largest, ..of(value) };
        match rule.fold {
            Fold::Given => of(f64::NAN),
            Fold::Lookup { id, table, width, at } => {
                of(number(Cell { place: table, at: number(id) as usize * width + at }))
            }
            Fold::Angle { position, frequency, sine, factor, .. } => {
                let angle = f64::from(position as f32 * frequency.checked());
                of(if sine { angle.sin() } else { angle.cos() } * f64::from(factor))
            }
            Fold::Hide { seen } => of(if seen { 0.0 } else { f64::NEG_INFINITY }),
            Fold::Norm { x, at, weight, bias, centred, eps } => {
                let [square, mean, ..] = self.once(x, || {
                    let x = held.floats(&x);
                    let count = x.len() as f64;
                    if !centred {
                        return [products(x, x).0 / count, 0.0, 0.0, 0.0];
                    }
                    let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
                    let squares = x.iter().map(|x| (f64::from(*x) - mean).powi(2));
                    [squares.sum::<f64>() / count, mean, 0.0, 0.0]
                });
                let factor = 1.0 / (square + f64::from(eps)).sqrt();
                let (before, weight) = ((number(x.cell(at)) - mean) * factor, weight.map_or(1.0, number));
                if rule.rounded != Rounded::TwiceInNorm {
                    let bias = bias.map_or(0.0, number);
                    return sum(before * weight + bias, (before * weight).abs().max(bias.abs()));
                }
                let [value, less, more] = [1.0, 1.0 - TIE, 1.0 + TIE].map(|by| round(before * by) * weight);
                let other = if less == value { more } else { less };
                Exact { other: round(other), ..of(value) }
            }
            Fold::Product { a, b, bias } => {
                let (a, b) = ((held.floats(&a), a.step), (held.floats(&b), b.step));
                let (total, largest) = match (a, b) {
                    ((a, 1), (b, 1)) => products(a, b),
                    ((a, a_step), (b, b_step)) => {
                        let terms = a.iter().step_by(a_step).zip(b.iter().step_by(b_step));
                        let terms = terms.map(|(a, b)| f64::from(*a) * f64::from(*b));
                        terms.fold((0.0, 0.0), |(sum, most): (f64, f64), term| {
                            (sum + term, most.max(term.abs()))
                        })
                    }
                };
                let bias = bias.map_or(0.0, number);
                sum(total + bias, largest.max(bias.abs()))
            }
            Fold::Int8 { x, scales, group, w, bias } => {
                let (of_x, of_w) = (held.of(x.place), held.of(w.place));
                let ((x_first, Numbers::I8(values)), (w_first, weights)) = (of_x, of_w) else {
                    return of(f64::NAN);
                };
                let values = &values[x.first - x_first..][..x.count];
                let (row, scales) = (w.first - w_first, held.floats(&scales));
                let (total, largest) = match weights {
                    Numbers::Int8(rows) => {
                        let values_of_w = &rows.values[row..row + w.count];
                        let w = Quantized { values: values_of_w, first: rows.first + row, ..rows };
                        int8(values, scales, group, w)
                    }
                    Numbers::F32(rows) => blocks(values, scales, group, &rows[row..row + w.count]),
                    _ => return of(f64::NAN),
                };
                let bias = bias.map_or(0.0, number);
                sum(total + bias, largest.max(bias.abs()))
            }
            Fold::Rotate { pair: [a, b], cos, sin, second } => {
                let (cos, sin) = (number(cos), number(sin));
                let (one, other) = if second { (sin, cos) } else { (cos, -sin) };
                let product = |x: f64| if rule.rounded == Rounded::ProductsAndSum { round(x) } else { x };
                let (one, other) = (product(number(a) * one), product(number(b) * other));
                sum(one + other, one.abs().max(other.abs()))
            }
            Fold::Cached { from, dtype } => of(match (dtype, number(from)) {
                (CacheDtype::F32, x) => x,
                (CacheDtype::F16, x) => half::f16::from_f32(x as f32).to_f64(),
                (CacheDtype::Bf16, x) => bf16::from_f32(x as f32).to_f64(),
            }),
            Fold::Same { from } => of(number(from)),
            Fold::Scale { x, head_dim, scale } => of(match scale {
                Some(by) => number(x) * f64::from(by),
                None => number(x) / (head_dim as f64).sqrt(),
            }),
            Fold::Cap { x, cap } => {
                let (x, cap) = (number(x), f64::from(cap));
                // Each of the three results may be near the middle between two bfloat16 numbers.
                let is_rounded = rule.rounded != Rounded::Never;
                let tanhs = near(x / cap, is_rounded).into_iter().flat_map(|x| near(x.tanh(), is_rounded));
                one_of(tanhs.map(|tanh| round(tanh * cap)))
            }
            Fold::Mask { x, seen } => of(if seen { number(x) } else { f64::NEG_INFINITY }),
            Fold::Softmax { x, at, temperature } => {
                let by = f64::from(temperature);
                let Some(at) = at else { return of(0.0) };
                let [max, total, ..] = self.once(x, || {
                    let x = || held.floats(&x).iter().map(|x| f64::from(*x) / by);
                    let max = x().fold(f64::NEG_INFINITY, f64::max);
                    [max, x().map(|x| (x - max).exp()).sum(), 0.0, 0.0]
                });
                of((number(x.cell(at)) / by - max).exp() / total)
            }
            Fold::Add { a, b, by } => {
                let (a, b) = (number(a), number(b));
                if by == 1.0 {
                    return sum(a + b, a.abs().max(b.abs()));
                }
                let products = near(b * f64::from(by), rule.rounded != Rounded::Never);
                let largest = a.abs().max(products[0].abs());
                Exact { largest, ..one_of(products.into_iter().map(|b| round(a + b))) }
            }
            Fold::Mul { a, b } => of(number(a) * number(b)),
            Fold::Silu { gate } => {
                let gate = number(gate);
                of(gate / (1.0 + (-gate).exp()))
            }
            Fold::Activation { x, activation, numbers } => {
                let number_of = |at: usize| numbers.map_or(0.0, |place| number(Cell { place, at }));
                of(ops::activation::exact(activation, [number_of(0), number_of(1)], number(x), round))
            }
            // A float32 quotient has the same bits whether it is rounded directly or to float64 first. NaN becomes 0,
            // as in Rust's conversion to integers.
            Fold::Steps { x, scale } => {
                let steps = f64::from((number(x) / number(scale)) as f32).round();
                of(if steps.is_nan() { 0.0 } else { steps.clamp(-128.0, 127.0) })
            }
            Fold::Step { x } => {
                let larger =
                    |max: f64, x: &f32| if x.is_nan() { f64::NAN } else { max.max(f64::from(x.abs())) };
                let nan = held.floats(&x).iter().any(|x| x.is_nan());
                of(if nan { f64::NAN } else { held.floats(&x).iter().fold(0.0, larger) / 127.0 })
            }
            Fold::Penalize { x, repeats, sampling } => {
                let (x, by) = (number(x), f64::from(sampling.repetition_penalty));
                of(match repeats {
                    None => x,
                    Some(_) if x < 0.0 => x * by,
                    Some(_) => x / by,
                })
            }
            Fold::Nucleus { probs, at, limits } => {
                let [most, least, last, total] = self.once(probs, || nucleus(held.floats(&probs), &limits));
                let prob = number(probs.cell(at));
                let stays = prob <= most && (prob > least || (prob == least && at as f64 <= last));
                of(if stays { prob / total } else { 0.0 })
            }
            Fold::Largest { x, at } => {
                let [largest, ..] = self.once(x, || [largest(held.floats(&x)) as f64, 0.0, 0.0, 0.0]);
                of(if largest == at as f64 { 1.0 } else { 0.0 })
            }
            Fold::Draw { nucleus, random } => {
                let [value, other] = drawn(held.floats(&nucleus), random.unwrap_or(0.0));
                Exact { other, ..of(value) }
            }
        }
    }

    /// Returns the results of `work` for `line`. They are cached until another line is asked for.
    fn once(&mut self, line: Line, work: impl FnOnce() -> [f64; 4]) -> [f64; 4] {
        match self.last {
            Some((last, numbers)) if last == line => numbers,
            _ => self.last.insert((line, work())).1,
        }
    }
}

/// The bfloat16 numbers to which float32 may round `x`, the most exact one first; `x` itself without rounding.
fn near(x: f64, is_rounded: bool) -> [f64; 3] {
    [1.0, 1.0 - TIE, 1.0 + TIE].map(|by| if is_rounded { to_bf16(x * by) } else { x })
}

/// The first number as a result, with another one of them if they differ.
fn one_of(mut all: impl Iterator<Item = f64>) -> Exact {
    let value = all.next().unwrap_or(f64::NAN);
    let other = all.find(|other| *other != value).unwrap_or(value);
    Exact { value, other, largest: value.abs() }
}

/// Σ a · b, and the magnitude of the largest term.
fn products(a: &[f32], b: &[f32]) -> (f64, f64) {
    let (mut sums, mut most) = ([0.0_f64; LANES], [0.0_f64; LANES]);
    let ((a_lanes, a_rest), (b_lanes, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut add = |lane: usize, a: f32, b: f32| {
        let term = f64::from(a) * f64::from(b);
        sums[lane] += term;
        most[lane] = if term.abs() > most[lane] { term.abs() } else { most[lane] };
    };
    for (a, b) in a_lanes.iter().zip(b_lanes) {
        for lane in 0..LANES {
            add(lane, a[lane], b[lane]);
        }
    }
    for (lane, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        add(lane, *a, *b);
    }
    (sums.iter().sum(), most.into_iter().fold(0.0, f64::max))
}

/// The product of a row of int8 activations with a row of int8 weights, and the largest magnitude among the products of
/// its runs (see [`Fold::Int8`]).
fn int8(x: &[i8], scales: &[f32], group: usize, w: Quantized<'_>) -> (f64, f64) {
    let (mut sum, mut most, mut i) = (0.0, 0.0_f64, 0);
    while i < x.len() {
        let end = ((i / group + 1) * group).min(w.group_end(i)).min(x.len());
        let whole = |(x, w): (&i8, &i8)| i64::from(i32::from(*x) * i32::from(*w));
        let integers: i64 = x[i..end].iter().zip(&w.values[i..end]).map(whole).sum();
        let term = integers as f64 * f64::from(scales[i / group]) * f64::from(w.scale(i));
        (sum, most, i) = (sum + term, most.max(term.abs()), end);
    }
    (sum, most)
}

/// The product of a row of int8 activations with the values of a row of blocks, and the largest magnitude among the
/// products of the groups.
fn blocks(x: &[i8], scales: &[f32], group: usize, w: &[f32]) -> (f64, f64) {
    let groups = x.chunks(group).zip(w.chunks(group)).zip(scales);
    let terms = groups.map(|((x, w), scale)| {
        let sum: f64 = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
        sum * f64::from(*scale)
    });
    terms.fold((0.0, 0.0), |(sum, most): (f64, f64), term| (sum + term, most.max(term.abs())))
}

/// The cuts of the filters: the probabilities of the most likely and of the least likely id that is kept, the latter
/// id, and the sum of the kept probabilities. Among equal probabilities the first ids are kept. All filters keep a range
/// of probabilities.
fn nucleus(probs: &[f32], limits: &Sampling) -> [f64; 4] {
    let (kept, total) = kept(probs, limits);
    let prob = |id: usize| f64::from(probs[id]);
    match (kept.first(), kept.last()) {
        (Some(&first), Some(&last)) => [prob(first), prob(last), last as f64, total],
        _ => [0.0, f64::INFINITY, 0.0, total],
    }
}

/// The ids with a probability above 0, most likely first. Equal ones are in the order of their ids.
pub(super) fn likeliest(probs: &[f32]) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..probs.len()).filter(|&id| probs[id] > 0.0).collect();
    ids.sort_by(|&a, &b| probs[b].total_cmp(&probs[a]));
    ids
}

/// The ids that the filters keep, most likely first, and the sum of their probabilities.
pub(super) fn kept(probs: &[f32], limits: &Sampling) -> (Vec<usize>, f64) {
    let Sampling { top_k, top_p, min_p, typical_p, .. } = *limits;
    let mut ids = likeliest(probs);
    if top_k > 0 {
        ids.truncate(top_k);
    }
    let prob = |id: &usize| f64::from(probs[*id]);
    let sum = |ids: &[usize]| ids.iter().fold(0.0, |sum, id| sum + prob(id));
    let (enough, mut total) = (f64::from(top_p) * sum(&ids), 0.0);
    let reached = ids.iter().position(|id| {
        total += prob(id);
        top_p < 1.0 && total >= enough
    });
    ids.truncate(reached.map_or(ids.len(), |last| last + 1));
    let filters = limits.filters();
    if filters.min_p {
        let least = f64::from(min_p) * ids.first().map_or(0.0, prob);
        ids.retain(|id| prob(id) >= least);
        total = sum(&ids);
    }
    if filters.typical_p {
        let typical = Typical::new(ids.iter().map(prob), typical_p);
        ids.retain(|id| typical.keeps(prob(id)));
        total = sum(&ids);
    }
    (ids, total)
}

/// The index of the largest value, the first of equals. NaN is chosen only if there is nothing else.
pub(super) fn largest(x: &[f32]) -> usize {
    let better = |best: usize, i: usize| x[best].is_nan() || x[i] > x[best];
    (0..x.len()).fold(0, |best, i| if better(best, i) { i } else { best })
}

/// The id at which the running sum of `shares` exceeds `random`. The second number is the same id, or a neighbouring id
/// if the sum is too near `random` for float32 shares to decide.
fn drawn(shares: &[f32], random: f64) -> [f64; 2] {
    let likely = likeliest(shares);
    let reached = |number: f64| {
        let mut sum = 0.0;
        let found = likely.iter().find(|&&id| {
            sum += f64::from(shares[id]);
            sum > number
        });
        found.or(likely.last()).map_or(0.0, |&id| id as f64)
    };
    let value = reached(random);
    let (less, more) = (reached(random - TIE), reached(random + TIE));
    [value, if less == value { more } else { less }]
}

/// The bfloat16 nearest to `x`, ties to even.
pub(crate) fn to_bf16(x: f64) -> f64 {
    let near = x as f32;
    // Rounding to float32 by round-to-odd first gives the same result as a single rounding to bfloat16.
    let near = match near.to_bits() {
        bits if f64::from(near) == x || !near.is_finite() => bits,
        bits if f64::from(near).abs() > x.abs() => (bits - 1) | 1,
        bits => bits | 1,
    };
    bf16::from_f32(f32::from_bits(near)).to_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn float64_is_rounded_to_bfloat16_once() {
        assert_eq!(to_bf16(1.0 + 1.0 / 256.0), 1.0, "a tie goes to the even one");
        assert_eq!(to_bf16(1.0 + 1.0 / 256.0 + 1e-12), 1.0 + 1.0 / 128.0);
        assert_eq!(to_bf16(1.0 + 3.0 / 256.0 - 1e-12), 1.0 + 1.0 / 128.0);
        assert_eq!(to_bf16(-1.0 - 1.0 / 256.0 - 1e-12), -1.0 - 1.0 / 128.0);
        assert_eq!((to_bf16(0.0), to_bf16(f64::NEG_INFINITY)), (0.0, f64::NEG_INFINITY));
        assert!(to_bf16(f64::NAN).is_nan());
    }

    #[test]
    fn an_id_is_drawn_where_the_running_sum_passes_the_number() {
        let shares = [0.25, 0.5, 0.0, 0.25];
        assert_eq!(
            [0.0, 0.49, 0.6, 0.76, 1.0].map(|number| drawn(&shares, number)[0]),
            [1.0, 1.0, 0.0, 3.0, 3.0]
        );
        assert_eq!(drawn(&shares, 0.75), [3.0, 0.0], "by a hair");
        assert_eq!(drawn(&[f32::NAN; 2], 0.5)[0], 0.0);
    }

    #[test]
    fn the_likeliest_stay_until_their_share_is_reached() {
        let probs = [0.1, 0.3, 0.0, 0.3, 0.2];
        let all = Sampling { temperature: 1.0, ..Sampling::default() };
        let last = |top_k, top_p| nucleus(&probs, &Sampling { top_k, top_p, ..all })[2];
        assert_eq!([last(0, 1.0), last(1, 1.0), last(2, 1.0)], [0.0, 1.0, 3.0]);
        assert_eq!([last(0, 0.65), last(0, 0.8), last(3, 0.5)], [3.0, 4.0, 3.0]);
    }
}
