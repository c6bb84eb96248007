//! Tokens that are found in a text as they stand, before anything else is done to it.

/// Names of tokens, to be looked for in texts.
#[derive(Debug, Default)]
pub(super) struct SpecialTokens {
    /// Name and id, in the order of the names; of equal names the lowest id first.
    sorted: Vec<(Box<str>, u32)>,
}

/// A part of a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    /// Text without such a token.
    Text(&'a str),
    /// One of the tokens.
    Token(u32),
}

impl SpecialTokens {
    /// To look for these. An empty name is never found.
    pub(super) fn new(tokens: impl IntoIterator<Item = (Box<str>, u32)>) -> Self {
        let mut sorted: Vec<_> = tokens.into_iter().filter(|(name, _)| !name.is_empty()).collect();
        sorted.sort_unstable();
        Self { sorted }
    }

    /// The parts of `text`, in order: at each place the longest of the tokens that begin there.
    pub(super) fn cut<'a>(&self, text: &'a str) -> Vec<Part<'a>> {
        let (mut parts, mut start, mut at) = (Vec::new(), 0, 0);
        while at < text.len() {
            let Some((length, id)) = self.longest(&text.as_bytes()[at..]) else {
                at += 1;
                continue;
            };
            if start < at {
                parts.push(Part::Text(&text[start..at]));
            }
            parts.push(Part::Token(id));
            at += length;
            start = at;
        }
        if start < text.len() {
            parts.push(Part::Text(&text[start..]));
        }
        parts
    }

    /// Length and id of the longest token that `text` begins with. Names share beginnings, so each byte
    /// narrows the range of those that are still possible.
    fn longest(&self, text: &[u8]) -> Option<(usize, u32)> {
        let mut range = &self.sorted[..];
        let mut best = None;
        for (depth, byte) in text.iter().enumerate() {
            let at_depth = |name: &str| name.as_bytes().get(depth).copied();
            let from = range.partition_point(|(name, _)| at_depth(name) < Some(*byte));
            let to = range.partition_point(|(name, _)| at_depth(name) <= Some(*byte));
            range = &range[from..to];
            match range.first() {
                Some((name, id)) if name.len() == depth + 1 => best = Some((depth + 1, *id)),
                Some(_) => {}
                None => break,
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tokens(names: &[&str]) -> SpecialTokens {
        SpecialTokens::new(names.iter().zip(0..).map(|(name, id)| ((*name).into(), id)))
    }

    #[test]
    fn the_leftmost_token_is_found_and_of_those_the_longest() {
        let tokens = tokens(&["<s>", "<s><", "é", "", "<"]);
        let text = |text| Part::Text(text);
        assert_eq!(tokens.cut("a<s>b"), [text("a"), Part::Token(0), text("b")]);
        assert_eq!(tokens.cut("<s><é"), [Part::Token(1), Part::Token(2)]);
        assert_eq!(tokens.cut("è<x"), [text("è"), Part::Token(4), text("x")]);
        assert_eq!(tokens.cut(""), []);
    }

    proptest! {
        #[test]
        fn parts_join_to_the_text(names in prop::collection::vec("[aé<]{0,3}", 0..6), text in "[aé<]{0,20}") {
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            let joined: String = tokens(&names).cut(&text).into_iter().map(|part| match part {
                Part::Text(text) => text,
                Part::Token(id) => names[id as usize],
            }).collect();
            prop_assert_eq!(joined, text);
        }
    }
}
