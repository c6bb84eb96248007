//! Special tokens in a text: `<|eot_id|>` is one token, not ten characters.

use std::collections::HashMap;

/// The special tokens of a vocabulary, by their names.
#[derive(Debug, Default)]
pub(super) struct Specials {
    ids: HashMap<String, u32>,
    /// The lengths of the names, in descending order.
    lengths: Vec<usize>,
    /// The first bytes of the names.
    first: Vec<u8>,
}

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Segment<'a> {
    /// Text to be split into tokens; never empty.
    Text(&'a str),
    /// A special token.
    Special(u32),
}

impl Specials {
    /// Creates the set of special tokens with these names. An empty name is skipped.
    pub(super) fn new(names: impl IntoIterator<Item = (String, u32)>) -> Self {
        let mut ids = HashMap::new();
        for (name, id) in names {
            if !name.is_empty() {
                ids.entry(name).or_insert(id);
            }
        }
        let mut lengths: Vec<usize> = ids.keys().map(String::len).collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        lengths.dedup();
        let mut first: Vec<u8> = ids.keys().map(|name| name.as_bytes()[0]).collect();
        first.sort_unstable();
        first.dedup();
        Self { ids, lengths, first }
    }

    /// The id of a name.
    pub(super) fn get(&self, name: &str) -> Option<u32> {
        self.ids.get(name).copied()
    }

    /// All names.
    pub(super) fn names(&self) -> Vec<String> {
        self.ids.keys().cloned().collect()
    }

    /// The length and the id of the longest special token at the beginning of `text`.
    pub(super) fn at_start(&self, text: &str) -> Option<(usize, u32)> {
        if !self.first.contains(text.as_bytes().first()?) {
            return None;
        }
        self.lengths.iter().find_map(|&length| Some((length, self.get(text.get(..length)?)?)))
    }

    /// Splits `text` into segments, from left to right. If several special tokens begin at the same position, the
    /// longest is used. If `plain` is set, there are no special tokens.
    pub(super) fn split<'a>(&self, text: &'a str, plain: bool) -> Vec<Segment<'a>> {
        let mut parts = Vec::new();
        let (mut from, mut at) = (0, 0);
        while !plain && at < text.len() {
            match text.get(at..).and_then(|rest| self.at_start(rest)) {
                Some((length, id)) => {
                    parts.extend((from < at).then(|| Segment::Text(&text[from..at])));
                    parts.push(Segment::Special(id));
                    at += length;
                    from = at;
                }
                None => at += 1,
            }
        }
        parts.extend((from < text.len()).then(|| Segment::Text(&text[from..])));
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_counts() {
        let names = [("<s>", 1), ("<s><s>", 2), ("é<", 3), ("", 4)].map(|(name, id)| (name.to_string(), id));
        let specials = Specials::new(names);
        use Segment::{Special, Text};
        assert_eq!(specials.split("a<s>b", false), [Text("a"), Special(1), Text("b")]);
        assert_eq!(specials.split("<s><s><s>", false), [Special(2), Special(1)]);
        assert_eq!(specials.split("éé<s>", false), [Text("é"), Special(3), Text("s>")]);
        assert_eq!(specials.split("a<s>b", true), [Text("a<s>b")]);
        assert_eq!(specials.split("", false), []);
        assert_eq!(Specials::default().split("a<s>", false), [Text("a<s>")]);
    }
}
