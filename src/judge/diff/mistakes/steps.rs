//! Mistakes of int8 quantisation as whole tensors: the scales and the steps.

use ndarray::{Axis, IxDyn, Slice};

use super::whole::{Array, Of, Operands, Row, reduced, reversed};
use llama_trace_core::trace::Stage;

const SCALE: Of =
    Of::Stages(&[Stage::AttnNormScale, Stage::FfnNormScale, Stage::FfnHiddenScale, Stage::FinalNormScale]);
const STEPS: Of = Of::Stages(&[Stage::AttnNormQ8, Stage::FfnNormQ8, Stage::FfnHiddenQ8, Stage::FinalNormQ8]);

/// A function of the values of each group.
fn groups(o: &Operands, value: impl Fn(&[f64]) -> f64) -> Option<Array> {
    let (x, group) = (o.x()?, o.sizes.group?);
    let width = x.shape()[1];
    Some(o.cells(|at| {
        let range = at[1] * group..((at[1] + 1) * group).min(width);
        let row: Vec<f64> = range.map(|i| x[IxDyn(&[at[0], i])]).collect();
        value(&row)
    }))
}

fn largest(row: &[f64]) -> f64 {
    row.iter().fold(0.0, |most, x| most.max(x.abs()))
}

/// x / scale, through another function.
fn steps(o: &Operands, value: impl Fn(f64) -> f64) -> Option<Array> {
    let (x, scales, group) = (o.x()?, o.input(1)?, o.sizes.group?);
    // The quotient is a float32 number: the largest value of a group is then exactly 127.
    Some(o.cells(|at| value(f64::from((x[IxDyn(at)] / scales[IxDyn(&[at[0], at[1] / group])]) as f32))))
}

/// x / another scale, rounded. `scale` gets the token, the component, and the number of values in a group.
fn scaled(o: &Operands, scale: impl Fn(&Array, [usize; 2], usize) -> Option<f64>) -> Option<Array> {
    let (x, scales, group) = (o.x()?, o.input(1)?, o.sizes.group?);
    let mut out = x.clone();
    for ((t, i), out) in (0..x.shape()[0]).flat_map(|t| (0..x.shape()[1]).map(move |i| (t, i))).zip(&mut out)
    {
        *out = (*out / scale(scales, [t, i], group)?).round().clamp(-128.0, 127.0);
    }
    Some(out)
}

pub(super) const ROWS: &[Row] = &[
    Row("scale_formula", "max x / 127, without | |", SCALE, |o| {
        groups(o, |row| row.iter().copied().fold(f64::NEG_INFINITY, f64::max) / 127.0)
    }),
    Row("scale_formula", "max |x| / 128", SCALE, |o| groups(o, |row| largest(row) / 128.0)),
    Row("scale_formula", "max |x| / 255", SCALE, |o| groups(o, |row| largest(row) / 255.0)),
    Row("scale_formula", "max |x| / 256", SCALE, |o| groups(o, |row| largest(row) / 256.0)),
    Row("scale_formula", "max |x|, without the division by 127", SCALE, |o| groups(o, largest)),
    Row("scale_formula", "127 / max |x|", SCALE, |o| groups(o, |row| 127.0 / largest(row))),
    Row("scale_formula", "the mean of |x| / 127", SCALE, |o| {
        groups(o, |row| row.iter().map(|x| x.abs()).sum::<f64>() / row.len() as f64 / 127.0)
    }),
    Row("scale_formula", "(max x − min x) / 255", SCALE, |o| {
        groups(o, |row| {
            let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            (most - row.iter().copied().fold(f64::INFINITY, f64::min)) / 255.0
        })
    }),
    Row("scale_formula", "(max x − min x) / 127", SCALE, |o| {
        groups(o, |row| {
            let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            (most - row.iter().copied().fold(f64::INFINITY, f64::min)) / 127.0
        })
    }),
    Row("scale_formula", "the RMS / 127", SCALE, |o| {
        groups(o, |row| (row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64).sqrt() / 127.0)
    }),
    Row("scale_formula", "|min x| / 127", SCALE, |o| {
        groups(o, |row| row.iter().copied().fold(f64::INFINITY, f64::min).abs() / 127.0)
    }),
    Row("scale_formula", "|Σ x| / 127", SCALE, |o| groups(o, |row| row.iter().sum::<f64>().abs() / 127.0)),
    Row("scale_groups", "one scale for a whole row", SCALE, |o| {
        let x = o.x()?;
        Some(o.cells(|at| x.index_axis(Axis(0), at[0]).fold(0.0, |most: f64, x| most.max(x.abs())) / 127.0))
    }),
    Row("scale_groups", "one scale for all values", SCALE, |o| {
        let most = o.x()?.fold(0.0, |most: f64, x| most.max(x.abs()));
        Some(o.cells(|_| most / 127.0))
    }),
    Row("scale_groups", "groups over the tokens", SCALE, |o| {
        let x = o.x()?;
        let most = reduced(x, Some(0), |row| row.fold(0.0, |most: f64, x| most.max(x.abs())));
        let group = o.sizes.group?;
        Some(o.cells(|at| {
            let end = ((at[1] + 1) * group).min(x.shape()[1]);
            (at[1] * group..end).map(|i| most[IxDyn(&[0, i])]).fold(0.0, f64::max) / 127.0
        }))
    }),
    Row("scale_groups", "every value of the group's number, in steps (a strided group)", SCALE, |o| {
        let x = o.x()?;
        let count = o.shape[1];
        Some(o.cells(|at| {
            let row = x.index_axis(Axis(0), at[0]);
            let part = row.slice_axis(Axis(0), Slice::new(at[1] as isize, None, count as isize));
            part.fold(0.0, |most: f64, x| most.max(x.abs())) / 127.0
        }))
    }),
    Row("scale_groups", "the first value of each group alone", SCALE, |o| {
        groups(o, |row| row.first().map_or(0.0, |x| x.abs()) / 127.0)
    }),
    Row("scale_groups", "the groups in reverse", SCALE, |o| {
        groups(o, |row| largest(row) / 127.0).map(|x| reversed(&x, 1))
    }),
    Row("step_rounding", "towards 0 (truncated)", STEPS, |o| steps(o, f64::trunc)),
    Row("step_rounding", "down (floor)", STEPS, |o| steps(o, f64::floor)),
    Row("step_rounding", "up (ceil)", STEPS, |o| steps(o, f64::ceil)),
    Row("step_rounding", "not at all", STEPS, |o| steps(o, |x| x)),
    Row("step_rounding", "down after adding ½ to the magnitude and losing the sign", STEPS, |o| {
        steps(o, |x| (x.abs() + 0.5).floor())
    }),
    Row("step_rounding", "towards 0 after adding ½, also below 0", STEPS, |o| {
        steps(o, |x| (x + 0.5).trunc())
    }),
    Row("step_range", "0 to 255 (128 was added)", STEPS, |o| steps(o, |x| x.round() + 128.0)),
    Row("step_range", "0 to 127: negative values became 0", STEPS, |o| steps(o, |x| x.round().max(0.0))),
    Row("step_range", "−64 to 63", STEPS, |o| steps(o, |x| x.round().clamp(-64.0, 63.0))),
    Row("step_range", "−8 to 7, as for int4", STEPS, |o| steps(o, |x| x.round().clamp(-8.0, 7.0))),
    Row("step_range", "−1 to 1: the scale was multiplied by 127 again", STEPS, |o| {
        steps(o, |x| (x / 127.0).round())
    }),
    Row("step_range", "their negatives", STEPS, |o| steps(o, |x| -x.round())),
    Row("step_scale", "x · scale in place of x / scale", STEPS, |o| {
        let (x, scales, group) = (o.x()?, o.input(1)?, o.sizes.group?);
        Some(o.cells(|at| (x[IxDyn(at)] * scales[IxDyn(&[at[0], at[1] / group])]).round()))
    }),
    Row("step_scale", "the scale of the first group for the whole row", STEPS, |o| {
        scaled(o, |scales, [t, _], _| Some(scales[IxDyn(&[t, 0])]))
    }),
    Row("step_scale", "the scale of the last group for the whole row", STEPS, |o| {
        scaled(o, |scales, [t, _], _| Some(scales[IxDyn(&[t, scales.shape()[1] - 1])]))
    }),
    Row("step_scale", "the largest scale of the row", STEPS, |o| {
        scaled(o, |scales, [t, _], _| {
            Some(scales.index_axis(Axis(0), t).fold(0.0, |most: f64, x| most.max(*x)))
        })
    }),
    Row("step_scale", "the first token's scales for every token", STEPS, |o| {
        scaled(o, |scales, [_, i], group| Some(scales[IxDyn(&[0, i / group])]))
    }),
    Row("step_scale", "the scale number i mod groups (a strided group)", STEPS, |o| {
        scaled(o, |scales, [t, i], _| Some(scales[IxDyn(&[t, i % scales.shape()[1]])]))
    }),
    Row("step_scale", "the groups in reverse", STEPS, |o| {
        scaled(o, |scales, [t, i], group| {
            let last = scales.shape()[1] - 1;
            Some(scales[IxDyn(&[t, last - i / group])])
        })
    }),
    Row("step_scale", "the mean scale of the row", STEPS, |o| {
        scaled(o, |scales, [t, _], _| scales.index_axis(Axis(0), t).mean())
    }),
    Row("step_scale", "no scale: x itself was rounded", STEPS, |o| scaled(o, |_, _, _| Some(1.0))),
];
