//! Mistakes of the sampler as whole tensors: penalty, temperature, the filters, the draw.

use ndarray::{Axis, IxDyn};

use super::Mistake;
use super::whole::{Array, Of, Operands, Row, softmax};
use llama_trace_core::trace::{Op, Stage};

const PENALTY: Of = Of::Op(Op::Penalize);
const PROBS: Of = Of::Op(Op::Probs);
const MIN_P: Of = Of::Op(Op::MinP);
const TYPICAL: Of = Of::Op(Op::TypicalP);
const NUCLEUS: Of = Of::Op(Op::TopKTopP);
const SAMPLE: Of = Of::Op(Op::Sample);

/// A vector as a tensor.
fn vector(values: Vec<f64>) -> Option<Array> {
    let shape = IxDyn(&[values.len()]);
    Array::from_shape_vec(shape, values).ok()
}

/// The logits after token `t`, counted from the end.
fn logits(o: &Operands, from_the_end: usize) -> Option<Array> {
    let x = o.x()?;
    match x.ndim() {
        1 => Some(x.clone()),
        _ => Some(x.index_axis(Axis(0), x.shape()[0].checked_sub(1 + from_the_end)?).to_owned()),
    }
}

/// The logits of the last token, with another rule for the tokens that the text has `count` times.
fn penalized(o: &Operands, rule: impl Fn(f64, f64, i32) -> f64) -> Option<Array> {
    let (x, by) = (logits(o, 0)?, f64::from(o.sampling.repetition_penalty));
    let count = |id: usize| o.text.iter().filter(|other| **other == id).count() as i32;
    vector(x.iter().enumerate().map(|(id, x)| rule(*x, by, count(id))).collect())
}

/// The right rule for a token that the text has.
fn penalize(x: f64, by: f64) -> f64 {
    if x < 0.0 { x * by } else { x / by }
}

/// The right penalty of the tokens in a part of the text.
fn penalized_in(o: &Operands, part: &[usize], from_the_end: usize) -> Option<Array> {
    let (x, by) = (logits(o, from_the_end)?, f64::from(o.sampling.repetition_penalty));
    let one = |(id, x): (usize, &f64)| if part.contains(&id) { penalize(*x, by) } else { *x };
    vector(x.iter().enumerate().map(one).collect())
}

fn temperature(o: &Operands) -> f64 {
    f64::from(o.sampling.temperature)
}

/// The probabilities, which are the first input.
fn probs(o: &Operands) -> Option<Vec<f64>> {
    o.x().filter(|x| x.ndim() == 1).map(|x| x.iter().copied().collect())
}

/// The places of the values, the largest first; equal ones in their order.
fn descending(p: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*b].total_cmp(&p[*a]));
    order
}

/// The values that stay, divided by `by` of them.
fn kept(p: &[f64], stays: impl Fn(usize) -> bool, by: impl Fn(&[f64]) -> f64) -> Option<Array> {
    let left: Vec<f64> = p.iter().enumerate().map(|(i, p)| if stays(i) { *p } else { 0.0 }).collect();
    let by = by(&left);
    vector(left.iter().map(|p| p / by).collect())
}

fn total(p: &[f64]) -> f64 {
    p.iter().sum()
}

fn largest(p: &[f64]) -> f64 {
    p.iter().copied().fold(0.0, f64::max)
}

/// The first of `order` whose sum reaches `limit`: the last one included, or not.
fn reaching(p: &[f64], order: &[usize], limit: f64, includes_last: bool) -> Vec<usize> {
    let (mut sum, mut stay) = (0.0, Vec::new());
    for &i in order {
        if sum >= limit || (!includes_last && sum + p[i] > limit && !stay.is_empty()) {
            break;
        }
        stay.push(i);
        sum += p[i];
    }
    stay
}

/// The options of top-k and top-p that the nucleus uses.
struct Cut {
    k: usize,
    p: f64,
}

fn cut(o: &Operands) -> Cut {
    let k = o.sampling.top_k;
    Cut { k: if k == 0 { usize::MAX } else { k }, p: o.sampling.top_p.into() }
}

/// Top-k, then top-p of what is left, with other parts.
fn nucleus(o: &Operands, change: impl Fn(&mut Cut), includes_last: bool) -> Option<Array> {
    let p = probs(o).filter(|_| temperature(o) > 0.0)?;
    let mut cut = cut(o);
    change(&mut cut);
    let order: Vec<usize> = descending(&p).into_iter().take(cut.k).collect();
    let whole: f64 = order.iter().map(|i| p[*i]).sum();
    let stay = reaching(&p, &order, cut.p * whole, includes_last);
    kept(&p, |i| stay.contains(&i), total)
}

/// The ids that the nucleus keeps.
fn nucleus_ids(o: &Operands) -> Option<(Vec<f64>, Vec<usize>)> {
    let p = probs(o).filter(|_| temperature(o) > 0.0)?;
    let right = nucleus(o, |_| (), true)?;
    Some((p, right.iter().enumerate().filter(|(_, p)| **p > 0.0).map(|(i, _)| i).collect()))
}

/// The entropy, −Σ p · log p, by a logarithm.
fn entropy(p: &[f64], log: fn(f64) -> f64) -> f64 {
    -p.iter().filter(|p| **p > 0.0).map(|p| p * log(*p)).sum::<f64>()
}

/// The tokens in the order of `key`, until their sum reaches typical-p.
fn typical(o: &Operands, key: impl Fn(f64, f64) -> f64, includes_last: bool) -> Option<Vec<usize>> {
    let p = probs(o)?;
    let h = entropy(&p, f64::ln);
    let mut order: Vec<usize> = (0..p.len()).filter(|i| p[*i] > 0.0).collect();
    order.sort_by(|a, b| key(p[*a], h).total_cmp(&key(p[*b], h)));
    Some(reaching(&p, &order, o.sampling.typical_p.into(), includes_last))
}

fn right_typical(p: f64, h: f64) -> f64 {
    (-p.ln() - h).abs()
}

fn typical_of(o: &Operands, key: impl Fn(f64, f64) -> f64) -> Option<Array> {
    let stay = typical(o, key, true)?;
    kept(&probs(o)?, |i| stay.contains(&i), total)
}

/// The id at which the running sum over `order` exceeds `random`, as its place in the order.
fn drawn(p: &[f64], order: &[usize], random: f64) -> usize {
    let mut sum = 0.0;
    for (place, &i) in order.iter().enumerate() {
        sum += p[i];
        if sum > random {
            return place;
        }
    }
    order.len() - 1
}

/// A draw with another order or random number.
fn draw(o: &Operands, random: f64, id: impl Fn(&[f64], usize) -> f64) -> Option<Array> {
    let p = probs(o)?;
    let order = descending(&p);
    vector(vec![id(&p, order[drawn(&p, &order, random)])])
}

/// Adds the mistakes of the greedy draw, which also read the logits.
pub(super) fn add_greedy(all: &mut Vec<Mistake>) {
    type Id = fn(&[f64]) -> Option<usize>;
    fn first(row: &[f64], better: fn(f64, f64) -> bool) -> Option<usize> {
        let least = |best: usize, i: usize| if better(row[i], row[best]) { i } else { best };
        (0..row.len()).reduce(least)
    }
    /// The id that `id` finds in the row, counted from the end; `None` for all rows in one.
    fn greedy(o: &Operands, row: Option<usize>, id: Id) -> Option<Array> {
        let x = o.inputs.last().filter(|x| x.ndim() == 2 && temperature(o) == 0.0)?;
        let values: Vec<f64> = match row {
            Some(row) => x.index_axis(Axis(0), x.shape()[0].checked_sub(1 + row)?).iter().copied().collect(),
            None => x.iter().copied().collect(),
        };
        vector(vec![id(&values)? as f64])
    }
    let rows: [(&'static str, super::Whole); 11] = [
        ("the smallest was taken", |o| greedy(o, Some(0), |row| first(row, |a, b| a < b))),
        ("of equal logits the last was taken, not the first", |o| {
            greedy(o, Some(0), |row| first(row, |a, b| a >= b))
        }),
        ("the largest |logit| was taken", |o| greedy(o, Some(0), |row| first(row, |a, b| a.abs() > b.abs()))),
        ("the second largest was taken", |o| greedy(o, Some(0), |row| descending(row).get(1).copied())),
        ("the id after it was returned", |o| {
            greedy(o, Some(0), |row| first(row, |a, b| a > b).map(|id| id + 1))
        }),
        ("the logits of the first token were read", |o| {
            let rows = o.inputs.last()?.shape()[0];
            greedy(o, Some(rows - 1), |row| first(row, |a, b| a > b))
        }),
        ("the logits of the token before the last were read", |o| {
            let rows = o.inputs.last()?.shape()[0];
            greedy(o, Some(1.min(rows - 1)), |row| first(row, |a, b| a > b))
        }),
        ("the place in the flattened logits of all tokens was returned", |o| {
            greedy(o, None, |row| first(row, |a, b| a > b))
        }),
        ("the largest of all tokens' logits was taken", |o| {
            let width = *o.inputs.last()?.shape().last()?;
            greedy(o, None, |row| first(row, |a, b| a > b)).map(|id| id.mapv(|id| id % width as f64))
        }),
        ("the largest of the mean logits was taken", |o| {
            let mean =
                o.inputs.last().filter(|x| x.ndim() == 2 && temperature(o) == 0.0)?.mean_axis(Axis(0))?;
            vector(vec![first(&mean.iter().copied().collect::<Vec<_>>(), |a, b| a > b)? as f64])
        }),
        ("the first id above the mean was taken", |o| {
            greedy(o, Some(0), |row| {
                let mean = total(row) / row.len() as f64;
                row.iter().position(|x| *x > mean)
            })
        }),
    ];
    for (form, wrong) in rows {
        let mut one = Mistake::whole("largest_logit", form, Op::Sample.stages(), &wrong);
        one.otherwise.also = &[(Stage::Sampled, Stage::Logits)];
        all.push(one);
    }
}

pub(super) const ROWS: &[Row] = &[
    Row("penalty_formula", "every such logit was divided", PENALTY, |o| {
        penalized(o, |x, by, count| if count > 0 { x / by } else { x })
    }),
    Row("penalty_formula", "every such logit was multiplied", PENALTY, |o| {
        penalized(o, |x, by, count| if count > 0 { x * by } else { x })
    }),
    Row("penalty_formula", "positive logits were multiplied, negative ones divided", PENALTY, |o| {
        penalized(o, |x, by, count| if count > 0 { penalize(x, 1.0 / by) } else { x })
    }),
    Row("penalty_formula", "the penalty was subtracted", PENALTY, |o| {
        penalized(o, |x, by, count| if count > 0 { x - by } else { x })
    }),
    Row("penalty_formula", "the logarithm of the penalty was subtracted", PENALTY, |o| {
        penalized(o, |x, by, count| if count > 0 { x - by.ln() } else { x })
    }),
    Row("penalty_formula", "penalty − 1 was subtracted", PENALTY, |o| {
        penalized(o, |x, by, count| if count > 0 { x - (by - 1.0) } else { x })
    }),
    Row("penalty_formula", "such logits became 0", PENALTY, |o| {
        penalized(o, |x, _, count| if count > 0 { 0.0 } else { x })
    }),
    Row("penalty_formula", "such logits became −∞", PENALTY, |o| {
        penalized(o, |x, _, count| if count > 0 { f64::NEG_INFINITY } else { x })
    }),
    Row("penalty_formula", "only positive logits were changed", PENALTY, |o| {
        penalized(o, |x, by, count| if count > 0 && x > 0.0 { x / by } else { x })
    }),
    Row("penalty_formula", "only negative logits were changed", PENALTY, |o| {
        penalized(o, |x, by, count| if count > 0 && x < 0.0 { x * by } else { x })
    }),
    Row("penalty_tokens", "once for each time that the text has them", PENALTY, |o| {
        penalized(o, |x, by, count| if count > 0 { penalize(x, by.powi(count)) } else { x })
    }),
    Row("penalty_tokens", "every token of the vocabulary", PENALTY, |o| {
        penalized(o, |x, by, _| penalize(x, by))
    }),
    Row("penalty_tokens", "the tokens that the text does not have", PENALTY, |o| {
        penalized(o, |x, by, count| if count > 0 { x } else { penalize(x, by) })
    }),
    Row("penalty_tokens", "only tokens that the text has more than once", PENALTY, |o| {
        penalized(o, |x, by, count| if count > 1 { penalize(x, by) } else { x })
    }),
    Row("penalty_tokens", "only the last token", PENALTY, |o| {
        penalized_in(o, &o.text[o.text.len().checked_sub(1)?..], 0)
    }),
    Row("penalty_tokens", "only the first token", PENALTY, |o| penalized_in(o, o.text.get(..1)?, 0)),
    Row("penalty_tokens", "all but the last token", PENALTY, |o| {
        penalized_in(o, &o.text[..o.text.len().checked_sub(1)?], 0)
    }),
    Row("penalty_tokens", "none: the penalty is not used", PENALTY, |o| penalized_in(o, &[], 0)),
    Row("last_row", "the logits of the first token", PENALTY, |o| {
        penalized_in(o, &o.text, o.x()?.shape()[0] - 1)
    }),
    Row("temperature", "multiplied by it", PROBS, |o| {
        Some(softmax(&(logits(o, 0)? * temperature(o)), Some(0)))
    }),
    Row("temperature", "it was not used", PROBS, |o| Some(softmax(&logits(o, 0)?, Some(0)))),
    Row("temperature", "divided by its square", PROBS, |o| {
        Some(softmax(&(logits(o, 0)? / temperature(o).powi(2)), Some(0)))
    }),
    Row("temperature", "divided by its root", PROBS, |o| {
        Some(softmax(&(logits(o, 0)? / temperature(o).sqrt()), Some(0)))
    }),
    Row("temperature", "subtracted", PROBS, |o| Some(softmax(&(logits(o, 0)? - temperature(o)), Some(0)))),
    Row("temperature", "the probabilities were divided by it, after softmax", PROBS, |o| {
        Some(softmax(&logits(o, 0)?, Some(0)) / temperature(o))
    }),
    Row("temperature", "the probabilities were multiplied by it", PROBS, |o| {
        Some(softmax(&logits(o, 0)?, Some(0)) * temperature(o))
    }),
    Row("temperature", "the probabilities have it as a power, without 1 / τ", PROBS, |o| {
        let p = softmax(&logits(o, 0)?, Some(0)).mapv(|p| p.powf(temperature(o)));
        let sum = p.sum();
        Some(p / sum)
    }),
    Row("last_row", "the logits of the first token", PROBS, |o| {
        let first = o.x().filter(|x| x.ndim() > 1)?.shape()[0] - 1;
        Some(softmax(&(logits(o, first)? / temperature(o)), Some(0)))
    }),
    Row("last_row", "the logits of the token before the last", PROBS, |o| {
        Some(softmax(&(logits(o, 1)? / temperature(o)), Some(0)))
    }),
    Row("last_row", "the mean of all rows", PROBS, |o| {
        let mean = o.x().filter(|x| x.ndim() > 1)?.mean_axis(Axis(0))?;
        Some(softmax(&(mean / temperature(o)), Some(0)))
    }),
    Row("wrong_axis", "softmax over the tokens", PROBS, |o| {
        let x = o.x().filter(|x| x.ndim() > 1)? / temperature(o);
        Some(softmax(&x, Some(0)).index_axis(Axis(0), x.shape()[0] - 1).to_owned())
    }),
    Row("wrong_axis", "softmax over all values at once", PROBS, |o| {
        let x = o.x().filter(|x| x.ndim() > 1)? / temperature(o);
        Some(softmax(&x, None).index_axis(Axis(0), x.shape()[0] - 1).to_owned())
    }),
    Row("softmax_formula", "e^(x − max), without the division by the sum", PROBS, |o| {
        let x = logits(o, 0)? / temperature(o);
        let most = x.fold(f64::NEG_INFINITY, |a, b| a.max(*b));
        Some(x.mapv(|x| (x - most).exp()))
    }),
    Row("softmax_formula", "the logarithm of softmax", PROBS, |o| {
        Some(softmax(&(logits(o, 0)? / temperature(o)), Some(0)).mapv(f64::ln))
    }),
    Row("softmax_formula", "sigmoid of x", PROBS, |o| {
        Some((logits(o, 0)? / temperature(o)).mapv(|x| 1.0 / (1.0 + (-x).exp())))
    }),
    Row("softmax_formula", "x / Σ x, without e^x", PROBS, |o| {
        let x = logits(o, 0)? / temperature(o);
        let sum = x.sum();
        Some(x / sum)
    }),
    Row("filter_cut", "a probability of at least min-p itself", MIN_P, |o| {
        let p = probs(o)?;
        kept(&p, |i| p[i] >= f64::from(o.sampling.min_p), total)
    }),
    Row("filter_cut", "at most min-p · max", MIN_P, |o| {
        let p = probs(o)?;
        kept(&p, |i| p[i] <= f64::from(o.sampling.min_p) * largest(&p), total)
    }),
    Row("filter_cut", "at least (1 − min-p) · max", MIN_P, |o| {
        let p = probs(o)?;
        kept(&p, |i| p[i] >= (1.0 - f64::from(o.sampling.min_p)) * largest(&p), total)
    }),
    Row("filter_cut", "at least max − min-p", MIN_P, |o| {
        let p = probs(o)?;
        kept(&p, |i| p[i] >= largest(&p) - f64::from(o.sampling.min_p), total)
    }),
    Row("filter_cut", "at least min-p · the mean", MIN_P, |o| {
        let p = probs(o)?;
        kept(&p, |i| p[i] >= f64::from(o.sampling.min_p) / p.len() as f64, total)
    }),
    Row("filter_cut", "at least min-p of the sum, the largest first (top-p)", MIN_P, |o| {
        let p = probs(o)?;
        let stay = reaching(&p, &descending(&p), o.sampling.min_p.into(), true);
        kept(&p, |i| stay.contains(&i), total)
    }),
    Row("filter_cut", "at most 1 − min-p of the sum, the largest first (top-p)", MIN_P, |o| {
        let p = probs(o)?;
        let stay = reaching(&p, &descending(&p), 1.0 - f64::from(o.sampling.min_p), true);
        kept(&p, |i| stay.contains(&i), total)
    }),
    Row("filter_cut", "at least max^(1 / min-p)", MIN_P, |o| {
        let p = probs(o)?;
        kept(&p, |i| p[i] >= largest(&p).powf(1.0 / f64::from(o.sampling.min_p)), total)
    }),
    Row("filter_cut", "at least √min-p · max", MIN_P, |o| {
        let p = probs(o)?;
        kept(&p, |i| p[i] >= f64::from(o.sampling.min_p).sqrt() * largest(&p), total)
    }),
    Row("filter_cut", "at least min-p² · max", MIN_P, |o| {
        let p = probs(o)?;
        kept(&p, |i| p[i] >= f64::from(o.sampling.min_p).powi(2) * largest(&p), total)
    }),
    Row("filter_cut", "every probability: nothing was removed", MIN_P, |o| vector(probs(o)?)),
    Row("filter_cut", "only the largest", MIN_P, |o| {
        let p = probs(o)?;
        kept(&p, |i| p[i] >= largest(&p), total)
    }),
    Row("filter_sum", "not divided", MIN_P, |o| {
        let p = probs(o)?;
        kept(&p, |i| p[i] >= f64::from(o.sampling.min_p) * largest(&p), |_| 1.0)
    }),
    Row("filter_sum", "divided by the largest", MIN_P, |o| {
        let p = probs(o)?;
        kept(&p, |i| p[i] >= f64::from(o.sampling.min_p) * largest(&p), largest)
    }),
    Row("filter_sum", "divided by their number", MIN_P, |o| {
        let p = probs(o)?;
        let count = |left: &[f64]| left.iter().filter(|p| **p > 0.0).count() as f64;
        kept(&p, |i| p[i] >= f64::from(o.sampling.min_p) * largest(&p), count)
    }),
    Row("filter_sum", "softmax of them", MIN_P, |o| {
        let p = probs(o)?;
        let x = p
            .iter()
            .map(|x| if *x >= f64::from(o.sampling.min_p) * largest(&p) { *x } else { f64::NEG_INFINITY });
        Some(softmax(&vector(x.collect())?, Some(0)))
    }),
    Row("filter_cut", "their equal share of 1", MIN_P, |o| {
        let p = probs(o)?;
        let stay: Vec<f64> =
            p.iter().map(|x| f64::from(u8::from(*x >= f64::from(o.sampling.min_p) * largest(&p)))).collect();
        kept(&stay, |_| true, total)
    }),
    Row("typical_key", "−ln q − H, without | |", TYPICAL, |o| typical_of(o, |p, h| -p.ln() - h)),
    Row("typical_key", "H + ln q, without | |", TYPICAL, |o| typical_of(o, |p, h| h + p.ln())),
    Row("typical_key", "|ln q − H|", TYPICAL, |o| typical_of(o, |p, h| (p.ln() - h).abs())),
    Row("typical_key", "|q − H|", TYPICAL, |o| typical_of(o, |p, h| (p - h).abs())),
    Row("typical_key", "|−log₂ q − H|", TYPICAL, |o| typical_of(o, |p, h| (-p.log2() - h).abs())),
    Row("typical_key", "|−ln q − H|, the largest first", TYPICAL, |o| {
        typical_of(o, |p, h| -right_typical(p, h))
    }),
    Row("typical_key", "|−q · ln q − H|", TYPICAL, |o| typical_of(o, |p, h| (-p * p.ln() - h).abs())),
    Row("typical_key", "−q: the likeliest first (top-p)", TYPICAL, |o| typical_of(o, |p, _| -p)),
    Row("typical_key", "q: the least likely first", TYPICAL, |o| typical_of(o, |p, _| p)),
    Row("typical_key", "|−ln q − mean(−ln q)|", TYPICAL, |o| {
        let p = probs(o)?;
        let all: Vec<f64> = p.iter().filter(|p| **p > 0.0).map(|p| -p.ln()).collect();
        let mean = total(&all) / all.len() as f64;
        typical_of(o, |p, _| (-p.ln() - mean).abs())
    }),
    Row("typical_key", "|−ln q + H|", TYPICAL, |o| typical_of(o, |p, h| (-p.ln() + h).abs())),
    Row("typical_key", "|−ln q − H₂|, H₂ by log₂", TYPICAL, |o| {
        let h = entropy(&probs(o)?, f64::log2);
        typical_of(o, |p, _| (-p.ln() - h).abs())
    }),
    Row("typical_key", "|e^−H − q|", TYPICAL, |o| typical_of(o, |p, h| ((-h).exp() - p).abs())),
    Row("typical_key", "|−ln q|", TYPICAL, |o| typical_of(o, |p, _| -p.ln())),
    Row("filter_cut", "the sum stays below typical-p", TYPICAL, |o| {
        let stay = typical(o, right_typical, false)?;
        kept(&probs(o)?, |i| stay.contains(&i), total)
    }),
    Row("filter_cut", "the sum reaches 1 − typical-p", TYPICAL, |o| {
        let p = probs(o)?;
        let h = entropy(&p, f64::ln);
        let mut order: Vec<usize> = (0..p.len()).filter(|i| p[*i] > 0.0).collect();
        order.sort_by(|a, b| right_typical(p[*a], h).total_cmp(&right_typical(p[*b], h)));
        let stay = reaching(&p, &order, 1.0 - f64::from(o.sampling.typical_p), true);
        kept(&p, |i| stay.contains(&i), total)
    }),
    Row("filter_cut", "one token more", TYPICAL, |o| {
        let p = probs(o)?;
        let h = entropy(&p, f64::ln);
        let mut order: Vec<usize> = (0..p.len()).filter(|i| p[*i] > 0.0).collect();
        order.sort_by(|a, b| right_typical(p[*a], h).total_cmp(&right_typical(p[*b], h)));
        let count = reaching(&p, &order, o.sampling.typical_p.into(), true).len();
        kept(&p, |i| order.iter().take(count + 1).any(|other| *other == i), total)
    }),
    Row("filter_cut", "every probability: nothing was removed", TYPICAL, |o| vector(probs(o)?)),
    Row("filter_sum", "not divided", TYPICAL, |o| {
        let stay = typical(o, right_typical, true)?;
        kept(&probs(o)?, |i| stay.contains(&i), |_| 1.0)
    }),
    Row("filter_sum", "divided by the largest", TYPICAL, |o| {
        let stay = typical(o, right_typical, true)?;
        kept(&probs(o)?, |i| stay.contains(&i), largest)
    }),
    Row("filter_cut", "the sum of the likeliest stays below top-p", NUCLEUS, |o| nucleus(o, |_| (), false)),
    Row("filter_cut", "top-k was not used", NUCLEUS, |o| nucleus(o, |cut| cut.k = usize::MAX, true)),
    Row("filter_cut", "top-p was not used", NUCLEUS, |o| nucleus(o, |cut| cut.p = 1.0, true)),
    Row("filter_cut", "k + 1 tokens", NUCLEUS, |o| nucleus(o, |cut| cut.k = cut.k.saturating_add(1), true)),
    Row("filter_cut", "k − 1 tokens", NUCLEUS, |o| nucleus(o, |cut| cut.k -= 1, true)),
    Row("filter_cut", "1 − top-p in place of top-p", NUCLEUS, |o| {
        nucleus(o, |cut| cut.p = 1.0 - cut.p, true)
    }),
    Row("filter_cut", "nothing was removed", NUCLEUS, |o| vector(probs(o).filter(|_| temperature(o) > 0.0)?)),
    Row("filter_cut", "one token more than top-p needs", NUCLEUS, |o| {
        let (p, ids) = nucleus_ids(o)?;
        let stay: Vec<usize> = descending(&p).into_iter().take(cut(o).k.min(ids.len() + 1)).collect();
        kept(&p, |i| stay.contains(&i), total)
    }),
    Row("filter_cut", "the sums of top-p are those of all tokens, not of the k that stay", NUCLEUS, |o| {
        let p = probs(o).filter(|_| temperature(o) > 0.0)?;
        let cut = cut(o);
        let order: Vec<usize> = descending(&p).into_iter().take(cut.k).collect();
        let stay = reaching(&p, &order, cut.p, true);
        kept(&p, |i| stay.contains(&i), total)
    }),
    Row("filter_cut", "the least likely tokens", NUCLEUS, |o| {
        let p = probs(o).filter(|_| temperature(o) > 0.0)?;
        let (cut, mut order) = (cut(o), descending(&p));
        order.reverse();
        order.truncate(cut.k);
        let whole: f64 = order.iter().map(|i| p[*i]).sum();
        let stay = reaching(&p, &order, cut.p * whole, true);
        kept(&p, |i| stay.contains(&i), total)
    }),
    Row("filter_cut", "in the order of the vocabulary, without sorting", NUCLEUS, |o| {
        let p = probs(o).filter(|_| temperature(o) > 0.0)?;
        let cut = cut(o);
        let order: Vec<usize> = (0..p.len().min(cut.k)).collect();
        let whole: f64 = order.iter().map(|i| p[*i]).sum();
        let stay = reaching(&p, &order, cut.p * whole, true);
        kept(&p, |i| stay.contains(&i), total)
    }),
    Row("filter_cut", "only the likeliest token", NUCLEUS, |o| nucleus(o, |cut| cut.k = 1, true)),
    Row("filter_cut", "every probability of at least 1 − top-p", NUCLEUS, |o| {
        let p = probs(o).filter(|_| temperature(o) > 0.0)?;
        let limit = 1.0 - f64::from(o.sampling.top_p);
        kept(&p, |i| p[i] >= limit, total)
    }),
    Row("filter_sum", "not divided", NUCLEUS, |o| {
        let (p, ids) = nucleus_ids(o)?;
        kept(&p, |i| ids.contains(&i), |_| 1.0)
    }),
    Row("filter_sum", "divided by the sum of the k that top-k keeps", NUCLEUS, |o| {
        let (p, ids) = nucleus_ids(o)?;
        let whole: f64 = descending(&p).into_iter().take(cut(o).k).map(|i| p[i]).sum();
        kept(&p, |i| ids.contains(&i), |_| whole)
    }),
    Row("filter_sum", "divided by the largest", NUCLEUS, |o| {
        let (p, ids) = nucleus_ids(o)?;
        kept(&p, |i| ids.contains(&i), largest)
    }),
    Row("filter_sum", "divided by top-p", NUCLEUS, |o| {
        let (p, ids) = nucleus_ids(o)?;
        kept(&p, |i| ids.contains(&i), |_| o.sampling.top_p.into())
    }),
    Row("filter_sum", "an equal share for each", NUCLEUS, |o| {
        let (p, ids) = nucleus_ids(o)?;
        let ones = vec![1.0; p.len()];
        kept(&ones, |i| ids.contains(&i), total)
    }),
    Row("draw_order", "the vocabulary, without sorting", SAMPLE, |o| {
        let p = probs(o)?;
        let order: Vec<usize> = (0..p.len()).collect();
        vector(vec![drawn(&p, &order, o.random) as f64])
    }),
    Row("draw_order", "the least likely first", SAMPLE, |o| {
        let p = probs(o)?;
        let mut order = descending(&p);
        order.reverse();
        vector(vec![order[drawn(&p, &order, o.random)] as f64])
    }),
    Row("draw_order", "the last of the vocabulary first", SAMPLE, |o| {
        let p = probs(o)?;
        let order: Vec<usize> = (0..p.len()).rev().collect();
        vector(vec![order[drawn(&p, &order, o.random)] as f64])
    }),
    Row("draw_random", "1 − the random number", SAMPLE, |o| draw(o, 1.0 - o.random, |_, id| id as f64)),
    Row("draw_random", "the square of the random number", SAMPLE, |o| {
        draw(o, o.random * o.random, |_, id| id as f64)
    }),
    Row("draw_random", "the root of the random number", SAMPLE, |o| {
        draw(o, o.random.sqrt(), |_, id| id as f64)
    }),
    Row("draw_random", "no random number: the likeliest id", SAMPLE, |o| {
        draw(o, 0.0, |_, id| id as f64).filter(|_| temperature(o) > 0.0)
    }),
    Row("draw_random", "half of the random number", SAMPLE, |o| draw(o, o.random / 2.0, |_, id| id as f64)),
    Row("draw_result", "its place in the sorted order, not its id", SAMPLE, |o| {
        let p = probs(o)?;
        vector(vec![drawn(&p, &descending(&p), o.random) as f64])
    }),
    Row("draw_result", "the id after it", SAMPLE, |o| draw(o, o.random, |_, id| id as f64 + 1.0)),
    Row("draw_result", "the id before it", SAMPLE, |o| draw(o, o.random, |_, id| id as f64 - 1.0)),
    Row("draw_result", "the next in the sorted order", SAMPLE, |o| {
        let p = probs(o)?;
        let order = descending(&p);
        vector(vec![order[(drawn(&p, &order, o.random) + 1).min(order.len() - 1)] as f64])
    }),
    Row("draw_result", "the one before in the sorted order", SAMPLE, |o| {
        let p = probs(o)?;
        let order = descending(&p);
        let place = drawn(&p, &order, o.random);
        vector(vec![order[place.checked_sub(1).unwrap_or(order.len() - 1)] as f64])
    }),
    Row("draw_result", "its probability, not its id", SAMPLE, |o| draw(o, o.random, |p, id| p[id])),
    Row("draw_result", "the id that the random number is a share of", SAMPLE, |o| {
        vector(vec![(o.random * probs(o)?.len() as f64).floor()])
    }),
    Row("draw_result", "the id nearest to the random number among those that stay", SAMPLE, |o| {
        let p = probs(o)?;
        let ids: Vec<usize> = (0..p.len()).filter(|i| p[*i] > 0.0).collect();
        let place = (o.random * ids.len() as f64).floor() as usize;
        vector(vec![*ids.get(place)? as f64])
    }),
    Row("draw_result", "the place among the ids that stay", SAMPLE, |o| {
        let p = probs(o)?;
        let ids: Vec<usize> = (0..p.len()).filter(|i| p[*i] > 0.0).collect();
        let left: Vec<f64> = ids.iter().map(|i| p[*i]).collect();
        let order: Vec<usize> = (0..left.len()).collect();
        vector(vec![drawn(&left, &order, o.random) as f64])
    }),
    Row("draw_result", "the largest id that stays", SAMPLE, |o| {
        let p = probs(o)?;
        vector(vec![p.iter().rposition(|p| *p > 0.0)? as f64])
    }),
];
