//! Reads the operands of an explanation: numbers of a stage from the smallest block that contains them, and numbers of
//! a weight from the model.

use std::ops::Range;

use ndarray::ArrayD;

use llama_trace_core::error::{Error, Result};
use llama_trace_core::explain::{Line, Place};
use llama_trace_core::trace::block::index_of;
use llama_trace_core::trace::frame::FrameData;
use llama_trace_core::trace::{Block, PassDims, Region, Run, WeightRows};
use llama_trace_engine::backend::WholeRows;
use llama_trace_engine::model::Model;

/// The numbers of a line of a stage with shape `shape`; `block` returns a block that contains a region of the stage.
///
/// # Errors
/// The errors of `block`.
pub(super) fn of_stage(
    line: Line,
    shape: &[usize],
    block: impl FnOnce(&Region) -> Result<Block>,
) -> Result<Vec<f32>> {
    if line.count == 0 {
        return Ok(Vec::new());
    }
    let block = block(&spanned(shape, line))?;
    let mut numbers = Vec::with_capacity(line.count);
    while numbers.len() < line.count {
        let run = block.run(line.cell(numbers.len()).at);
        let run = run.ok_or_else(|| Error::usage(format!("there is no {} in this run", line.place)))?;
        let left = line.count - numbers.len();
        match &block.frame.data {
            FrameData::F32(array) => taken(&mut numbers, array, run, line.step, left, |x| x),
            FrameData::I64(array) => taken(&mut numbers, array, run, line.step, left, |x| x as f32),
            FrameData::I8(array) => taken(&mut numbers, array, run, line.step, left, f32::from),
        }
    }
    Ok(numbers)
}

/// The numbers of a line of a weight.
///
/// # Errors
/// The errors of [`Model::rows`].
pub(super) fn of_weight(model: &Model, line: Line) -> Result<Vec<f32>> {
    let (rows, first) = rows_of(model, line);
    let values = model.rows(&rows)?;
    Ok(line.cells().map(|cell| values[cell.at - first]).collect())
}

/// Implements [`llama_trace_core::explain::Operands::whole`].
///
/// # Errors
/// The errors of [`Model::rows`].
pub(super) fn whole(
    model: &Model,
    row: Line,
    x: &[i8],
    scales: &[f32],
    group: usize,
) -> Result<(Vec<f32>, f32)> {
    let arithmetic = model.backend.arithmetic();
    let (rows, _) = rows_of(model, row);
    let (mut weights, mut product) = (Vec::new(), f32::NAN);
    model.int8_rows(&rows, &mut |whole| {
        (weights, product) = match whole {
            WholeRows::Int8(row) => {
                let mut weights = vec![0.0; row.values.len()];
                row.dequantize(0, &mut weights);
                (weights, arithmetic.dot_int8(x, scales, group, row))
            }
            WholeRows::Blocks(blocks) => (model.rows(&rows)?, blocks.product(arithmetic, x, scales, 0)),
        };
        Ok(())
    })?;
    Ok((weights, product))
}

/// The rows of a weight that contain a line, and the index of their first value.
fn rows_of(model: &Model, line: Line) -> (WeightRows, usize) {
    let Place::Weight(layer, weight) = line.place else { unreachable!("{} is not a weight", line.place) };
    let nothing = PassDims::default();
    let width = match weight.axes() {
        [_, inputs] => model.sizes().axis(*inputs, nothing),
        axes => axes.iter().map(|&axis| model.sizes().axis(axis, nothing)).product(),
    };
    let last = line.first + line.count.saturating_sub(1) * line.step;
    let rows = line.first / width..last / width + 1;
    let first = rows.start * width;
    (WeightRows { run: Run::ITSELF, layer, weight, rows }, first)
}

/// The smallest region of a stage of `shape` that contains all of a nonempty line.
fn spanned(shape: &[usize], line: Line) -> Region {
    let (first, last) = (index_of(shape, line.first), index_of(shape, line.cell(line.count - 1).at));
    let differing = first.iter().zip(&last).position(|(a, b)| a != b).unwrap_or(shape.len());
    let inner: usize = shape.iter().skip(differing + 1).product();
    let of_axis = |axis: usize| match axis {
        // If the step is a multiple of `inner`, the index on the inner axes stays the same.
        _ if axis > differing && !line.step.is_multiple_of(inner) => 0..shape[axis],
        _ => first[axis]..last[axis] + 1,
    };
    Region((0..shape.len()).map(of_axis).collect())
}

/// Adds every `step`-th value of the contiguous range `run` of a block, at most `most` values.
fn taken<T: Copy>(
    numbers: &mut Vec<f32>,
    array: &ArrayD<T>,
    run: Range<usize>,
    step: usize,
    most: usize,
    number: impl Fn(T) -> f32,
) {
    let values = array.as_slice().unwrap_or_default();
    numbers.extend(values[run].iter().step_by(step).take(most).map(|&value| number(value)));
}
