//! Mistakes of the attention weights as whole tensors: dot products, scale, mask, softmax, weighted sum.

use ndarray::{Axis, IxDyn};

use super::Mistake;
use super::whole::{Array, Of, Operands, Row, last, reduced, reversed, softmax};
use llama_trace_core::trace::{Op, Stage};

const QK: Of = Of::Op(Op::QueryKey);
const SCALE: Of = Of::Op(Op::Scale);
const MASK: Of = Of::Op(Op::Mask);
const ADD_MASK: Of = Of::Op(Op::AddMask);
const SOFTMAX: Of = Of::Op(Op::Softmax);
const MIX: Of = Of::Op(Op::Mix);
/// Softmax over the keys, and over the vocabulary.
const OVERFLOW: Of = Of::Stages(&[Stage::Softmax, Stage::Probs]);

/// The result of `value` for every query and key, which are vectors of C.
fn pairs(o: &Operands, value: impl Fn(&[f64], &[f64]) -> f64) -> Option<Array> {
    let (q, k) = (o.x()?, o.input(1)?);
    let row = |of: &Array, t: usize, h: usize| -> Vec<f64> {
        (0..of.shape()[2]).map(|c| of[IxDyn(&[t, h, c])]).collect()
    };
    Some(o.cells(|at| value(&row(q, at[1], at[0]), &row(k, at[2], at[0]))))
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The mask, with another value for each token and key.
fn mask(o: &Operands, value: impl Fn(usize, usize) -> f64) -> Option<Array> {
    Some(o.cells(|at| value(o.dims.start + at[0], at[1])))
}

/// The scores and the mask, combined cell by cell.
fn masked(o: &Operands, value: impl Fn(f64, f64) -> f64) -> Option<Array> {
    let (scores, mask) = (o.x()?, o.input(1)?);
    Some(o.cells(|at| value(scores[IxDyn(at)], mask[IxDyn(&at[1..])])))
}

const HIDDEN: f64 = f64::NEG_INFINITY;

/// e^x over the sum of e^x, without the maximum: ∞ / ∞ is NaN. `largest` is the largest number of the type.
fn overflow(o: &Operands, largest: f64) -> Option<Array> {
    let x = o.x()?;
    let x = match o.site.stage {
        Stage::Probs => {
            let row = x.index_axis(Axis(0), x.shape().first()?.checked_sub(1).filter(|_| x.ndim() > 1)?);
            row.mapv(|x| x / f64::from(o.sampling.temperature))
        }
        _ => x.clone(),
    };
    let rounded = |x: f64| if x > largest { f64::INFINITY } else { x };
    // The smallest numbers of the type become 0.
    let least = if largest > 1e100 { 5e-324 } else { 1.4e-45 };
    let powers = x.mapv(|x| rounded(x.exp())).mapv(|x| if x < least / 2.0 { 0.0 } else { x });
    let sum = reduced(&powers, Some(last(&powers)), |row| rounded(row.sum()));
    Some(powers / &sum)
}

/// The weighted sum with other weights (H, T, K).
fn mixed(o: &Operands, weights: &Array) -> Option<Array> {
    let values = o.input(1)?;
    let keys = values.shape()[0];
    (weights.shape() == [o.shape[1], o.shape[0], keys]).then(|| {
        o.cells(|at| {
            let [t, h, c] = [at[0], at[1], at[2]];
            (0..keys).map(|k| weights[IxDyn(&[h, t, k])] * values[IxDyn(&[k, h, c])]).sum()
        })
    })
}

/// The sum over the visible keys of a function of the weight.
fn weighted(o: &Operands, weight: impl Fn(f64, &[f64]) -> f64) -> Option<Array> {
    let weights = o.x()?;
    let row = |at: &[usize]| -> Vec<f64> {
        (0..weights.shape()[2]).map(|k| weights[IxDyn(&[at[0], at[1], k])]).collect()
    };
    let changed = Array::from_shape_fn(weights.raw_dim(), |at| {
        let at = [at[0], at[1], at[2]];
        weight(weights[IxDyn(&at)], &row(&at))
    });
    mixed(o, &changed)
}

/// Adds the mistakes that read the scores before the mask.
pub(super) fn add_late(all: &mut Vec<Mistake>) {
    let late: super::Whole = |o| {
        let (masked, scores) = (o.x()?, o.inputs.last().filter(|_| o.inputs.len() > 1)?);
        let mut weights = softmax(scores, Some(2));
        weights.zip_mut_with(masked, |weight, masked| {
            if *masked == HIDDEN {
                *weight = 0.0;
            }
        });
        Some(weights)
    };
    // The rule of the weighted sum reads visible keys only, so this mistake of the mask is also one of the sum.
    let zero: super::Whole = |o| {
        let (weights, scores) = (o.x()?, o.inputs.last().filter(|_| o.inputs.len() > 2)?);
        let mut scores = scores.clone();
        scores.zip_mut_with(weights, |score, weight| {
            if *weight == 0.0 {
                *score = 0.0;
            }
        });
        mixed(o, &softmax(&scores, Some(2)))
    };
    let mut zero = Mistake::whole("mask_values", "hidden scores are 0, not −∞", Op::Mix.stages(), &zero);
    zero.otherwise.also = &[(Stage::AttnHeads, Stage::Scores)];
    all.push(zero);
    let mut late = Mistake::whole("mask_late", "", Op::Softmax.stages(), &late);
    late.otherwise.also = &[(Stage::Softmax, Stage::Scores)];
    all.push(late);
}

pub(super) const ROWS: &[Row] = &[
    Row("qk_formula", "the cosine of q and k", QK, |o| {
        pairs(o, |q, k| dot(q, k) / (dot(q, q) * dot(k, k)).sqrt())
    }),
    Row("qk_formula", "−|q − k|²", QK, |o| {
        pairs(o, |q, k| -q.iter().zip(k).map(|(q, k)| (q - k).powi(2)).sum::<f64>())
    }),
    Row("qk_formula", "Σ |q · k|", QK, |o| {
        pairs(o, |q, k| q.iter().zip(k).map(|(q, k)| (q * k).abs()).sum())
    }),
    Row("qk_formula", "−Σ q · k", QK, |o| pairs(o, |q, k| -dot(q, k))),
    Row("qk_formula", "Σ q + k", QK, |o| pairs(o, |q, k| q.iter().zip(k).map(|(q, k)| q + k).sum())),
    Row("qk_formula", "Σ q · Σ k", QK, |o| pairs(o, |q, k| q.iter().sum::<f64>() * k.iter().sum::<f64>())),
    Row("qk_formula", "the mean of q · k", QK, |o| pairs(o, |q, k| dot(q, k) / q.len() as f64)),
    Row("qk_formula", "the largest q · k", QK, |o| {
        pairs(o, |q, k| q.iter().zip(k).map(|(q, k)| q * k).fold(f64::NEG_INFINITY, f64::max))
    }),
    Row("qk_formula", "Σ q · k of the first half of the components", QK, |o| {
        pairs(o, |q, k| dot(&q[..q.len() / 2], k))
    }),
    Row("qk_formula", "Σ q · k with the components of k in reverse", QK, |o| {
        pairs(o, |q, k| dot(q, &k.iter().rev().copied().collect::<Vec<_>>()))
    }),
    Row("qk_formula", "Σ q · k over all heads", QK, |o| {
        let all = pairs(o, dot)?.sum_axis(Axis(0));
        Some(o.cells(|at| all[IxDyn(&at[1..])]))
    }),
    Row("qk_formula", "softmax of q · k", QK, |o| pairs(o, dot).map(|x| softmax(&x, Some(2)))),
    Row("qk_order", "the heads of the keys in reverse", QK, |o| {
        let k = reversed(o.input(1)?, 1);
        let q = o.x()?;
        Some(o.cells(|at| {
            (0..q.shape()[2]).map(|c| q[IxDyn(&[at[1], at[0], c])] * k[IxDyn(&[at[2], at[0], c])]).sum()
        }))
    }),
    Row("qk_order", "the keys in reverse", QK, |o| pairs(o, dot).map(|x| reversed(&x, 2))),
    Row("qk_order", "the first head's keys for every head", QK, |o| {
        let (q, k) = (o.x()?, o.input(1)?);
        Some(o.cells(|at| {
            (0..q.shape()[2]).map(|c| q[IxDyn(&[at[1], at[0], c])] * k[IxDyn(&[at[2], 0, c])]).sum()
        }))
    }),
    Row("qk_order", "(T, H, C) read as (H, T, C)", QK, |o| {
        let (q, k) = (o.x()?, o.input(1)?);
        let [heads, tokens, keys] = *o.shape else { return None };
        let c = q.shape()[2];
        let (q, k) =
            (super::whole::reshaped(q, &[heads, tokens, c])?, super::whole::reshaped(k, &[heads, keys, c])?);
        Some(o.cells(|at| (0..c).map(|i| q[IxDyn(&[at[0], at[1], i])] * k[IxDyn(&[at[0], at[2], i])]).sum()))
    }),
    Row("attention_scale", "multiplied by √C", SCALE, |o| Some(o.x()? * (o.sizes.head_dim as f64).sqrt())),
    Row("attention_scale", "multiplied by C", SCALE, |o| Some(o.x()? * o.sizes.head_dim as f64)),
    Row("attention_scale", "divided by √T, T the number of tokens", SCALE, |o| {
        Some(o.x()? / (o.dims.tokens as f64).sqrt())
    }),
    Row("attention_scale", "divided by √K, K the number of keys", SCALE, |o| {
        Some(o.x()? / (o.dims.keys() as f64).sqrt())
    }),
    Row("attention_scale", "divided by √H, H the number of heads", SCALE, |o| {
        Some(o.x()? / (o.sizes.heads as f64).sqrt())
    }),
    Row("attention_scale", "divided by H, the number of heads", SCALE, |o| {
        Some(o.x()? / o.sizes.heads as f64)
    }),
    Row("attention_scale", "divided by D", SCALE, |o| Some(o.x()? / o.sizes.dim as f64)),
    Row("attention_scale", "divided by ∛C", SCALE, |o| Some(o.x()? / (o.sizes.head_dim as f64).cbrt())),
    Row("attention_scale", "divided by ln C", SCALE, |o| Some(o.x()? / (o.sizes.head_dim as f64).ln())),
    Row("attention_scale", "divided by √(C − 1)", SCALE, |o| {
        Some(o.x()? / (o.sizes.head_dim as f64 - 1.0).sqrt())
    }),
    Row("attention_scale", "divided by the whole number below √C", SCALE, |o| {
        Some(o.x()? / (o.sizes.head_dim as f64).sqrt().floor())
    }),
    Row("attention_scale", "divided by the standard deviation of each row", SCALE, |o| {
        let x = o.x()?;
        Some(x / &x.map_axis(Axis(2), |row| row.std(0.0)).insert_axis(Axis(2)))
    }),
    Row("mask_inverted", "it hides the visible keys and shows the hidden ones", MASK, |o| {
        mask(o, |at, k| if k <= at { HIDDEN } else { 0.0 })
    }),
    Row("mask_inverted", "it hides the earlier keys and the own one shows", MASK, |o| {
        mask(o, |at, k| if k < at { HIDDEN } else { 0.0 })
    }),
    Row("mask_inverted", "only the own key shows", MASK, |o| {
        mask(o, |at, k| if k == at { 0.0 } else { HIDDEN })
    }),
    Row("mask_inverted", "its rows are in reverse", MASK, |o| {
        let end = o.dims.start + o.dims.keys() - 1;
        mask(o, |at, k| if k <= end - at { 0.0 } else { HIDDEN })
    }),
    Row("mask_inverted", "its sign is wrong: hidden keys have +∞", MASK, |o| {
        mask(o, |at, k| if k <= at { 0.0 } else { f64::INFINITY })
    }),
    Row("mask_values", "1 for a visible key and 0 for a hidden one", MASK, |o| {
        mask(o, |at, k| if k <= at { 1.0 } else { 0.0 })
    }),
    Row("mask_values", "0 for a visible key and 1 for a hidden one", MASK, |o| {
        mask(o, |at, k| if k <= at { 0.0 } else { 1.0 })
    }),
    Row("mask_values", "0 for a visible key and −1 for a hidden one", MASK, |o| {
        mask(o, |at, k| if k <= at { 0.0 } else { -1.0 })
    }),
    Row("mask_values", "1 for a visible key and −∞ for a hidden one", MASK, |o| {
        mask(o, |at, k| if k <= at { 1.0 } else { HIDDEN })
    }),
    Row("mask_values", "NaN, from 0 · −∞", MASK, |o| {
        mask(o, |at, k| if k <= at { f64::NAN } else { HIDDEN })
    }),
    Row("mask_offset", "the position is counted from the pass's first token", MASK, |o| {
        let start = o.dims.start;
        mask(o, |at, k| if k <= at - start { 0.0 } else { HIDDEN })
    }),
    Row("mask_inverted", "only earlier passes are visible", MASK, |o| {
        let start = o.dims.start;
        mask(o, |_, k| if k < start { 0.0 } else { HIDDEN })
    }),
    Row("mask_values", "hidden scores are 0, not −∞", ADD_MASK, |o| {
        masked(o, |score, mask| if mask == 0.0 { score } else { 0.0 })
    }),
    Row("mask_values", "hidden scores are −1", ADD_MASK, |o| {
        masked(o, |score, mask| if mask == 0.0 { score } else { -1.0 })
    }),
    Row("mask_values", "hidden scores are lower by 1", ADD_MASK, |o| {
        masked(o, |score, mask| if mask == 0.0 { score } else { score - 1.0 })
    }),
    Row("mask_values", "hidden scores are the smallest positive number", ADD_MASK, |o| {
        masked(o, |score, mask| if mask == 0.0 { score } else { f64::from(f32::MIN_POSITIVE) })
    }),
    Row("mask_values", "the scores are multiplied by the mask", ADD_MASK, |o| {
        masked(o, |score, mask| score * mask)
    }),
    Row("mask_values", "only the mask is left", ADD_MASK, |o| masked(o, |_, mask| mask)),
    Row("mask_inverted", "the mask is subtracted", ADD_MASK, |o| masked(o, |score, mask| score - mask)),
    Row("mask_inverted", "the visible scores are hidden", ADD_MASK, |o| {
        masked(o, |score, mask| if mask == 0.0 { HIDDEN } else { score })
    }),
    Row("mask_inverted", "the mask's rows are in reverse", ADD_MASK, |o| {
        let (scores, mask) = (o.x()?, reversed(o.input(1)?, 0));
        Some(o.cells(|at| scores[IxDyn(at)] + mask[IxDyn(&at[1..])]))
    }),
    Row("mask_inverted", "the mask's columns are in reverse", ADD_MASK, |o| {
        let (scores, mask) = (o.x()?, reversed(o.input(1)?, 1));
        Some(o.cells(|at| scores[IxDyn(at)] + mask[IxDyn(&at[1..])]))
    }),
    Row("mask_inverted", "the scores are negated", ADD_MASK, |o| masked(o, |score, mask| mask - score)),
    Row("mask_inverted", "the first row of the mask serves every token", ADD_MASK, |o| {
        let (scores, mask) = (o.x()?, o.input(1)?);
        Some(o.cells(|at| scores[IxDyn(at)] + mask[IxDyn(&[0, at[2]])]))
    }),
    Row("mask_inverted", "the last row of the mask serves every token", ADD_MASK, |o| {
        let (scores, mask) = (o.x()?, o.input(1)?);
        Some(o.cells(|at| scores[IxDyn(at)] + mask[IxDyn(&[o.dims.tokens - 1, at[2]])]))
    }),
    Row("mask_inverted", "only the first head is masked", ADD_MASK, |o| {
        let (scores, mask) = (o.x()?, o.input(1)?);
        Some(o.cells(|at| scores[IxDyn(at)] + if at[0] == 0 { mask[IxDyn(&at[1..])] } else { 0.0 }))
    }),
    Row("wrong_axis", "softmax over the queries", SOFTMAX, |o| o.x().map(|x| softmax(x, Some(1)))),
    Row("wrong_axis", "softmax over the heads", SOFTMAX, |o| o.x().map(|x| softmax(x, Some(0)))),
    Row("wrong_axis", "softmax over all values at once", SOFTMAX, |o| o.x().map(|x| softmax(x, None))),
    Row("wrong_axis", "softmax over queries and keys of each head", SOFTMAX, |o| {
        let x = o.x()?;
        let most = reduced(&reduced(x, Some(2), |r| r.fold(HIDDEN, |a, b| a.max(*b))), Some(1), |r| {
            r.fold(HIDDEN, |a, b| a.max(*b))
        });
        let powers = (x - &most).mapv(f64::exp);
        let sum = reduced(&reduced(&powers, Some(2), |row| row.sum()), Some(1), |row| row.sum());
        Some(powers / &sum)
    }),
    Row("softmax_overflow", "in float32", OVERFLOW, |o| overflow(o, f32::MAX.into())),
    Row("softmax_overflow", "in float64", OVERFLOW, |o| overflow(o, f64::MAX)),
    Row("softmax_formula", "e^(x − max), without the division by the sum", SOFTMAX, |o| {
        let x = o.x()?;
        Some((x - &reduced(x, Some(2), |row| row.fold(HIDDEN, |a, b| a.max(*b)))).mapv(f64::exp))
    }),
    Row("softmax_formula", "e^x, without the division by the sum", SOFTMAX, |o| {
        o.x().map(|x| x.mapv(|x| f64::from(x.exp() as f32)))
    }),
    Row("softmax_formula", "x / Σ x, without e^x", SOFTMAX, |o| {
        let x = o.x()?.mapv(|x| if x == HIDDEN { 0.0 } else { x });
        Some(&x / &reduced(&x, Some(2), |row| row.sum()))
    }),
    Row("softmax_formula", "sigmoid of x", SOFTMAX, |o| o.x().map(|x| x.mapv(|x| 1.0 / (1.0 + (-x).exp())))),
    Row("softmax_formula", "the logarithm of softmax", SOFTMAX, |o| {
        o.x().map(|x| softmax(x, Some(2)).mapv(f64::ln))
    }),
    Row("softmax_formula", "2^x in place of e^x", SOFTMAX, |o| {
        o.x().map(|x| softmax(&(x * std::f64::consts::LN_2), Some(2)))
    }),
    Row("softmax_formula", "e^−x in place of e^x", SOFTMAX, |o| {
        let x = o.x()?.mapv(|x| if x == HIDDEN { HIDDEN } else { -x });
        Some(softmax(&x, Some(2)))
    }),
    Row("softmax_formula", "1 for the largest score, 0 for the others", SOFTMAX, |o| {
        let x = o.x()?;
        let most = reduced(x, Some(2), |row| row.fold(HIDDEN, |a, b| a.max(*b)));
        Some(o.cells(|at| if x[IxDyn(at)] == most[IxDyn(&[at[0], at[1], 0])] { 1.0 } else { 0.0 }))
    }),
    Row("softmax_formula", "softmax of softmax", SOFTMAX, |o| {
        o.x().map(|x| softmax(&softmax(x, Some(2)), Some(2)))
    }),
    Row("softmax_formula", "divided by the sum plus 1", SOFTMAX, |o| {
        let x = o.x()?;
        let powers = (x - &reduced(x, Some(2), |row| row.fold(HIDDEN, |a, b| a.max(*b)))).mapv(f64::exp);
        let sum = reduced(&powers, Some(2), |row| row.sum() + 1.0);
        Some(powers / &sum)
    }),
    Row("softmax_formula", "divided by the largest value", SOFTMAX, |o| {
        let powers = softmax(o.x()?, Some(2));
        Some(&powers / &reduced(&powers, Some(2), |row| row.fold(0.0, |a: f64, b| a.max(*b))))
    }),
    Row("softmax_formula", "e^(x · √C)", SOFTMAX, |o| {
        o.x().map(|x| softmax(&(x * (o.sizes.head_dim as f64).sqrt()), Some(2)))
    }),
    Row("softmax_formula", "e^(x / √C)", SOFTMAX, |o| {
        o.x().map(|x| softmax(&(x / (o.sizes.head_dim as f64).sqrt()), Some(2)))
    }),
    Row("mix_formula", "the sum of the visible values", MIX, |o| {
        weighted(o, |weight, _| if weight > 0.0 { 1.0 } else { 0.0 })
    }),
    Row("mix_formula", "the mean of all values", MIX, |o| weighted(o, |_, row| 1.0 / row.len() as f64)),
    Row("mix_formula", "the sum of all values", MIX, |o| weighted(o, |_, _| 1.0)),
    Row("mix_formula", "the value of the largest weight", MIX, |o| {
        weighted(o, |weight, row| {
            let most = row.iter().copied().fold(0.0, f64::max);
            if weight == most { 1.0 } else { 0.0 }
        })
    }),
    Row("mix_formula", "the weighted mean: the sum divided by the number of keys", MIX, |o| {
        weighted(o, |weight, row| weight / row.len() as f64)
    }),
    Row("mix_formula", "the squares of the weights", MIX, |o| weighted(o, |weight, _| weight * weight)),
    Row("mix_formula", "softmax of the weights", MIX, |o| mixed(o, &softmax(o.x()?, Some(2)))),
    Row("mix_formula", "weights that are divided by √C", MIX, |o| {
        let by = (o.sizes.head_dim as f64).sqrt();
        weighted(o, |weight, _| weight / by)
    }),
    Row("mix_formula", "the mean weight of all heads", MIX, |o| {
        let mean = o.x()?.mean_axis(Axis(0))?;
        let all = mean.broadcast(o.x()?.raw_dim())?.to_owned();
        mixed(o, &all)
    }),
    Row("mix_order", "the keys in reverse", MIX, |o| mixed(o, &reversed(o.x()?, 2))),
    Row("mix_order", "the tokens in reverse", MIX, |o| mixed(o, &reversed(o.x()?, 1))),
    Row("mix_order", "the heads in reverse", MIX, |o| mixed(o, &reversed(o.x()?, 0))),
    Row("mix_order", "the first head's weights for every head", MIX, |o| {
        let first = o.x()?.index_axis(Axis(0), 0).to_owned();
        mixed(o, &first.broadcast(o.x()?.raw_dim())?.to_owned())
    }),
    Row("mix_order", "(K, H, C) read as (H, K, C)", MIX, |o| {
        let (weights, values) = (o.x()?, o.input(1)?);
        let [keys, heads, c] = *values.shape() else { return None };
        let values = super::whole::reshaped(values, &[heads, keys, c])?;
        Some(o.cells(|at| {
            (0..keys).map(|k| weights[IxDyn(&[at[1], at[0], k])] * values[IxDyn(&[at[1], k, at[2]])]).sum()
        }))
    }),
    Row("mix_order", "(H, T, C) was reshaped to (T, H, C)", MIX, |o| {
        let right = mixed(o, o.x()?)?;
        let heads_first = right.permuted_axes(IxDyn(&[1, 0, 2])).as_standard_layout().into_owned();
        o.shaped(&heads_first)
    }),
    Row("mix_order", "the first value of each head for every key", MIX, |o| {
        let (weights, values) = (o.x()?, o.input(1)?);
        let sum = weights.sum_axis(Axis(2));
        Some(o.cells(|at| sum[IxDyn(&[at[1], at[0]])] * values[IxDyn(&[0, at[1], at[2]])]))
    }),
];
