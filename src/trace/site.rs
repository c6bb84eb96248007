//! Where a value is in a trace: pass, layer, stage, and an index into the stage's axes.

use std::fmt;

use super::card::{PassDims, Sizes};
use super::stage::{Axis, Stage};

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

/// The address of one number: `p0/L1/softmax[h=2,q=5,k=1]`. Axes are named by the letters of
/// [`Axis::index`]; a token axis may also be called `q`, for query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The stage.
    pub site: Site,
    /// One index an axis, outermost first.
    pub index: Vec<usize>,
}

impl Address {
    /// Reads an address; none where it is not one, or names another number of axes than the stage has.
    pub fn parse(text: &str) -> Option<Self> {
        let (path, index) = text.strip_suffix(']')?.split_once('[')?;
        let mut parts = path.split('/');
        let pass = parts.next()?.strip_prefix('p')?.parse().ok()?;
        let (layer, stage) = match (parts.next()?, parts.next()) {
            (layer, Some(stage)) => (Some(layer.strip_prefix('L')?.parse().ok()?), stage),
            (stage, None) => (None, stage),
        };
        let stage = Stage::from_name(stage)?;
        if parts.next().is_some() || stage.in_layer() != layer.is_some() {
            return None;
        }
        let mut named = index.split(',').map(|part| {
            let (letter, number) = part.trim().split_once('=')?;
            Some((letter.trim().chars().next()?, number.trim().parse::<usize>().ok()?))
        });
        let index = stage
            .axes()
            .iter()
            .map(|axis| {
                let (letter, number) = named.next()??;
                let fits = letter == axis.index() || (letter == 'q' && *axis == Axis::Token);
                fits.then_some(number)
            })
            .collect::<Option<Vec<_>>>()?;
        named.next().is_none().then_some(Self { site: Site { pass, layer, stage }, index })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let index: Vec<_> = (self.site.stage.axes().iter().zip(&self.index))
            .map(|(axis, number)| format!("{}={number}", axis.index()))
            .collect();
        write!(f, "{}[{}]", self.site, index.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_back_as_it_was_written() {
        let address = Address::parse("p0/L1/softmax[h=2,q=5,k=1]").unwrap();
        assert_eq!(address.site, Site::layer(0, 1, Stage::Softmax));
        assert_eq!(address.index, [2, 5, 1]);
        assert_eq!(Address::parse(&address.to_string()), Some(address));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            "p0/softmax[h=0,t=0,k=0]",
            "p0/L0/logits[t=0,v=0]",
            "p0/L0/xq[t=0,h=0]",
            "p0/L0/xq[h=0,t=0,c=0]",
            "p0/L0/nothing[t=0]",
            "p0/L0/x/xq[t=0,h=0,c=0]",
        ] {
            assert_eq!(Address::parse(text), None, "{text}");
        }
    }

    #[test]
    fn files_are_named_as_the_contract_says() {
        assert_eq!(Site::once(0, Stage::Embedding).file_name(), "pass_000/embedding.npy");
        assert_eq!(Site::layer(12, 3, Stage::Xq).file_name(), "pass_012/layer_03/xq.npy");
    }
}
