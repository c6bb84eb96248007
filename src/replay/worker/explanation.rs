//! Where a number comes from: its operands, read from the run and from the model's weights.

use super::{Worker, missing};
use crate::backend::{Backend, WholeRows};
use crate::error::Result;
use crate::explain::{Drawing, Line, Operands, Place, Rules, explain};
use crate::generate::Sampling;
use crate::ops;
use crate::trace::explanation::{Explanation, ExplanationAt};
use crate::trace::frame::Number;
use crate::trace::{PassDims, Region, Run, Site, WeightRows};

impl<B: Backend> Worker<'_, B> {
    /// Takes a number apart.
    pub(super) fn explanation(&mut self, at: &ExplanationAt) -> Result<Explanation> {
        self.dims(at.site)?;
        let model = self.session.model;
        let Sampling { temperature, top_k, top_p, .. } = self.session.sequence.sampling();
        let drawing = Drawing { temperature, top_k, top_p };
        let mut rules = Rules::new(model.card(), model.backend.cache_dtype(), drawing);
        // A token is drawn after each pass.
        for (draw, pass) in (0..).zip(&self.passes) {
            let random = (temperature > 0.0).then(|| self.session.sequence.random(draw));
            rules.push(pass.dims, random);
        }
        explain(&rules, at.site, at.at, at.terms, self)
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
        let (dims, sizes) = self.dims(site)?;
        let shape = sizes.shape(site.stage.axes(), dims);
        let indices: Vec<Vec<usize>> = line.cells().map(|cell| index(&shape, cell.at)).collect();
        let Some(first) = indices.first() else { return Ok(Vec::new()) };
        let mut region: Vec<_> = first.iter().map(|&index| index..index + 1).collect();
        for index in &indices {
            for (range, &index) in region.iter_mut().zip(index) {
                *range = range.start.min(index)..range.end.max(index + 1);
            }
        }
        let block = self.block(site, &Region(region))?;
        let value = |index: &Vec<usize>| match block.get(index) {
            Some(Number::F32(value)) => Ok(value),
            Some(Number::I64(value)) => Ok(value as f32),
            None => Err(missing(site)),
        };
        indices.iter().map(value).collect()
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

/// The index, on each axis, of value `at` of a tensor of `shape`, counted row-major.
fn index(shape: &[usize], mut at: usize) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (index, &length) in index.iter_mut().zip(shape).rev() {
        *index = at % length.max(1);
        at /= length.max(1);
    }
    index
}
