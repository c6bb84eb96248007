//! The list of branches, as it is shown.

use llama_trace_core::trace::Run;

/// A run in the list of branches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Course {
    /// Its number.
    pub run: Run,
    /// Number of its sequence, and how many there are.
    pub sequence: (usize, usize),
    /// The run that it parts from, and the last pass that both have.
    pub parts: Option<(Run, usize)>,
    /// Whether it parts from another, or another from it.
    pub parted: bool,
    /// Whether it goes on with the token that the other run went on with too.
    pub same: bool,
    /// The tokens before it parts, or before the first branch parts from it; its prompt, where it does neither.
    pub before: Vec<String>,
    /// Those after that.
    pub after: Vec<String>,
    /// Parts of the model that are switched off in it.
    pub without: Vec<String>,
    /// Whether it is the one that is shown.
    pub shown: bool,
}

/// The list of branches, and which is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Courses {
    /// All of them.
    pub all: Vec<Course>,
    /// The chosen one.
    pub chosen: usize,
}
