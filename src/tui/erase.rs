//! Keys that delete text before the cursor of an input line. All input lines of the program use them.

use unicode_segmentation::UnicodeSegmentation;

/// The part of the text before the cursor that a key deletes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Erase {
    /// The last character, with its combining marks: Backspace, Ctrl-H.
    Character,
    /// The last word and the spaces after it: Ctrl-W.
    Word,
    /// Everything: Ctrl-U.
    Line,
}

impl Erase {
    /// The byte offset in `before`, the text before the cursor, at which the deleted part begins.
    pub fn start(self, before: &str) -> usize {
        match self {
            Self::Character => before.grapheme_indices(true).next_back().map_or(0, |(at, _)| at),
            Self::Word => {
                let spaces = before.trim_end().char_indices().rev().find(|(_, c)| c.is_whitespace());
                spaces.map_or(0, |(at, c)| at + c.len_utf8())
            }
            Self::Line => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Erase::{Character, Line, Word};

    #[test]
    fn keys_delete_a_character_a_word_or_the_line() {
        let left = |text: &'static str| [Character, Word, Line].map(|erase| &text[..erase.start(text)]);
        assert_eq!(left("one two "), ["one two", "one ", ""]);
        assert_eq!(left("one\u{3000}ae\u{301}"), ["one\u{3000}a", "one\u{3000}", ""]);
        assert_eq!(left("  "), [" ", "", ""]);
        assert_eq!(left(""), ["", "", ""]);
    }
}
