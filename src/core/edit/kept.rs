//! Values that a pass keeps for edits later in the pass.

use std::collections::HashMap;

use crate::trace::Stage;

/// An edit by its number in the list, and one of its parts.
pub type PartAt = (usize, usize);

/// Values that edits read later in the pass, by sequence.
#[derive(Debug, Default)]
pub struct Kept {
    /// Inputs of operations that are switched off. See [`Operand::Input`](super::Operand::Input).
    pub(super) inputs: HashMap<(usize, Option<Stage>), Vec<f32>>,
    /// Means of stages that a pass computes block by block. See [`Edits::block_means`](super::Edits::block_means).
    pub(super) means: HashMap<(usize, PartAt), Mean>,
    /// The mean to which the next blocks are added.
    pub(super) collecting: Option<PartAt>,
}

/// The mean of rows.
#[derive(Debug, Default)]
pub(super) struct Mean {
    sums: Vec<f64>,
    rows: usize,
}

impl Kept {
    /// Keeps the values of `stage`, or of the input of the layer or of the head.
    pub fn keep(&mut self, sequence: usize, stage: Option<Stage>, values: &[f32]) {
        let kept = self.inputs.entry((sequence, stage)).or_default();
        kept.clear();
        kept.extend_from_slice(values);
    }

    /// Starts the mean of a part in `sequence`. [`Edits::apply`](super::Edits::apply) then adds the rows that this part sees, and applies
    /// neither it nor a later edit of the stage. `None` ends this.
    pub fn collect(&mut self, sequence: usize, part: Option<PartAt>) {
        self.collecting = part;
        self.means.extend(part.map(|part| ((sequence, part), Mean::default())));
    }
}

impl Mean {
    /// Adds rows of equal length.
    pub(super) fn add(&mut self, values: &[f32], rows: usize) {
        let width = values.len() / rows.max(1);
        self.sums.resize(width, 0.0);
        values.iter().enumerate().for_each(|(i, value)| self.sums[i % width] += f64::from(*value));
        self.rows += rows;
    }

    pub(super) fn values(&self) -> Vec<f32> {
        self.sums.iter().map(|sum| (sum / self.rows as f64) as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{ModelConfig, Precision};
    use crate::edit::{Edit, Edits, Kept};
    use crate::trace::{PassDims, Site, Sizes, Stage};

    #[test]
    fn a_mean_that_is_collected_block_by_block_is_the_mean_of_all_rows() {
        let config = ModelConfig { ffn_dim: 2, vocab: 2, ..ModelConfig::of_heads(1, 1, 2) };
        let sizes = Sizes::new(&config, Precision::F32);
        let parsed = ["logits[t=0] *= 2", "logits[v=1] = mean", "logits[t=3] = mean"].map(Edit::parse);
        let edits = Edits::new(parsed.into_iter().collect::<Result<_, _>>().unwrap());
        let (site, tokens) = (Site::once(0, Stage::Logits), 4);
        let dims = PassDims { pass: 0, start: 0, tokens, ..PassDims::default() };
        let values = [1.0, 10.0, 2.0, 20.0, 4.0, 30.0, 8.0, 40.0];
        let apply = |kept: &mut Kept, first: usize, values: &mut [f32]| {
            let held = first..first + values.len() / 2;
            edits.apply((&sizes, Precision::F32), kept, site, dims, &held, values).unwrap();
        };
        let mut whole = values;
        apply(&mut Kept::default(), 0, &mut whole);
        assert_eq!(whole, [2.0, 27.5, 2.0, 27.5, 4.0, 27.5, 4.0, 27.5]);
        let changes = edits.changes();
        let mut kept = Kept::default();
        for part in edits.block_means(site) {
            kept.collect(0, Some(part));
            for (block, first) in [(&values[..6], 0), (&values[6..], 3)] {
                apply(&mut kept, first, &mut block.to_vec());
            }
            kept.collect(0, None);
        }
        assert_eq!(edits.changes(), changes, "collecting is not an edit of the run");
        let mut blocks = values;
        let (first, last) = blocks.split_at_mut(6);
        apply(&mut kept, 0, first);
        apply(&mut kept, 3, last);
        assert_eq!(blocks, whole);
    }
}
