//! Names of special tokens in users' messages. `<|eot_id|>` typed into a chat is text about a token. It is the token
//! only if the chat template writes it.
//!
//! A template may split and rearrange texts freely, so its output does not show the origin of a text. Before rendering,
//! a character that occurs in none of the texts is therefore inserted into every such name. After rendering, it marks
//! the names as text. A text without such names is not changed.

use super::Tokenizer;
use super::special::Specials;
use llama_trace_core::error::Result;

/// Characters without a meaning in Unicode, for the internal use of programs.
const NONCHARACTERS: std::ops::RangeInclusive<char> = '\u{fdd0}'..='\u{fdef}';

/// A marker for special tokens' names that are only quoted.
pub struct Quoted<'t> {
    tokenizer: &'t dyn Tokenizer,
    names: Specials,
    /// The character that marks a name; it occurs in none of the texts.
    mark: char,
}

impl<'t> Quoted<'t> {
    /// Creates a marker for the names in `texts`. `None` if there are no names.
    pub fn new(tokenizer: &'t dyn Tokenizer, texts: &[&str]) -> Option<Self> {
        let names = Specials::new(tokenizer.specials().into_iter().zip(0..));
        let named = |text: &str| text.char_indices().any(|(at, _)| names.at_start(&text[at..]).is_some());
        if !texts.iter().any(|text| named(text)) {
            return None;
        }
        // A conversation that contains all of these characters is not marked.
        let mark = NONCHARACTERS.clone().find(|&mark| !texts.iter().any(|text| text.contains(mark)))?;
        Some(Self { tokenizer, names, mark })
    }

    /// `text` with a mark after the first character of each name.
    pub fn quote(&self, text: &str) -> String {
        let mut quoted = String::with_capacity(text.len());
        for (at, character) in text.char_indices() {
            quoted.push(character);
            if self.names.at_start(&text[at..]).is_some() {
                quoted.push(self.mark);
            }
        }
        quoted
    }

    /// The ids of a rendered text that contains quoted texts. Like [`Tokenizer::encode_marked`], but a section between
    /// two special tokens that contains a quoted name is plain text.
    ///
    /// # Errors
    /// The errors of [`Tokenizer::encode`].
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        // The text from `from` on is not encoded yet. `start` is the position after the last special token.
        let (mut from, mut start, mut at) = (0, 0, 0);
        while at < text.len() {
            match self.special_at(text, at) {
                Some(length) => {
                    if self.section(text, from, start, at, &mut ids)? {
                        from = at;
                    }
                    at += length;
                    start = at;
                }
                None => at += text[at..].chars().next().map_or(1, char::len_utf8),
            }
        }
        if !self.section(text, from, start, at, &mut ids)? {
            ids.extend(self.marked(&text[from..])?);
        }
        Ok(ids)
    }

    /// The length of the special token at `at`, if there is one and it is not quoted.
    fn special_at(&self, text: &str, at: usize) -> Option<usize> {
        let (length, _) = self.names.at_start(&text[at..])?;
        // The mark comes after the first character, so only a name of one character is still found when it is quoted.
        let quoted = text[at..].chars().nth(1) == Some(self.mark);
        (!quoted).then_some(length)
    }

    /// If the section from `start` to `end` contains a quoted name, encodes the text from `from` to `start` and then
    /// the section. Returns whether the section contains a quoted name.
    fn section(&self, text: &str, from: usize, start: usize, end: usize, ids: &mut Vec<u32>) -> Result<bool> {
        let section = &text[start..end];
        if !section.contains(self.mark) {
            return Ok(false);
        }
        ids.extend(self.marked(&text[from..start])?);
        ids.extend(self.tokenizer.encode_plain(&section.replace(self.mark, ""))?);
        Ok(true)
    }

    fn marked(&self, text: &str) -> Result<Vec<u32>> {
        if text.is_empty() { Ok(Vec::new()) } else { self.tokenizer.encode_marked(text) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::TextStream;
    use proptest::prelude::*;

    /// A test tokenizer with one token per byte and three special tokens.
    struct Bytes;

    const NAMES: [&str; 3] = ["<s>", "<s><s>", "é"];

    impl Tokenizer for Bytes {
        fn encode(&self, text: &str) -> Result<Vec<u32>> {
            self.encode_marked(text)
        }

        fn encode_marked(&self, text: &str) -> Result<Vec<u32>> {
            use crate::tokenizer::special::Segment;
            let names = Specials::new(NAMES.map(str::to_owned).into_iter().zip(256..));
            let ids = |part: Segment<'_>| match part {
                Segment::Text(text) => text.bytes().map(u32::from).collect(),
                Segment::Special(id) => vec![id],
            };
            Ok(names.split(text, false).into_iter().flat_map(ids).collect())
        }

        fn encode_plain(&self, text: &str) -> Result<Vec<u32>> {
            Ok(text.bytes().map(u32::from).collect())
        }

        fn specials(&self) -> Vec<String> {
            NAMES.map(str::to_owned).into()
        }

        fn bos(&self) -> Option<u32> {
            None
        }

        fn vocab_size(&self) -> usize {
            259
        }

        fn label(&self, id: u32) -> String {
            id.to_string()
        }

        fn stream(&self) -> TextStream<'_> {
            unreachable!("nothing is decoded here")
        }
    }

    #[test]
    fn a_quoted_name_is_text() {
        let said = "a<s>b";
        let quoted = Quoted::new(&Bytes, &[said]).unwrap();
        let text = format!("<s>x{}<s><s>", quoted.quote(said));
        let expected = [&[256][..], &b"xa<s>b".map(u32::from), &[257]].concat();
        assert_eq!(quoted.encode(&text).unwrap(), expected);
        assert_eq!(quoted.encode("<s>y").unwrap(), [256, u32::from(b'y')]);
        assert!(quoted.encode("").unwrap().is_empty());
    }

    #[test]
    fn a_text_without_names_is_not_touched() {
        assert!(Quoted::new(&Bytes, &["a<s", "s>", ""]).is_none());
        let all: String = NONCHARACTERS.collect();
        assert!(Quoted::new(&Bytes, &["<s>", &all]).is_none());
        let other = Quoted::new(&Bytes, &["<s>\u{fdd0}"]).unwrap();
        assert_eq!(other.mark, '\u{fdd1}');
    }

    proptest! {
        #[test]
        fn whatever_is_said_is_text(
            said in "[<s>éa]{0,12}", before in "(<s>|[ab]){0,3}", after in "(<s><s>|é|[ab]){0,3}",
        ) {
            // The text of the template does not form a name together with the message.
            let (before, after) = (format!("{before}|"), format!("|{after}"));
            let whole = |said: Vec<u32>| {
                let [before, after] = [&before, &after].map(|text| Bytes.encode_marked(text).unwrap());
                [before, said, after].concat()
            };
            let plain = whole(Bytes.encode_plain(&said).unwrap());
            match Quoted::new(&Bytes, &[&said]) {
                Some(quoted) => {
                    let text = format!("{before}{}{after}", quoted.quote(&said));
                    prop_assert_eq!(quoted.encode(&text).unwrap(), plain);
                }
                None => prop_assert_eq!(Bytes.encode_marked(&format!("{before}{said}{after}")).unwrap(), plain),
            }
        }
    }
}
