//! Results of the plain functions of [`llama_trace_core::ops`] in an arithmetic, as references for kernels.

use std::ops::Range;

use rayon::prelude::*;

use super::cells::weight_rows;
use llama_trace_core::config::{Arithmetic, Precision};
use llama_trace_core::error::Result;
use llama_trace_core::explain::Place;
use llama_trace_core::ops;
use llama_trace_core::ops::quantize::Quantized;
use llama_trace_engine::backend::WholeRows;
use llama_trace_engine::model::Model;

/// Products of all tokens with some rows of a matrix, (rows, tokens), computed by [`ops::matmul`] and
/// [`ops::quantize`]. They are rounded to the precision and have no bias.
pub(super) struct Products {
    pub(super) rows: Range<usize>,
    pub(super) values: Vec<f32>,
    /// The largest term of each product.
    pub(super) largest: Vec<f64>,
}

/// The products of `x` (tokens, inputs) with `rows` of `matrix`.
pub(super) fn products(
    arithmetic: Arithmetic,
    model: &Model,
    matrix: Place,
    rows: Range<usize>,
    x: &[f32],
    inputs: usize,
) -> Result<Products> {
    let precision = model.backend.precision();
    let tokens = x.len() / inputs;
    let mut all = Products {
        values: vec![0.0; rows.len() * tokens],
        largest: vec![0.0; rows.len() * tokens],
        rows: rows.clone(),
    };
    let Some(at) = weight_rows(matrix, rows.clone()) else { return Ok(all) };
    let mut fill = |product: &(dyn Fn(usize, usize) -> (f32, f64) + Sync)| {
        let out = all.values.par_iter_mut().zip(&mut all.largest).enumerate();
        out.try_for_each(|(i, (value, largest))| {
            model.backend.stop().check()?;
            (*value, *largest) = product(i / tokens, i % tokens);
            Ok(())
        })
    };
    if let Precision::Q8 { group } = precision {
        let (q8, scales) = quantized(x, inputs, group);
        let groups = inputs.div_ceil(group);
        model.int8_rows(&at, &mut |all: WholeRows<'_>| {
            fill(&|row, token| {
                let (q8, scales) = (&q8[token * inputs..][..inputs], &scales[token * groups..][..groups]);
                let value = match all {
                    WholeRows::Int8(all) => {
                        let values = &all.values[row * inputs..(row + 1) * inputs];
                        let w = Quantized { values, first: all.first + row * inputs, ..all };
                        arithmetic.dot_int8(q8, scales, group, w)
                    }
                    WholeRows::Blocks(blocks) => blocks.product(arithmetic, q8, scales, row),
                };
                (value, 0.0)
            })
        })?;
    } else {
        let weights = model.rows(&at)?;
        fill(&|row, token| {
            let (x, w) = (&x[token * inputs..][..inputs], &weights[row * inputs..][..inputs]);
            let value = ops::round::value(precision, arithmetic.dot(x, w));
            let terms = x.iter().zip(w).map(|(x, w)| (x * w).abs());
            let largest = if precision == Precision::Bf16 { terms.fold(0.0, f32::max) } else { 0.0 };
            (value, f64::from(largest))
        })?;
    }
    Ok(all)
}

/// The int8 values and the scales of rows of `width` values.
pub(super) fn quantized(x: &[f32], width: usize, group: usize) -> (Vec<i8>, Vec<f32>) {
    let groups = width.div_ceil(group);
    let (mut values, mut scales) = (vec![0; x.len()], vec![0.0; x.len() / width * groups]);
    let rows = values.chunks_exact_mut(width).zip(scales.chunks_exact_mut(groups));
    for (x, (values, scales)) in x.chunks_exact(width).zip(rows) {
        ops::quantize::quantize(x, group, values, scales);
    }
    (values, scales)
}
