//! Mistakes of RoPE as whole tensors: its table and its rotation.

use std::f64::consts::{PI, TAU};

use ndarray::IxDyn;

use super::whole::{Array, Of, Operands, Row, reversed};
use llama_trace_core::config::Pairing;
use llama_trace_core::trace::{Op, Stage};

const TABLE: Of = Of::Op(Op::RopeTable);
const ROPE: Of = Of::Op(Op::Rope);

/// C, or the number of components that RoPE rotates, and θ of the layer.
fn own_base(o: &Operands) -> (f64, f64) {
    let rope = o.site.layer.and_then(|layer| o.config.rope_of(layer)).unwrap_or(0);
    (o.config.turned() as f64, f64::from(o.config.rope(rope).theta))
}

/// cos or sin of position · frequency. `frequency` gets i, C and θ.
fn table(o: &Operands, position: impl Fn(usize) -> f64, frequency: fn(f64, f64, f64) -> f64) -> Array {
    let (c, theta) = own_base(o);
    o.cells(|at| {
        let angle = position(at[0]) * frequency(at[1] as f64, c, theta);
        if o.site.stage.first_of_name() == Stage::RopeSin { angle.sin() } else { angle.cos() }
    })
}

fn plain(i: f64, c: f64, theta: f64) -> f64 {
    theta.powf(-2.0 * i / c)
}

/// Another frequency at the right positions.
fn frequency(o: &Operands, frequency: fn(f64, f64, f64) -> f64) -> Option<Array> {
    Some(table(o, |t| (o.dims.start + t) as f64, frequency))
}

/// Every pair rotated by `turn`, which gets a, b, cos and sin of the rows that `row` names. Components that RoPE does not
/// rotate stay as they are.
fn turned(
    o: &Operands,
    row: impl Fn(usize, usize) -> usize,
    turn: fn(f64, f64, f64, f64) -> (f64, f64),
) -> Option<Array> {
    let (x, cos, sin) = (o.x()?, o.input(1)?, o.input(2)?);
    let (c, half) = (o.config.turned(), o.config.turned() / 2);
    let rows = cos.shape()[0];
    let is_there = (0..x.shape()[0]).all(|t| (0..x.shape()[1]).all(|h| row(t, h) < rows));
    is_there.then(|| {
        o.cells(|at| {
            let [t, h, component] = [at[0], at[1], at[2]];
            if component >= c {
                return x[IxDyn(&[t, h, component])];
            }
            let (pair, [a, b]) = places(o.config.pairing, component, c);
            let value = |i: usize| x[IxDyn(&[t, h, i])];
            let angle = |of: &Array| of[IxDyn(&[row(t, h), pair.min(half - 1)])];
            let (one, other) = turn(value(a), value(b), angle(cos), angle(sin));
            if component == a { one } else { other }
        })
    })
}

/// The number of a component's pair, and the pair's two components.
fn places(pairing: Pairing, component: usize, c: usize) -> (usize, [usize; 2]) {
    match pairing {
        Pairing::Halves => (component % (c / 2), [component % (c / 2), component % (c / 2) + c / 2]),
        Pairing::Neighbours => (component / 2, [component / 2 * 2, component / 2 * 2 + 1]),
    }
}

/// The right rows.
fn own(t: usize, _: usize) -> usize {
    t
}

fn rotate(a: f64, b: f64, cos: f64, sin: f64) -> (f64, f64) {
    (a * cos - b * sin, a * sin + b * cos)
}

pub(super) const ROWS: &[Row] = &[
    Row("rope_frequency", "θ^(−i/C)", TABLE, |o| frequency(o, |i, c, theta| theta.powf(-i / c))),
    Row("rope_frequency", "θ^(2i/C)", TABLE, |o| frequency(o, |i, c, theta| theta.powf(2.0 * i / c))),
    Row("rope_frequency", "θ^(−4i/C)", TABLE, |o| frequency(o, |i, c, theta| theta.powf(-4.0 * i / c))),
    Row("rope_frequency", "θ^(−2(i + 1)/C)", TABLE, |o| {
        frequency(o, |i, c, theta| theta.powf(-2.0 * (i + 1.0) / c))
    }),
    Row("rope_frequency", "2π · θ^(−2i/C)", TABLE, |o| {
        frequency(o, |i, c, theta| TAU * plain(i, c, theta))
    }),
    Row("rope_frequency", "θ^(−2i/C) in degrees", TABLE, |o| {
        frequency(o, |i, c, theta| plain(i, c, theta) * PI / 180.0)
    }),
    Row("rope_frequency", "1 for every pair", TABLE, |o| frequency(o, |_, _, _| 1.0)),
    Row("rope_frequency", "θ^(−2i/C) with the pairs in reverse", TABLE, |o| {
        frequency(o, |i, c, theta| plain(c / 2.0 - 1.0 - i, c, theta))
    }),
    Row("rope_frequency", "1 / (θ · 2i/C)", TABLE, |o| {
        frequency(o, |i, c, theta| 1.0 / (theta * 2.0 * i / c))
    }),
    Row("rope_frequency", "e^(−2i/C)", TABLE, |o| frequency(o, |i, c, _| (-2.0 * i / c).exp())),
    Row("rope_frequency", "θ^(−2i/D) of the whole width", TABLE, |o| {
        let (c, theta) = own_base(o);
        let theta = theta.powf(c / o.sizes.dim as f64);
        Some(o.cells(|at| {
            let angle = (o.dims.start + at[0]) as f64 * plain(at[1] as f64, c, theta);
            if o.site.stage.first_of_name() == Stage::RopeSin { angle.sin() } else { angle.cos() }
        }))
    }),
    Row("position_offset", "counted backwards", TABLE, |o| {
        Some(table(o, |t| (o.dims.keys() - 1 - t) as f64, plain))
    }),
    Row("position_offset", "the same position for every token", TABLE, |o| {
        Some(table(o, |_| o.dims.start as f64, plain))
    }),
    Row("cos_sin_swapped", "", TABLE, |o| {
        let (c, theta) = own_base(o);
        Some(o.cells(|at| {
            let angle = (o.dims.start + at[0]) as f64 * plain(at[1] as f64, c, theta);
            if o.site.stage.first_of_name() == Stage::RopeSin { angle.cos() } else { angle.sin() }
        }))
    }),
    Row("cos_sin_swapped", "", ROPE, |o| turned(o, own, |a, b, cos, sin| rotate(a, b, sin, cos))),
    Row("rope_formula", "(a·cos + b·sin, a·sin + b·cos)", ROPE, |o| {
        turned(o, own, |a, b, cos, sin| (a * cos + b * sin, a * sin + b * cos))
    }),
    Row("rope_formula", "(a·cos − b·sin, a·sin − b·cos)", ROPE, |o| {
        turned(o, own, |a, b, cos, sin| (a * cos - b * sin, a * sin - b * cos))
    }),
    Row("rope_formula", "(a·cos − b·sin, b·cos − a·sin)", ROPE, |o| {
        turned(o, own, |a, b, cos, sin| (a * cos - b * sin, b * cos - a * sin))
    }),
    Row("rope_formula", "(a·cos, b·sin)", ROPE, |o| turned(o, own, |a, b, cos, sin| (a * cos, b * sin))),
    Row("rope_formula", "(a·cos, b·cos)", ROPE, |o| turned(o, own, |a, b, cos, _| (a * cos, b * cos))),
    Row("rope_formula", "(a·cos − b·sin, a·cos + b·sin)", ROPE, |o| {
        turned(o, own, |a, b, cos, sin| (a * cos - b * sin, a * cos + b * sin))
    }),
    Row("rope_formula", "the second of a pair from the first that is already rotated", ROPE, |o| {
        turned(o, own, |a, b, cos, sin| {
            let first = a * cos - b * sin;
            (first, first * sin + b * cos)
        })
    }),
    Row("rope_formula", "the two results exchanged", ROPE, |o| {
        turned(o, own, |a, b, cos, sin| (a * sin + b * cos, a * cos - b * sin))
    }),
    Row("rope_formula", "only the first of each pair", ROPE, |o| {
        turned(o, own, |a, b, cos, sin| (a * cos - b * sin, b))
    }),
    Row("rope_rows", "of the first token for every token", ROPE, |o| turned(o, |_, _| 0, rotate)),
    Row("rope_rows", "of the head's number", ROPE, |o| turned(o, |_, h| h, rotate)),
    Row("rope_rows", "of the token before", ROPE, |o| turned(o, |t, _| t.saturating_sub(1), rotate)),
    Row("rope_rows", "of the tokens in reverse", ROPE, |o| {
        let (cos, sin) = (reversed(o.input(1)?, 0), reversed(o.input(2)?, 0));
        let rows = cos.shape()[0];
        debug_assert_eq!(sin.shape()[0], rows, "one row for each token");
        turned(o, |t, _| rows - 1 - t, rotate)
    }),
    Row("rope_rows", "with the pairs in reverse", ROPE, |o| {
        let half = o.sizes.head_dim / 2;
        let (x, cos, sin) = (o.x()?, reversed(o.input(1)?, 1), reversed(o.input(2)?, 1));
        Some(o.cells(|at| {
            let (pair, [a, b]) = places(o.config.pairing, at[2], 2 * half);
            let value = |i: usize| x[IxDyn(&[at[0], at[1], i])];
            let angle = |of: &Array| of[IxDyn(&[at[0], pair])];
            let (one, other) = rotate(value(a), value(b), angle(&cos), angle(&sin));
            if at[2] == a { one } else { other }
        }))
    }),
    Row("rope_pairing", "neighbours are rotated and written as halves", ROPE, |o| {
        let (x, cos, sin) = (o.x()?, o.input(1)?, o.input(2)?);
        let half = o.sizes.head_dim / 2;
        Some(o.cells(|at| {
            let pair = at[2] % half;
            let value = |i: usize| x[IxDyn(&[at[0], at[1], i])];
            let angle = |of: &Array| of[IxDyn(&[at[0], pair])];
            let (one, other) = rotate(value(2 * pair), value(2 * pair + 1), angle(cos), angle(sin));
            if at[2] < half { one } else { other }
        }))
    }),
    Row("rope_pairing", "halves are rotated and written as neighbours", ROPE, |o| {
        let (x, cos, sin) = (o.x()?, o.input(1)?, o.input(2)?);
        let half = o.sizes.head_dim / 2;
        Some(o.cells(|at| {
            let pair = at[2] / 2;
            let value = |i: usize| x[IxDyn(&[at[0], at[1], i])];
            let angle = |of: &Array| of[IxDyn(&[at[0], pair])];
            let (one, other) = rotate(value(pair), value(pair + half), angle(cos), angle(sin));
            if at[2] % 2 == 0 { one } else { other }
        }))
    }),
    Row("rope_missing", "half of the pairs", ROPE, |o| {
        let x = o.x()?;
        let whole = turned(o, own, rotate)?;
        let half = o.sizes.head_dim / 2;
        Some(o.cells(|at| {
            let (pair, _) = places(o.config.pairing, at[2], 2 * half);
            if pair < half / 2 { whole[IxDyn(at)] } else { x[IxDyn(at)] }
        }))
    }),
];
