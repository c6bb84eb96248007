//! Verdict of `diff` on two runs: the stages that differ, and how the distance grows by layer.

use llama_trace_core::error::printable;
use llama_trace_core::trace::Address;

/// The verdict on two runs, A and B.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Names of A and B.
    names: [String; 2],
    /// The result in words, line by line.
    pub(super) words: Vec<String>,
    /// The stages that differ, in the order of the pass.
    pub(super) differences: Vec<Difference>,
    /// The table of B's distance from A by layer.
    growth: Vec<String>,
    /// Number of the difference that was visited last.
    pub(super) at: Option<usize>,
}

/// A stage that differs.
#[derive(Clone, Debug)]
pub(super) struct Difference {
    /// The cell with the largest error.
    pub(super) address: Address,
    /// The two runs' values in that cell, as text.
    pub(super) words: String,
}

impl Verdict {
    /// The verdict on two runs with these names. `words` is the result, line by line. `differences` has, for each stage
    /// that differs, the cell with the largest error and the two values there. `growth` is the table of the distance: a
    /// heading and one row for each layer.
    pub fn new(
        names: [&str; 2],
        words: Vec<String>,
        differences: Vec<(Address, String)>,
        growth: Vec<String>,
    ) -> Self {
        let differences = differences.into_iter().map(|(address, words)| Difference { address, words });
        Self {
            names: names.map(|name| printable(name).to_string()),
            words,
            differences: differences.collect(),
            growth,
            at: None,
        }
    }

    /// The address to open at: the cell with the largest error in the first stage that differs.
    pub fn opens_at(&self) -> Option<Address> {
        self.differences.first().map(|first| first.address.clone())
    }

    /// The lines above the notes.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("A  {}", self.names[0]), format!("B  {}", self.names[1])];
        lines.extend(self.words.iter().cloned());
        lines.push(match self.differences.len() {
            0 => String::new(),
            1 => "1 stage differs; D goes there.".to_owned(),
            count => format!("{count} stages differ; D goes to the next."),
        });
        lines
    }

    /// The table of growth: a heading and one row for each layer.
    pub fn table(&self) -> &[String] {
        &self.growth
    }
}
