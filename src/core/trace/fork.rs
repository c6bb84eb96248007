//! The start of a branch of a run.

use super::draw::Sampling;
use super::site::{Run, Site};
use super::stage::Section;

/// A branch shares the passes of another run up to a given pass, then continues with another token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fork {
    /// The run that it branches from.
    pub of: Run,
    /// The last shared pass.
    pub pass: usize,
    /// The branch's token after that pass.
    pub token: u32,
    /// The branch's sampler settings; `None` for those of the run `of`.
    pub setting: Option<Sampling>,
}

impl Fork {
    /// Returns whether the branch shares the value of `site` with its run. The draw after the last shared pass is the
    /// branch's own.
    pub fn shares(&self, site: Site) -> bool {
        site.pass < self.pass || site.pass == self.pass && site.stage.info().section != Section::Sampler
    }
}
