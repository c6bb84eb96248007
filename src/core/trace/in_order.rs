//! The values of a stage in row-major order, taken from one block after the other.

use super::block::{Block, Region, index_of};
use super::probe::Values;

/// The position in a stage whose values are taken in order.
#[derive(Clone, Debug)]
pub struct InOrder {
    shape: Vec<usize>,
    /// Values taken so far.
    taken: usize,
}

impl InOrder {
    /// The begin of a stage of `shape`.
    pub fn new(shape: &[usize]) -> Self {
        Self { shape: shape.to_vec(), taken: 0 }
    }

    /// The shape of the stage.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Number of values taken so far.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// The part that was taken, in percent.
    pub fn percent(&self) -> usize {
        self.taken * 100 / self.count().max(1)
    }

    /// Returns whether all values were taken.
    pub fn is_done(&self) -> bool {
        self.taken == self.count()
    }

    /// The region of the next value, which the next block must contain.
    pub fn next(&self) -> Region {
        let index = index_of(&self.shape, self.taken);
        Region(index.into_iter().map(|at| at..at + 1).collect()).within(&self.shape)
    }

    /// Takes the next values, as far as they are contiguous in `block`. Returns the number of the first one, and the
    /// values. `None` if `block` lacks the next value, or if all were taken.
    pub fn take<'b>(&mut self, block: &'b Block) -> Option<(usize, Values<'b>)> {
        if self.is_done() {
            return None;
        }
        let run = block.run(self.taken)?;
        let first = self.taken;
        self.taken += run.len();
        Some((first, block.frame.values().slice(run)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::probe::Probe;
    use super::super::{ModelCard, PassDims, Site, Stage};
    use super::super::{block::Cutting, sizes::Filters};
    use super::*;

    #[test]
    fn blocks_give_every_value_once_and_in_order() {
        let site = Site::layer(0, 0, Stage::Qk);
        let sizes = ModelCard::small(|config| (config.heads, config.head_dim) = (3, 2)).sizes();
        let dims = PassDims { pass: 0, start: 0, tokens: 4, filters: Filters::NONE };
        let shape = sizes.shape(site.stage.axes(), dims);
        let count: usize = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|i| i as f32).collect();
        let mut order = InOrder::new(&shape);
        let mut all = Vec::new();
        while !order.is_done() {
            assert_eq!(order.percent(), all.len() * 100 / count);
            // A block of two rows, and one of a part of a row.
            for most in [2 * shape[shape.len() - 1], 1] {
                let region = order.next().grown(&shape, most);
                let mut cutting = Cutting::new(site, region, &sizes, dims);
                cutting.record(site, 0..count / shape[shape.len() - 1], Values::F32(&values));
                let block = cutting.into_block().unwrap();
                while let Some((first, part)) = order.take(&block) {
                    assert_eq!(first, all.len());
                    all.extend(part.numbers());
                }
            }
        }
        assert_eq!(all, values.iter().map(|&value| f64::from(value)).collect::<Vec<_>>());
        assert_eq!((order.percent(), order.taken()), (100, count));
        // A stage without values is complete.
        assert!(InOrder::new(&[3, 0]).is_done());
    }
}
