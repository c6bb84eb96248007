//! What `diff` found of the two runs that stand side by side: where they part, and how their distance grows.

use llama_trace_core::error::printable;
use llama_trace_core::trace::Address;

/// The verdict, as it is looked at.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// What A and B are.
    names: [String; 2],
    /// In words: whether they are the same, and what else is to be said.
    pub(super) words: Vec<String>,
    /// The stages that differ, in the order of the pass.
    pub(super) differences: Vec<Difference>,
    /// How far B is from A, by layer.
    growth: Vec<String>,
    /// The one that was gone to last.
    pub(super) at: Option<usize>,
}

/// A stage that differs.
#[derive(Clone, Debug)]
pub(super) struct Difference {
    /// Its cell of largest error.
    pub(super) address: Address,
    /// What both have there.
    pub(super) words: String,
}

impl Verdict {
    /// What was found of two runs of these names: in words; the cells that differ most, stage by stage, each with what
    /// both have there; and how the distance grows, a heading and a row a layer.
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

    /// Where the viewer opens: at the cell of largest error of the first stage that differs.
    pub fn opens_at(&self) -> Option<Address> {
        self.differences.first().map(|first| first.address.clone())
    }

    /// The lines that stand before the notes, in a width of so many columns.
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

    /// The table of growth: a heading, and a row a layer.
    pub fn table(&self) -> &[String] {
        &self.growth
    }
}
