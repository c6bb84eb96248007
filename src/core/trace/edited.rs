//! A run like another one, with other edits or other tokens.

/// A run like an open one, with other edits or other tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edited {
    /// All edits of the new run, in their order.
    pub edits: Vec<String>,
    /// The tokens of its prompt.
    pub ids: Vec<u32>,
    /// A text whose tokens are inserted before the token with this number.
    pub insert: Option<(usize, String)>,
    /// The sequence of the open run.
    pub sequence: usize,
    /// The number of passes that the open run has.
    pub passes: usize,
    /// Name of its precision.
    pub precision: Option<String>,
}
