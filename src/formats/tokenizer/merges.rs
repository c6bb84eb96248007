//! How byte-pair encoding arrives at the tokens of a text, to be looked at.

/// A stretch of text that is split by itself: no token reaches from one into the next.
#[derive(Clone, Debug, PartialEq)]
pub struct Stretch {
    /// What it begins with, as labels: its characters or bytes, or the one token that it is.
    pub parts: Vec<String>,
    /// How it comes to its tokens.
    pub way: Way,
    /// The merges in the order in which they are made.
    pub merges: Vec<Merge>,
    /// The tokens in the end.
    pub ids: Vec<u32>,
}

/// How a stretch comes to its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Neighbours are merged.
    Merged,
    /// It is a token as a whole, and such a stretch is never split.
    Whole,
    /// It is a special token, which no text is merged into.
    Special,
}

/// Two neighbours that become one.
#[derive(Clone, Debug, PartialEq)]
pub struct Merge {
    /// Place of the left one in [`Stretch::parts`]; what the two become is there from now on.
    pub left: usize,
    /// Place of the right one, which is gone.
    pub right: usize,
    /// The label of what they become.
    pub text: String,
    /// Why these two and now.
    pub priority: Priority,
}

/// Where a merge stands in the order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Priority {
    /// Place in the list of merges or tokens: the lowest first.
    Rank(u32),
    /// Score of what the two become: the highest first.
    Score(f32),
}

impl Stretch {
    /// A stretch that is one token.
    pub(super) fn token(way: Way, id: u32, label: String) -> Self {
        Self { parts: vec![label], way, merges: Vec::new(), ids: vec![id] }
    }

    /// The parts that are left after the first `merges` merges.
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
