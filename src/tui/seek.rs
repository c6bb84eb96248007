//! A search for the largest value, as far as it has come.

use crate::trace::{Region, Site};

/// A search that is under way.
#[derive(Clone, Debug)]
pub(super) struct Seek {
    pub(super) site: Site,
    /// What is still to be seen, in the axes of the stage, the next one last.
    pub(super) rest: Vec<Region>,
    pub(super) best: Option<(f64, Vec<usize>)>,
}
