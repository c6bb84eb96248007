//! Tensors: a frame, or a block of a frame, in the axes of a step. A view of a stage only maps indices; no value is
//! copied.

use std::sync::Arc;

use llama_trace_core::trace::frame::{Frame, FrameData, Number};
use llama_trace_core::trace::step::Arranged;
use llama_trace_core::trace::{Axis, Block, Region, Step};

/// The values of one step. All indices are in the step's axes.
#[derive(Clone, Debug)]
pub struct Tensor {
    block: Block,
    step: Step,
    shape: Vec<usize>,
}

impl Tensor {
    /// `block` in the axes of `step`; none if the block is of another stage or has another number of axes.
    pub fn new(block: Block, step: Step) -> Option<Self> {
        let from = &block.shape;
        if from.len() != step.stage().axes().len() || block.frame.site.stage != step.stage() {
            return None;
        }
        let shape = match step.arranged() {
            Arranged::Same => from.to_vec(),
            Arranged::Axes(order) => order.map(|axis| from[axis]).to_vec(),
            Arranged::Merged => vec![from[0], from[1] * from[2]],
        };
        Some(Self { block, step, shape })
    }

    /// The frame that holds the values.
    pub fn frame(&self) -> &Arc<Frame> {
        &self.block.frame
    }

    /// The values and their region of the stage.
    pub fn block(&self) -> &Block {
        &self.block
    }

    /// The step that shows the values.
    pub fn step(&self) -> Step {
        self.step
    }

    /// The length of each axis.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The axes.
    pub fn axes(&self) -> &'static [Axis] {
        self.step.axes()
    }

    /// Number of values of the whole step.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value at `index`; none outside of the tensor or of the block.
    pub fn get(&self, index: &[usize]) -> Option<Number> {
        if index.len() != self.shape.len() || index.iter().zip(&self.shape).any(|(i, n)| i >= n) {
            return None;
        }
        self.block.get(&self.step.index_in_stage(index, &self.block.shape))
    }

    /// Returns whether the values are integers.
    pub fn is_whole(&self) -> bool {
        !matches!(self.block.frame.data, FrameData::F32(_))
    }

    /// Returns whether no value is below 0: probabilities and scales.
    pub fn is_positive(&self) -> bool {
        self.step.stage().info().unit.is_positive()
    }

    /// Returns whether the values are probabilities.
    pub fn is_probability(&self) -> bool {
        self.step.stage().info().unit.is_share()
    }
}

/// Converts `region` of a step to the axes of its stage, whose shape is `shape`.
pub fn region_in_stage(step: Step, region: Region, shape: &[usize]) -> Region {
    let Region(axes) = region;
    Region(match step.arranged() {
        Arranged::Same => axes,
        Arranged::Axes(order) => {
            let mut from = vec![0..0; order.len()];
            order.into_iter().zip(axes).for_each(|(axis, range)| from[axis] = range);
            from
        }
        Arranged::Merged => {
            let width = shape[2].max(1);
            vec![axes[0].clone(), axes[1].start / width..axes[1].end.div_ceil(width), 0..shape[2]]
        }
    })
}

#[cfg(test)]
mod tests {
    use ndarray::{ArrayD, IxDyn};

    use super::*;
    use llama_trace_core::trace::ModelCard;
    use llama_trace_core::trace::Site;
    use llama_trace_core::trace::View;

    #[test]
    fn a_view_is_where_copying_would_have_put_it() {
        let sizes = ModelCard::small(|config| (config.heads, config.head_dim) = (4, 2)).sizes();
        for view in View::ALL {
            let shape = [3, 4, 2];
            let values = (0..24).map(|i| i as f32).collect();
            let data = FrameData::F32(ArrayD::from_shape_vec(IxDyn(&shape), values).unwrap());
            let stage = view.source();
            let frame = Arc::new(Frame { site: Site::layer(0, 0, stage), axes: stage.axes(), data });
            let tensor = Tensor::new(Block::whole(frame.clone()), Step::View(*view)).unwrap();
            let copied = frame.view(*view, &sizes);
            if tensor.shape() != copied.shape() {
                panic!("{view}: {:?} and {:?}", tensor.shape(), copied.shape());
            }
            for flat in 0..24 {
                let mut index = Vec::new();
                let mut rest = flat;
                for length in tensor.shape().iter().rev() {
                    index.insert(0, rest % length);
                    rest /= length;
                }
                assert_eq!(tensor.get(&index), copied.get(&index), "{view} {index:?}");
            }
        }
    }
}
