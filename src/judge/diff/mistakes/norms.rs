//! Mistakes of RMSNorm as whole tensors.

use super::whole::{Array, Of, Operands, Row, last, mean_square, reduced};
use llama_trace_core::trace::Op;

const NORM: Of = Of::Op(Op::RmsNorm);

/// x divided by something, times the weight.
fn divided(o: &Operands, by: impl Fn(&Array) -> Array) -> Option<Array> {
    Some(o.x()? / &by(o.x()?) * o.w()?)
}

/// √(mean x² + ε).
fn rms(o: &Operands, x: &Array) -> Array {
    (mean_square(x, Some(last(x))) + o.eps()).mapv(f64::sqrt)
}

pub(super) const ROWS: &[Row] = &[
    Row("wrong_axis", "the mean of RMSNorm over the tokens", NORM, |o| {
        divided(o, |x| (mean_square(x, Some(0)) + o.eps()).mapv(f64::sqrt))
    }),
    Row("wrong_axis", "the mean of RMSNorm over all values at once", NORM, |o| {
        divided(o, |x| (mean_square(x, None) + o.eps()).mapv(f64::sqrt))
    }),
    Row("wrong_axis", "the mean of RMSNorm over the heads", NORM, |o| {
        let x = o.x().filter(|x| x.ndim() == 3)?;
        divided(o, |_| (mean_square(x, Some(1)) + o.eps()).mapv(f64::sqrt))
    }),
    Row("wrong_axis", "the mean of RMSNorm over the heads and their components", NORM, |o| {
        let x = o.x().filter(|x| x.ndim() == 3)?;
        divided(o, |_| {
            (mean_square(&mean_square(x, Some(2)).mapv(f64::sqrt), Some(1)) + o.eps()).mapv(f64::sqrt)
        })
    }),
    Row("eps_place", "to the root", NORM, |o| {
        divided(o, |x| mean_square(x, Some(last(x))).mapv(f64::sqrt) + o.eps())
    }),
    Row("eps_place", "as a lower bound of the root", NORM, |o| {
        divided(o, |x| mean_square(x, Some(last(x))).mapv(|square| square.sqrt().max(o.eps())))
    }),
    Row("eps_place", "as a lower bound of the mean", NORM, |o| {
        divided(o, |x| mean_square(x, Some(last(x))).mapv(|square| square.max(o.eps()).sqrt()))
    }),
    Row("eps_place", "to the sum of the squares, before the mean", NORM, |o| {
        divided(o, |x| (mean_square(x, Some(last(x))) + o.eps() / x.shape()[last(x)] as f64).mapv(f64::sqrt))
    }),
    Row("eps_place", "to every x before its square", NORM, |o| {
        divided(o, |x| mean_square(&(x + o.eps()), Some(last(x))).mapv(f64::sqrt))
    }),
    Row("eps_place", "squared", NORM, |o| {
        divided(o, |x| (mean_square(x, Some(last(x))) + o.eps() * o.eps()).mapv(f64::sqrt))
    }),
    Row("norm_sum", "", NORM, |o| {
        divided(o, |x| reduced(x, Some(last(x)), |row| (row.dot(&row) + o.eps()).sqrt()))
    }),
    Row("norm_sum", "without ε", NORM, |o| {
        divided(o, |x| reduced(x, Some(last(x)), |row| row.dot(&row).sqrt()))
    }),
    Row("norm_sum", "ε outside the root", NORM, |o| {
        divided(o, |x| reduced(x, Some(last(x)), |row| row.dot(&row).sqrt()) + o.eps())
    }),
    Row("norm_divisor", "the mean square, without its root", NORM, |o| {
        divided(o, |x| mean_square(x, Some(last(x))) + o.eps())
    }),
    Row("norm_divisor", "the mean of |x|", NORM, |o| {
        divided(o, |x| {
            reduced(x, Some(last(x)), |row| row.fold(0.0, |a, b| a + b.abs()) / row.len() as f64) + o.eps()
        })
    }),
    Row("norm_divisor", "the sum of |x|", NORM, |o| {
        divided(o, |x| reduced(x, Some(last(x)), |row| row.fold(0.0, |a, b| a + b.abs())) + o.eps())
    }),
    Row("norm_divisor", "the largest |x|", NORM, |o| {
        divided(o, |x| reduced(x, Some(last(x)), |row| row.fold(0.0, |a: f64, b| a.max(b.abs()))) + o.eps())
    }),
    Row("norm_divisor", "the standard deviation, without subtracting the mean", NORM, |o| {
        divided(o, |x| {
            let mean = reduced(x, Some(last(x)), |row| row.sum() / row.len() as f64);
            (mean_square(&(x - &mean), Some(last(x))) + o.eps()).mapv(f64::sqrt)
        })
    }),
    Row("norm_divisor", "the root of the squared mean", NORM, |o| {
        divided(o, |x| {
            reduced(x, Some(last(x)), |row| (row.sum() / row.len() as f64).powi(2) + o.eps()).mapv(f64::sqrt)
        })
    }),
    Row("norm_divisor", "the root of the sum over D − 1", NORM, |o| {
        divided(o, |x| {
            let by = |row: ndarray::ArrayView1<'_, f64>| row.dot(&row) / (row.len() as f64 - 1.0) + o.eps();
            reduced(x, Some(last(x)), by).mapv(f64::sqrt)
        })
    }),
    Row("norm_divisor", "its inverse", NORM, |o| divided(o, |x| rms(o, x).mapv(f64::recip))),
    Row("layer_norm", "the divisor has the mean, x does not", NORM, |o| {
        let x = o.x()?;
        let mean = reduced(x, Some(last(x)), |row| row.sum() / row.len() as f64);
        Some((x - &mean) / &rms(o, x) * o.w()?)
    }),
    Row("norm_weight_use", "divided by the weight", NORM, |o| {
        let x = o.x()?;
        Some(x / &rms(o, x) / o.w()?)
    }),
    Row("norm_weight_use", "added the weight", NORM, |o| {
        let x = o.x()?;
        Some(x / &rms(o, x) + o.w()?)
    }),
    Row("norm_weight_use", "multiplied by the weight before the mean", NORM, |o| {
        let x = o.x()? * o.w()?;
        Some(&x / &rms(o, &x))
    }),
    Row("norm_weight_use", "multiplied by the weight twice", NORM, |o| {
        divided(o, |x| rms(o, x)).map(|y| y * &o.weights[0])
    }),
];
