//! The steps by which byte-pair encoding reaches the tokens of a text, for display.

/// A stretch of text that is split separately (a pre-token). No token crosses its boundaries.
#[derive(Clone, Debug, PartialEq)]
pub struct Stretch {
    /// The labels of its initial parts: its characters or bytes, or the single token.
    pub parts: Vec<String>,
    /// How it is turned into tokens.
    pub way: Way,
    /// The merges in the order of their execution.
    pub merges: Vec<Merge>,
    /// The resulting tokens.
    pub ids: Vec<u32>,
}

/// How a stretch is turned into tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Adjacent parts are merged.
    Merged,
    /// The whole stretch is a token. Such a stretch is never split.
    Whole,
    /// The stretch is a special token. Text is never merged into one.
    Special,
}

/// A merge of two adjacent parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Merge {
    /// The position of the left part in [`Stretch::parts`]. The merged part takes this position.
    pub left: usize,
    /// The position of the right part, which is removed.
    pub right: usize,
    /// The label of the merged part.
    pub text: String,
    /// The priority that selected this merge.
    pub priority: Priority,
}

/// The priority of a merge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Priority {
    /// The position in the list of merges or tokens; the lowest comes first.
    Rank(u32),
    /// The score of the merged token; the highest comes first.
    Score(f32),
}

impl Stretch {
    /// A stretch that is a single token.
    pub(super) fn token(way: Way, id: u32, label: String) -> Self {
        Self { parts: vec![label], way, merges: Vec::new(), ids: vec![id] }
    }

    /// The parts after the first `merges` merges.
    pub fn after(&self, merges: usize) -> Vec<&str> {
        let mut parts: Vec<Option<&str>> = self.parts.iter().map(|part| Some(part.as_str())).collect();
        for merge in &self.merges[..merges] {
            parts[merge.left] = Some(&merge.text);
            parts[merge.right] = None;
        }
        parts.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_together() {
        let merge =
            |left, right, text: &str| Merge { left, right, text: text.into(), priority: Priority::Rank(0) };
        let stretch = Stretch {
            parts: ["a", "b", "c"].map(String::from).into(),
            way: Way::Merged,
            merges: vec![merge(1, 2, "bc"), merge(0, 1, "abc")],
            ids: vec![7],
        };
        assert_eq!(stretch.after(0), ["a", "b", "c"]);
        assert_eq!(stretch.after(1), ["a", "bc"]);
        assert_eq!(stretch.after(2), ["abc"]);
    }
}
