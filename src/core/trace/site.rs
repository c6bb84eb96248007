//! The location of a stage's values: run, sequence, pass, layer, stage.

use std::fmt;

use super::sizes::{PassDims, Sizes};
use super::stage::{Input, Stage};

/// Number of an open run. r0 is the original run. The others are its branches, runs that were started later, or other
/// traces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Run(pub u16);

impl Run {
    /// The original run.
    pub const ITSELF: Self = Self(0);
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// One stage of one layer of one pass of one sequence. `layer` is set if and only if the stage is in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site {
    /// The run.
    pub run: Run,
    /// Number of the sequence in the batch; 0 if there is only one.
    pub sequence: usize,
    /// Number of the pass; 0 is the prefill.
    pub pass: usize,
    /// Number of the layer, from 0.
    pub layer: Option<usize>,
    /// The stage.
    pub stage: Stage,
}

impl Site {
    /// A stage outside the layers, of sequence 0 of the original run.
    pub fn once(pass: usize, stage: Stage) -> Self {
        Self { run: Run::ITSELF, sequence: 0, pass, layer: None, stage }
    }

    /// A stage of a layer, of sequence 0 of the original run.
    pub fn layer(pass: usize, layer: usize, stage: Stage) -> Self {
        Self { layer: Some(layer), ..Self::once(pass, stage) }
    }

    /// Another stage at this place: in the same layer or, for a site outside the layers, outside the layers of the same
    /// pass.
    #[must_use]
    pub fn other(self, stage: Stage) -> Self {
        Self { stage, ..self }
    }

    /// The site of the layer's input.
    #[must_use]
    pub fn layer_input(self) -> Self {
        match self.layer {
            Some(layer) if layer > 0 => Self { layer: Some(layer - 1), stage: Stage::FfnResidual, ..self },
            _ => Self { layer: None, stage: Stage::Embedding, ..self },
        }
    }

    /// The site of an input of this site's stage. `None` for positions, because they are not a stage.
    #[must_use]
    pub fn input(self, input: Input, sizes: &Sizes) -> Option<Self> {
        match input {
            Input::Stage(stage) => {
                Some(Self { layer: self.layer.filter(|_| stage.in_layer()), stage, ..self })
            }
            Input::LayerInput if self.layer.is_none() => {
                Some(Self { layer: sizes.layers.checked_sub(1), stage: Stage::FfnResidual, ..self })
            }
            Input::LayerInput => Some(self.layer_input()),
            Input::Positions => None,
        }
    }

    /// Whether the stage exists here, in pass `dims`.
    pub fn present(self, sizes: &Sizes, dims: PassDims) -> bool {
        self.stage.present_in(sizes, dims, self.layer)
    }

    /// The inputs of the stage here, in pass `dims`.
    pub fn inputs(self, sizes: &Sizes, dims: PassDims) -> Vec<Input> {
        self.stage.inputs_in(sizes, dims, self.layer)
    }

    /// The path of the site's `.npy` file below the directory of its sequence: `pass_000/layer_00/xq.npy`.
    pub fn file_name(self) -> String {
        match self.layer {
            Some(layer) => format!("pass_{:03}/layer_{layer:02}/{}.npy", self.pass, self.stage),
            None => format!("pass_{:03}/{}.npy", self.pass, self.stage),
        }
    }

    /// Every site of pass `dims`, in the order of the pass.
    pub fn all(sizes: &Sizes, dims: PassDims) -> Vec<Self> {
        let once = |stages: &[Stage]| -> Vec<Self> {
            stages.iter().map(|&stage| Self::once(dims.pass, stage)).collect()
        };
        let here: Vec<Stage> =
            Stage::ALL.iter().copied().filter(|stage| stage.present(sizes, dims)).collect();
        let first = here.iter().position(|stage| stage.in_layer()).unwrap_or(here.len());
        let last = here.iter().rposition(|stage| stage.in_layer()).map_or(first, |last| last + 1);
        let mut sites = once(&here[..first]);
        for layer in 0..sizes.layers {
            let here = here[first..last].iter().map(|&stage| Self::layer(dims.pass, layer, stage));
            sites.extend(here.filter(|site| site.present(sizes, dims)));
        }
        sites.extend(once(&here[last..]));
        sites
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.run != Run::ITSELF {
            write!(f, "{}:", self.run)?;
        }
        if self.sequence != 0 {
            write!(f, "s{}/", self.sequence)?;
        }
        write!(f, "p{}/", self.pass)?;
        if let Some(layer) = self.layer {
            write!(f, "L{layer}/")?;
        }
        write!(f, "{}", self.stage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_itself_and_the_first_sequence_go_without_saying() {
        let site = Site::layer(2, 1, Stage::Softmax);
        assert_eq!(site.to_string(), "p2/L1/softmax");
        assert_eq!(Site { run: Run(3), sequence: 4, ..site }.to_string(), "r3:s4/p2/L1/softmax");
    }

    #[test]
    fn a_layer_reads_the_one_before_it_of_the_same_run_and_sequence() {
        let second = Site { run: Run(3), sequence: 4, ..Site::layer(2, 1, Stage::AttnNorm) };
        let first = second.layer_input();
        assert_eq!(first, Site { layer: Some(0), stage: Stage::FfnResidual, ..second });
        assert_eq!(first.layer_input(), Site { layer: None, stage: Stage::Embedding, ..second });
    }

    #[test]
    fn files_are_named_as_the_contract_says() {
        assert_eq!(Site::once(0, Stage::Embedding).file_name(), "pass_000/embedding.npy");
        assert_eq!(Site::layer(12, 3, Stage::Xq).file_name(), "pass_012/layer_03/xq.npy");
    }
}
