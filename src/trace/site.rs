//! Where a value is in a trace: pass, layer, stage, and an index into the stage's axes.

use std::fmt;

use super::card::{PassDims, Sizes};
use super::stage::Stage;

/// One stage of one layer of one pass. `layer` is set exactly where the stage has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site {
    /// Number of the pass; 0 is the prefill.
    pub pass: usize,
    /// Number of the layer, from 0.
    pub layer: Option<usize>,
    /// The stage.
    pub stage: Stage,
}

impl Site {
    /// A stage outside the layers.
    pub fn once(pass: usize, stage: Stage) -> Self {
        Self { pass, layer: None, stage }
    }

    /// A stage of a layer.
    pub fn layer(pass: usize, layer: usize, stage: Stage) -> Self {
        Self { pass, layer: Some(layer), stage }
    }

    /// The path of its dump below the export's directory: `pass_000/layer_00/xq.npy`.
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
            sites.extend(here[first..last].iter().map(|&stage| Self::layer(dims.pass, layer, stage)));
        }
        sites.extend(once(&here[last..]));
        sites
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
    fn files_are_named_as_the_contract_says() {
        assert_eq!(Site::once(0, Stage::Embedding).file_name(), "pass_000/embedding.npy");
        assert_eq!(Site::layer(12, 3, Stage::Xq).file_name(), "pass_012/layer_03/xq.npy");
    }
}
