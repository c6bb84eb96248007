//! Two-dimensional slices of a tensor with precomputed strides, for views that read a million values.

use std::ops::Range;

use llama_trace_core::trace::Values;

use super::tensor::Tensor;

/// The values of a range of rows and columns; the other axes are held at one index.
#[derive(Clone, Copy, Debug)]
pub struct Plane<'a> {
    data: Values<'a>,
    /// The first row and column, and the offset of their value.
    origin: (usize, usize),
    first: usize,
    /// Strides of the rows and columns.
    steps: (usize, usize),
}

impl<'a> Plane<'a> {
    /// The plane with the rows on the axis `down` and the columns on the axis `across`, at `index` on other axes. None
    /// if a range is empty or the tensor's block does not cover the plane.
    pub fn new(
        tensor: &'a Tensor,
        index: &[usize],
        (down, across): (usize, Option<usize>),
        rows: &Range<usize>,
        columns: &Range<usize>,
    ) -> Option<Self> {
        let block = tensor.block();
        // Offset of a value in the frame. It is linear in the row and the column in every arrangement of a stage.
        let place = |row: usize, column: usize| {
            let mut index = index.to_vec();
            index[down] = row;
            if let Some(across) = across {
                index[across] = column;
            }
            tensor.get(&index)?;
            let index = tensor.step().index_in_stage(&index, &block.shape);
            let at = index.iter().zip(&block.shape).fold(0, |at, (index, length)| at * length + index);
            Some(block.run(at)?.start)
        };
        let (row, column) = (rows.start, columns.start);
        let (last_row, last_column) = (rows.end.checked_sub(1)?, columns.end.checked_sub(1)?);
        let (first, _) = (place(row, column)?, place(last_row, last_column)?);
        let step = |there: Option<usize>| there.map_or(0, |there| there - first);
        let steps = (
            step((row < last_row).then(|| place(row + 1, column)).flatten()),
            step((column < last_column).then(|| place(row, column + 1)).flatten()),
        );
        // The type of the numbers is matched once, not for each of a million values.
        let data = block.frame.values();
        Some(Self { data, origin: (row, column), first, steps })
    }

    /// The value in a row and a column of the ranges.
    pub fn get(&self, row: usize, column: usize) -> Option<f64> {
        let (down, across) = (row - self.origin.0, column - self.origin.1);
        let at = self.first + down * self.steps.0 + across * self.steps.1;
        match self.data {
            Values::F32(values) => values.get(at).map(|&value| f64::from(value)),
            Values::I64(values) => values.get(at).map(|&value| value as f64),
            Values::I8(values) => values.get(at).map(|&value| f64::from(value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ndarray::{ArrayD, IxDyn};

    use super::*;
    use llama_trace_core::trace::frame::{FrameData, Number};
    use llama_trace_core::trace::{Block, Frame, Region, Site, Stage, Step, View};

    /// Strides read the same values as single look-ups, in every arrangement and in blocks.
    #[test]
    fn even_steps_read_what_looking_up_reads() {
        let shape = [3, 4, 2];
        let steps = View::ALL.iter().map(|view| Step::View(*view)).chain([Step::Stage(Stage::Xq)]);
        for step in steps {
            let stage = step.stage();
            for region in [Region::whole(&shape), Region(vec![1..3, 0..4, 0..2])] {
                let data = ArrayD::from_shape_fn(IxDyn(&region.shape()), |at| {
                    (0..3).fold(0, |sum, axis| sum * 10 + region.0[axis].start + at[axis]) as f32
                });
                let site = Site::layer(0, 0, stage);
                let frame = Frame { site, axes: stage.axes(), data: FrameData::F32(data) };
                let block = Block { frame: Arc::new(frame), region: region.clone(), shape: shape.to_vec() };
                let tensor = Tensor::new(block, step).unwrap();
                let axes = tensor.shape().len();
                for (down, across) in (0..axes).flat_map(|down| (0..axes).map(move |across| (down, across))) {
                    if down == across {
                        continue;
                    }
                    let index = vec![1; axes];
                    let (rows, columns) = (0..tensor.shape()[down], 0..tensor.shape()[across]);
                    let Some(plane) = Plane::new(&tensor, &index, (down, Some(across)), &rows, &columns)
                    else {
                        assert!(!tensor.block().is_whole(), "{step:?}");
                        continue;
                    };
                    for (row, column) in rows.flat_map(|row| columns.clone().map(move |column| (row, column)))
                    {
                        let mut index = index.clone();
                        (index[down], index[across]) = (row, column);
                        let Some(Number::F32(value)) = tensor.get(&index) else {
                            panic!("{step:?} {index:?}")
                        };
                        assert_eq!(plane.get(row, column), Some(f64::from(value)), "{step:?} {index:?}");
                    }
                }
            }
        }
    }
}
