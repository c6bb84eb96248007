//! The recorder: a probe that assembles rows into frames and passes each complete frame on.

use std::collections::HashMap;
use std::ops::Range;

use ndarray::{ArrayD, IxDyn};

use crate::memory::naming;

use super::frame::{Frame, FrameData};
use super::probe::{Probe, Values};
use super::select::Select;
use super::site::Site;
use super::sizes::{PassDims, Sizes};

/// Records one pass. `sink` gets every complete frame, in the order of completion.
pub struct Recorder<'a, S> {
    sizes: Sizes,
    dims: PassDims,
    select: &'a Select,
    partial: HashMap<Site, Partial>,
    sink: S,
}

/// A frame under construction.
struct Partial {
    data: Buffer,
    missing_rows: usize,
}

enum Buffer {
    F32(Vec<f32>),
    I64(Vec<i64>),
    I8(Vec<i8>),
}

impl<'a, S: FnMut(Frame)> Recorder<'a, S> {
    /// A recorder for pass `dims` of a model with `sizes`.
    pub fn new(sizes: Sizes, dims: PassDims, select: &'a Select, sink: S) -> Self {
        Self { sizes, dims, select, partial: HashMap::new(), sink }
    }
}

impl<S: FnMut(Frame)> Probe for Recorder<'_, S> {
    fn enabled(&self) -> bool {
        true
    }

    fn wants(&self, site: Site) -> bool {
        self.select.contains(site)
    }

    fn record(&mut self, site: Site, rows: Range<usize>, values: Values<'_>) {
        let axes = site.stage.axes();
        let shape = self.sizes.shape(axes, self.dims);
        let (&width, outer) = shape.split_last().unwrap_or((&1, &[]));
        let count: usize = outer.iter().product();
        let partial = self.partial.entry(site).or_insert_with(|| Partial {
            data: naming(site.stage.name(), || match values {
                Values::F32(_) => Buffer::F32(vec![0.0; count * width]),
                Values::I64(_) => Buffer::I64(vec![0; count * width]),
                Values::I8(_) => Buffer::I8(vec![0; count * width]),
            }),
            missing_rows: count,
        });
        let range = rows.start * width..rows.end * width;
        match (&mut partial.data, values) {
            (Buffer::F32(data), Values::F32(values)) => data[range].copy_from_slice(values),
            (Buffer::I64(data), Values::I64(values)) => data[range].copy_from_slice(values),
            (Buffer::I8(data), Values::I8(values)) => data[range].copy_from_slice(values),
            _ => unreachable!("a stage has one number type"),
        }
        partial.missing_rows -= rows.len();
        if partial.missing_rows > 0 {
            return;
        }
        if let Some(whole) = self.partial.remove(&site) {
            let shape = IxDyn(&shape);
            let data = match whole.data {
                Buffer::F32(data) => ArrayD::from_shape_vec(shape, data).map(FrameData::F32),
                Buffer::I64(data) => ArrayD::from_shape_vec(shape, data).map(FrameData::I64),
                Buffer::I8(data) => ArrayD::from_shape_vec(shape, data).map(FrameData::I8),
            };
            let data = data.unwrap_or_else(|_| unreachable!("the buffer was made for this shape"));
            (self.sink)(Frame { site, axes, data });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::card::ModelCard;
    use super::super::stage::Stage;
    use super::*;

    #[test]
    fn rows_come_in_any_order_and_a_frame_goes_out_when_it_is_whole() {
        let sizes =
            ModelCard::small(|config| (config.layers, config.dim, config.head_dim) = (1, 2, 2)).sizes();
        let dims = PassDims { pass: 0, start: 0, tokens: 3, ..PassDims::default() };
        let (select, mut frames) = (Select::all(), Vec::new());
        let mut recorder = Recorder::new(sizes, dims, &select, |frame| frames.push(frame));
        let site = Site::once(0, Stage::Embedding);
        recorder.record(site, 1..3, Values::F32(&[3.0, 4.0, 5.0, 6.0]));
        recorder.record(site, 0..1, Values::F32(&[1.0, 2.0]));
        assert_eq!(frames.len(), 1);
        let values: Vec<_> = frames[0].floats().unwrap().iter().copied().collect();
        assert_eq!(values, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    }
}
