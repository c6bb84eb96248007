//! Where a number comes from, and what added to a logit: operands, read from the run and from the model's weights.

use std::ops::Range;

use ndarray::ArrayD;

use super::{Worker, missing};
use crate::backend::{Backend, WholeRows};
use crate::error::Result;
use crate::explain::{Drawing, Line, Operands, Place, Rules, attribute, explain};
use crate::generate::Sampling;
use crate::ops;
use crate::trace::block::index_of;
use crate::trace::explanation::{Explanation, ExplanationAt};
use crate::trace::frame::FrameData;
use crate::trace::lens::{Attribution, AttributionAt};
use crate::trace::{PassDims, Region, Run, Site, WeightRows};

impl<B: Backend> Worker<'_, B> {
    /// Takes a number apart.
    pub(super) fn explanation(&mut self, at: &ExplanationAt) -> Result<Explanation> {
        self.dims(at.site)?;
        explain(&self.rules(), at.site, at.at, at.terms, self)
    }

    /// What each part of the model added to a logit.
    pub(super) fn attribution(&mut self, at: &AttributionAt) -> Result<Attribution> {
        self.dims(at.site)?;
        attribute(&self.rules(), at, self)
    }

    /// The rules of what has run so far.
    fn rules(&self) -> Rules {
        let model = self.session.model;
        let Sampling { temperature, top_k, top_p, .. } = self.session.sequence.sampling();
        let drawing = Drawing { temperature, top_k, top_p };
        let mut rules = Rules::new(model.card(), model.backend.cache_dtype(), drawing);
        // A token is drawn after each pass.
        for (draw, pass) in (0..).zip(&self.passes) {
            let random = (temperature > 0.0).then(|| self.session.sequence.random(draw));
            rules.push(pass.dims, random);
        }
        rules
    }
}

impl<B: Backend> Operands for Worker<'_, B> {
    fn numbers(&mut self, line: Line) -> Result<Vec<f32>> {
        self.session.model.backend.stop().check()?;
        match line.place {
            Place::Stage(site) => self.stage_numbers(site, line),
            Place::Weight(..) => {
                let (rows, first) = self.rows_of(line);
                let values = self.session.model.rows(&rows)?;
                Ok(line.cells().map(|cell| values[cell.at - first]).collect())
            }
        }
    }

    fn whole(&mut self, row: Line, x: &[i8], scales: &[f32], group: usize) -> Result<(Vec<f32>, f32)> {
        let (rows, _) = self.rows_of(row);
        let model = self.session.model;
        let (mut weights, mut product) = (Vec::new(), f32::NAN);
        model.int8_rows(&rows, &mut |whole| {
            (weights, product) = match whole {
                WholeRows::Int8(row) => {
                    let mut weights = vec![0.0; row.values.len()];
                    row.dequantize(0, &mut weights);
                    (weights, ops::quantize::dot(x, scales, group, row))
                }
                WholeRows::Blocks(blocks) => (model.rows(&rows)?, (blocks.dot)(x, scales, blocks.row(0))),
            };
            Ok(())
        })?;
        Ok((weights, product))
    }
}

impl<B: Backend> Worker<'_, B> {
    /// Values of a stage: of the smallest block that has them.
    fn stage_numbers(&mut self, site: Site, line: Line) -> Result<Vec<f32>> {
        if line.count == 0 {
            return Ok(Vec::new());
        }
        let (dims, sizes) = self.dims(site)?;
        let block = self.block(site, &spanned(&sizes.shape(site.stage.axes(), dims), line))?;
        let mut numbers = Vec::with_capacity(line.count);
        while numbers.len() < line.count {
            let run = block.run(line.cell(numbers.len()).at).ok_or_else(|| missing(site))?;
            let left = line.count - numbers.len();
            match &block.frame.data {
                FrameData::F32(array) => taken(&mut numbers, array, run, line.step, left, |x| x),
                FrameData::I64(array) => taken(&mut numbers, array, run, line.step, left, |x| x as f32),
                FrameData::I8(array) => taken(&mut numbers, array, run, line.step, left, f32::from),
            }
        }
        Ok(numbers)
    }

    /// The rows of a weight that a line is in, and the number of their first value.
    fn rows_of(&self, line: Line) -> (WeightRows, usize) {
        let Place::Weight(layer, weight) = line.place else { unreachable!("{} is no weight", line.place) };
        let nothing = PassDims { pass: 0, start: 0, tokens: 0 };
        let width = match weight.axes() {
            [_, inputs] => self.session.model.sizes().axis(*inputs, nothing),
            axes => axes.iter().map(|&axis| self.session.model.sizes().axis(axis, nothing)).product(),
        };
        let last = line.first + line.count.saturating_sub(1) * line.step;
        let rows = line.first / width..last / width + 1;
        let first = rows.start * width;
        (WeightRows { run: Run::ITSELF, layer, weight, rows }, first)
    }
}

/// The smallest region of a stage of `shape` that has all of a line, of which there is some.
fn spanned(shape: &[usize], line: Line) -> Region {
    let (first, last) = (index_of(shape, line.first), index_of(shape, line.cell(line.count - 1).at));
    let differing = first.iter().zip(&last).position(|(a, b)| a != b).unwrap_or(shape.len());
    let inner: usize = shape.iter().skip(differing + 1).product();
    let of_axis = |axis: usize| match axis {
        // What steps from one index of the differing axis to another stays where it is on those within.
        _ if axis > differing && line.step % inner != 0 => 0..shape[axis],
        _ => first[axis]..last[axis] + 1,
    };
    Region((0..shape.len()).map(of_axis).collect())
}

/// Adds every `step`-th value of a run of a block, `most` at the most.
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
