//! Where a branch of a run begins.

use super::draw::Sampling;
use super::site::{Run, Site};
use super::stage::Section;

/// A branch has the passes of another run up to one, and goes on with a token of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fork {
    /// The run that it parts from.
    pub of: Run,
    /// The last pass that both have.
    pub pass: usize,
    /// The token that follows it in the branch.
    pub token: u32,
    /// How the branch draws; none for as the run does.
    pub setting: Option<Sampling>,
}

impl Fork {
    /// Whether the value of `site` of the branch is that of the run that it parts from. What is drawn after the last
    /// pass that both have is the branch's own.
    pub fn shares(&self, site: Site) -> bool {
        site.pass < self.pass || site.pass == self.pass && site.stage.info().section != Section::Sampler
    }
}
