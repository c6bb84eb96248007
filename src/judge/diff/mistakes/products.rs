//! Mistakes of the products, the residual sums and the feed-forward network as whole tensors.

use ndarray::Axis;

use super::whole::{
    Array, Of, Operands, Row, last, mean_square, product, reduced, reshaped, reversed, silu, softmax,
};
use llama_trace_core::trace::{Op, Stage};

const LINEAR: Of = Of::Op(Op::Linear);
const LOGITS: Of = Of::Stages(&[Stage::Logits]);
const ADD: Of = Of::Op(Op::Add);
const SILU: Of = Of::Op(Op::Silu);
const MUL: Of = Of::Op(Op::Mul);

/// A product of the inputs that `x` makes of the right ones with the weights that `w` makes.
fn linear(o: &Operands, x: impl Fn(&Array) -> Array, w: impl Fn(&Array) -> Array) -> Option<Array> {
    product(&x(&rows(o)?), &w(o.w()?))
}

/// The inputs as rows of the matrix's width.
fn rows(o: &Operands) -> Option<Array> {
    let (x, width) = (o.x()?, *o.w()?.shape().last()?);
    reshaped(x, &[x.len() / width, width])
}

/// The right product.
fn right(o: &Operands) -> Option<Array> {
    product(o.x()?, o.w()?)
}

/// A function of the two terms of a sum, cell by cell.
fn sum(o: &Operands, value: impl Fn(f64, f64) -> f64) -> Option<Array> {
    let mut x = o.x()?.clone();
    x.zip_mut_with(o.input(1)?, |a, b| *a = value(*a, *b));
    Some(x)
}

fn same(x: &Array) -> Array {
    x.clone()
}

/// x / √(mean x²) along the last axis.
fn normed(x: &Array) -> Array {
    x / &mean_square(x, Some(last(x))).mapv(|square| (square + 1e-5).sqrt())
}

/// The operand of SiLU, through another function.
fn activated(o: &Operands, value: impl Fn(f64) -> f64) -> Option<Array> {
    o.x().map(|x| x.mapv(value))
}

pub(super) const ROWS: &[Row] = &[
    Row("product_scaled", "divided by √(the number of terms)", LINEAR, |o| {
        let terms = *o.w()?.shape().last()? as f64;
        right(o).map(|y| y / terms.sqrt())
    }),
    Row("product_scaled", "divided by the number of terms", LINEAR, |o| {
        let terms = *o.w()?.shape().last()? as f64;
        right(o).map(|y| y / terms)
    }),
    Row("product_scaled", "multiplied by √(the number of terms)", LINEAR, |o| {
        let terms = *o.w()?.shape().last()? as f64;
        right(o).map(|y| y * terms.sqrt())
    }),
    Row("product_scaled", "negated", LINEAR, |o| right(o).map(|y| -y)),
    Row("product_inputs", "the inputs were normalised first", LINEAR, |o| linear(o, normed, same)),
    Row("product_inputs", "the mean of each row was subtracted first", LINEAR, |o| {
        linear(o, |x| x - &reduced(x, Some(1), |row| row.sum() / row.len() as f64), same)
    }),
    Row("product_inputs", "the tokens are in reverse", LINEAR, |o| linear(o, |x| reversed(x, 0), same)),
    Row("product_inputs", "the components are in reverse", LINEAR, |o| linear(o, |x| reversed(x, 1), same)),
    Row("product_inputs", "every token has the first token's inputs", LINEAR, |o| {
        linear(
            o,
            |x| x.index_axis(Axis(0), 0).broadcast(x.raw_dim()).map_or_else(|| x.clone(), |x| x.to_owned()),
            same,
        )
    }),
    Row("product_inputs", "every token has the last token's inputs", LINEAR, |o| {
        let last = |x: &Array| {
            let row = x.index_axis(Axis(0), x.shape()[0] - 1);
            row.broadcast(x.raw_dim()).map_or_else(|| x.clone(), |x| x.to_owned())
        };
        linear(o, last, same)
    }),
    Row("product_inputs", "the rows were summed up (a running sum)", LINEAR, |o| {
        let mut y = right(o)?;
        y.accumulate_axis_inplace(Axis(0), |before, y| *y += before);
        Some(y)
    }),
    Row("product_inputs", "the last term is missing", LINEAR, |o| {
        let without = |x: &Array| {
            let mut x = x.clone();
            let end = x.shape()[1] - 1;
            x.index_axis_mut(Axis(1), end).fill(0.0);
            x
        };
        linear(o, without, same)
    }),
    Row("product_inputs", "the first term is missing", LINEAR, |o| {
        let without = |x: &Array| {
            let mut x = x.clone();
            x.index_axis_mut(Axis(1), 0).fill(0.0);
            x
        };
        linear(o, without, same)
    }),
    Row("product_inputs", "|x| in place of x", LINEAR, |o| linear(o, |x| x.mapv(f64::abs), same)),
    Row("product_weights", "the rows of the matrix are in reverse", LINEAR, |o| {
        linear(o, same, |w| reversed(w, 0))
    }),
    Row("product_weights", "the columns of the matrix are in reverse", LINEAR, |o| {
        linear(o, same, |w| reversed(w, 1))
    }),
    Row("product_weights", "the squares of the weights", LINEAR, |o| linear(o, same, |w| w.mapv(|w| w * w))),
    Row("product_weights", "|w| in place of w", LINEAR, |o| linear(o, same, |w| w.mapv(f64::abs))),
    Row("product_weights", "each row of the matrix has the length 1", LINEAR, |o| {
        linear(o, same, |w| w / &reduced(w, Some(1), |row| row.dot(&row).sqrt()))
    }),
    Row("product_weights", "1 was added to each weight", LINEAR, |o| linear(o, same, |w| w + 1.0)),
    Row("product_after", "ReLU", LINEAR, |o| right(o).map(|y| y.mapv(|y| y.max(0.0)))),
    Row("product_after", "SiLU", LINEAR, |o| right(o).map(|y| y.mapv(silu))),
    Row("product_after", "tanh", LINEAR, |o| right(o).map(|y| y.mapv(f64::tanh))),
    Row("product_after", "sigmoid", LINEAR, |o| right(o).map(|y| y.mapv(|y| 1.0 / (1.0 + (-y).exp())))),
    Row("product_after", "softmax", LINEAR, |o| right(o).map(|y| softmax(&y, Some(1)))),
    Row("product_after", "the logarithm of softmax", LINEAR, |o| {
        right(o).map(|y| softmax(&y, Some(1)).mapv(f64::ln))
    }),
    Row("product_after", "the division by the RMS of each row", LINEAR, |o| right(o).map(|y| normed(&y))),
    Row("product_after", "the maximum of each row was subtracted", LINEAR, |o| {
        let y = right(o)?;
        Some(&y - &reduced(&y, Some(1), |row| row.fold(f64::NEG_INFINITY, |a, b| a.max(*b))))
    }),
    Row("product_after", "the input was added", LINEAR, |o| {
        let (x, y) = (rows(o)?, right(o)?);
        (x.shape() == y.shape()).then(|| x + y)
    }),
    Row("last_row", "every token has the last token's logits", LOGITS, |o| {
        let y = right(o)?;
        let row = y.index_axis(Axis(0), y.shape()[0] - 1).to_owned();
        Some(row.broadcast(y.raw_dim())?.to_owned())
    }),
    Row("last_row", "the logits of the other tokens are 0", LOGITS, |o| {
        let mut y = right(o)?;
        (0..y.shape()[0] - 1).for_each(|t| y.index_axis_mut(Axis(0), t).fill(0.0));
        Some(y)
    }),
    Row("residual_missing", "the output of the sublayer is missing", ADD, |o| sum(o, |a, _| a)),
    Row("residual_formula", "x − y", ADD, |o| sum(o, |a, b| a - b)),
    Row("residual_formula", "y − x", ADD, |o| sum(o, |a, b| b - a)),
    Row("residual_formula", "x · y", ADD, |o| sum(o, |a, b| a * b)),
    Row("residual_formula", "(x + y) / 2", ADD, |o| sum(o, f64::midpoint)),
    Row("residual_formula", "(x + y) / √2", ADD, |o| {
        sum(o, |a, b| (a + b) * std::f64::consts::FRAC_1_SQRT_2)
    }),
    Row("residual_formula", "x + 2y", ADD, |o| sum(o, |a, b| a + 2.0 * b)),
    Row("residual_formula", "2x + y", ADD, |o| sum(o, |a, b| 2.0 * a + b)),
    Row("residual_formula", "the larger of x and y", ADD, |o| sum(o, f64::max)),
    Row("residual_formula", "x + |y|", ADD, |o| sum(o, |a, b| a + b.abs())),
    Row("residual_formula", "x + the norm of y", ADD, |o| Some(o.x()? + &normed(o.input(1)?))),
    Row("residual_formula", "the norm of x + y", ADD, |o| sum(o, |a, b| a + b).map(|x| normed(&x))),
    Row("residual_formula", "the norm of x, plus y", ADD, |o| Some(normed(o.x()?) + o.input(1)?)),
    Row("residual_formula", "ReLU of x + y", ADD, |o| sum(o, |a, b| (a + b).max(0.0))),
    Row("residual_formula", "y of the next token", ADD, |o| {
        let mut y = o.input(1)?.clone();
        let end = y.shape()[0];
        for t in 0..end {
            let row = o.input(1)?.index_axis(Axis(0), (t + 1) % end).to_owned();
            y.index_axis_mut(Axis(0), t).assign(&row);
        }
        Some(o.x()? + &y)
    }),
    Row("residual_formula", "y of the last token for every token", ADD, |o| {
        let y = o.input(1)?;
        Some(o.x()? + &y.index_axis(Axis(0), y.shape()[0] - 1))
    }),
    Row("residual_formula", "y with the tokens in reverse", ADD, |o| {
        Some(o.x()? + &reversed(o.input(1)?, 0))
    }),
    Row("residual_formula", "y with the components in reverse", ADD, |o| {
        Some(o.x()? + &reversed(o.input(1)?, 1))
    }),
    Row("residual_formula", "x + y / √D", ADD, |o| {
        let by = (o.sizes.dim as f64).sqrt();
        sum(o, |a, b| a + b / by)
    }),
    Row("activation", "x · sigmoid(−x)", SILU, |o| activated(o, |x| x / (1.0 + x.exp()))),
    Row("activation", "softplus", SILU, |o| activated(o, |x| x.max(0.0) + (-x.abs()).exp().ln_1p())),
    Row("activation", "ELU", SILU, |o| activated(o, |x| if x > 0.0 { x } else { x.exp_m1() })),
    Row("activation", "leaky ReLU", SILU, |o| activated(o, |x| if x > 0.0 { x } else { 0.01 * x })),
    Row("activation", "x² · sigmoid(x)", SILU, |o| activated(o, |x| x * silu(x))),
    Row("activation", "x + sigmoid(x)", SILU, |o| activated(o, |x| x + 1.0 / (1.0 + (-x).exp()))),
    Row("activation", "x · tanh(x)", SILU, |o| activated(o, |x| x * x.tanh())),
    Row("activation", "Mish", SILU, |o| activated(o, |x| x * (x.max(0.0) + (-x.abs()).exp().ln_1p()).tanh())),
    Row("activation", "hard swish", SILU, |o| activated(o, |x| x * ((x + 3.0) / 6.0).clamp(0.0, 1.0))),
    Row("activation", "x / (1 − e^−x)", SILU, |o| activated(o, |x| x / (1.0 - (-x).exp()))),
    Row("activation", "x / (1 + e^−|x|)", SILU, |o| activated(o, |x| x / (1.0 + (-x.abs()).exp()))),
    Row("activation", "x · softmax(x)", SILU, |o| Some(o.x()? * &softmax(o.x()?, Some(last(o.x()?))))),
    Row("activation_overflow", "in float32", SILU, |o| {
        activated(o, |x| if x.exp() > f64::from(f32::MAX) { f64::NAN } else { silu(x) })
    }),
    Row("activation_overflow", "in float64", SILU, |o| {
        activated(o, |x| if x.exp().is_infinite() { f64::NAN } else { silu(x) })
    }),
    Row("gating", "the two are added", MUL, |o| sum(o, |a, b| a + b)),
    Row("gating", "up is missing", MUL, |o| sum(o, |a, _| a)),
    Row("gating", "the gate is missing", MUL, |o| sum(o, |_, b| b)),
    Row("gating", "SiLU of up too", MUL, |o| sum(o, |a, b| a * silu(b))),
    Row("gating", "SiLU twice", MUL, |o| sum(o, |a, b| silu(a) * b)),
    Row("gating", "up plus 1", MUL, |o| sum(o, |a, b| a * (b + 1.0))),
    Row("gating", "divided by up", MUL, |o| sum(o, |a, b| a / b)),
    Row("gating", "the square of the gate", MUL, |o| sum(o, |a, b| a * a * b)),
    Row("gating", "the units of up in reverse", MUL, |o| Some(o.x()? * &reversed(o.input(1)?, 1))),
    Row("gating", "the tokens of up in reverse", MUL, |o| Some(o.x()? * &reversed(o.input(1)?, 0))),
];
