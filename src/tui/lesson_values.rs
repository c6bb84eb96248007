//! Values that a lesson's expressions read. Each comes from the source of its sequence, once that has computed it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use llama_trace_core::lesson::{Unfinished, World};
use llama_trace_core::trace::{Frame, ModelCard, Outline, PassDims, Site};

/// The values that are there, and those that are awaited. Sites name no run.
#[derive(Clone, Debug, Default)]
pub(super) struct LessonValues {
    pub(super) frames: HashMap<Site, Arc<Frame>>,
    pub(super) awaited: BTreeSet<Site>,
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
}
