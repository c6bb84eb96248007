//! Values that a lesson's expressions read. Each comes from the source of its sequence, once that has computed it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::task::Poll;

use llama_trace_core::lesson::{Unfinished, World};
use llama_trace_core::trace::{
    Answer, Frame, ModelCard, Outline, PassDims, Query, Region, Run, Site, Sizes, Source,
};

use super::runs::Runs;

/// The values that are there, and those that are awaited. Sites name no run.
#[derive(Clone, Debug, Default)]
pub(super) struct LessonValues {
    frames: HashMap<Site, Arc<Frame>>,
    awaited: BTreeSet<Site>,
    /// The stages that the answer and the hints read, once they are known.
    pub(super) reads: Option<Vec<Site>>,
}

/// Numbers that describe the heads of the built-in model: `induction/layer`.
pub type Facts = fn(&str) -> Option<f64>;

/// A run as the expressions see it.
pub(super) struct RunWorld<'a> {
    pub(super) outlines: &'a [Outline],
    pub(super) values: &'a LessonValues,
    pub(super) texts: &'a dyn Fn(u32) -> String,
    pub(super) facts: Option<Facts>,
}

impl World for RunWorld<'_> {
    fn card(&self) -> &ModelCard {
        &self.outlines[0].card
    }

    fn dims(&self, sequence: usize, pass: usize) -> Option<PassDims> {
        let outline = self.outlines.iter().find(|outline| outline.sequence == sequence)?;
        outline.passes.get(pass).map(|pass| pass.dims)
    }

    fn frame(&self, site: Site) -> Option<&Frame> {
        self.values.frames.get(&site).map(|frame| &**frame)
    }

    fn token_text(&self, id: u32) -> String {
        (self.texts)(id)
    }

    fn fact(&self, path: &str) -> Option<f64> {
        self.facts.and_then(|facts| facts(path))
    }
}

impl LessonValues {
    /// Returns whether values are awaited.
    pub(super) fn waits(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// Takes in what an evaluation lacks. Returns the message of one that has no value.
    pub(super) fn lacks(&mut self, unfinished: Unfinished) -> Result<(), String> {
        match unfinished {
            Unfinished::Needs(sites) => {
                self.awaited.extend(sites);
                Ok(())
            }
            Unfinished::Wrong(wrong) => Err(wrong),
        }
    }

    /// Asks the sources of `run` for the awaited values. Returns whether some have come.
    ///
    /// # Errors
    /// The reason why a value cannot be had.
    pub(super) fn ask(&mut self, runs: &mut Runs, run: Run) -> Result<bool, String> {
        let mut came = false;
        for site in self.awaited.clone() {
            let source = runs.of(run, site.sequence);
            let (sizes, dims) = (source.outline().card.sizes(), dims_of(source, site.pass));
            let Some(region) = dims.map(|dims| whole(&sizes, dims, site)) else {
                return Err(format!("there is no pass {}", site.pass));
            };
            match source.ask(&Query::Block(Site { run, ..site }, region)) {
                Poll::Pending => continue,
                Poll::Ready(Ok(Answer::Block(block))) if block.is_whole() => {
                    self.frames.insert(site, block.frame);
                    came = true;
                }
                Poll::Ready(Ok(_)) => return Err(format!("{site} is too large to be read whole")),
                Poll::Ready(Err(error)) => return Err(error.to_string()),
            }
            self.awaited.remove(&site);
        }
        Ok(came)
    }
}

fn dims_of(source: &dyn Source, pass: usize) -> Option<PassDims> {
    source.outline().passes.get(pass).map(|pass| pass.dims)
}

fn whole(sizes: &Sizes, dims: PassDims, site: Site) -> Region {
    Region::whole(&sizes.shape(site.stage.axes(), dims))
}
