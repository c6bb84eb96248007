//! Decoding of a tokenizer.json's tokens to bytes, one token at a time.
//!
//! The `tokenizers` crate decodes a whole list of ids. While the text ends inside a character, the crate's stream
//! decodes a growing list again for each id. If the character stays invalid, this never ends. Each of the decoders used
//! by Llamas maps a token to bytes independently, except for the leading space of the first token.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::Value;

use super::wrong::Wrong;
use crate::tokenizer::label::byte_token;

/// The decoding of a token's name in the vocabulary to bytes of text.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Decoder {
    /// Tokens are words, with a space between two of them (no decoder).
    Words,
    /// GPT-2's alphabet: each character of the token represents a byte.
    ByteLevel,
    /// SentencePiece: `▁` for a space, and tokens `<0xE2>` for bytes.
    Pieces(Pieces),
}

/// The parameters of [`Decoder::Pieces`].
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Pieces {
    /// The replacements in each token, in this order.
    replace: Vec<(String, String)>,
    /// Whether tokens `<0xE2>` represent bytes.
    byte_fallback: bool,
    /// How the leading space that encoding added is removed.
    lead: Lead,
}

/// The part removed at the beginning of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Lead {
    /// Nothing.
    #[default]
    Keep,
    /// Up to this many spaces (`Strip`).
    Spaces(usize),
    /// Every space of the first token (`Metaspace`).
    FirstToken,
}

impl Decoder {
    /// The decoder that a tokenizer.json describes.
    pub(super) fn new(value: &Value) -> Result<Self, Wrong> {
        let parts = match value["type"].as_str() {
            Some("Sequence") => value["decoders"].as_array().map_or(&[][..], Vec::as_slice),
            _ => std::slice::from_ref(value),
        };
        let mut byte_level = false;
        let mut pieces = Pieces::default();
        let mut fused = false;
        for part in parts {
            let wrong = || {
                let expected =
                    "decoder: ByteLevel, Metaspace, or a sequence of Replace, ByteFallback, Fuse and Strip";
                (expected.to_string(), part.to_string())
            };
            match part["type"].as_str() {
                Some("ByteLevel") => byte_level = true,
                Some("Fuse") => fused = true,
                Some("ByteFallback") => pieces.byte_fallback = true,
                Some("Replace") => {
                    let from = part["pattern"]["String"].as_str().filter(|from| !from.is_empty());
                    let to = part["content"].as_str();
                    let (from, to) = from.zip(to).ok_or_else(wrong)?;
                    pieces.replace.push((from.into(), to.into()));
                }
                // Before `Fuse`, `Strip` would apply to each token.
                Some("Strip") if fused && part["content"] == " " && part["stop"] == 0 => {
                    let spaces = part["start"].as_u64().and_then(|count| usize::try_from(count).ok());
                    pieces.lead = Lead::Spaces(spaces.ok_or_else(wrong)?);
                }
                Some("Metaspace") => {
                    let mark = part["replacement"].as_str().ok_or_else(wrong)?;
                    pieces.replace.push((mark.into(), " ".into()));
                    let kept = part["prepend_scheme"] == "never" || part["add_prefix_space"] == false;
                    pieces.lead = if kept { Lead::Keep } else { Lead::FirstToken };
                }
                _ => return Err(wrong()),
            }
        }
        match byte_level {
            true if pieces == Pieces::default() => Ok(Self::ByteLevel),
            true => Err(("decoder: only ByteLevel".into(), value.to_string())),
            false => Ok(Self::Pieces(pieces)),
        }
    }

    /// The bytes of `token` in the middle of a text.
    pub(super) fn bytes(&self, token: &str) -> Vec<u8> {
        match self {
            Self::Words => token.into(),
            // A token with a character outside the alphabet was added later and is copied unchanged.
            Self::ByteLevel => {
                token.chars().map(alphabet_byte).collect::<Option<_>>().unwrap_or(token.into())
            }
            Self::Pieces(pieces) => {
                let mut token = std::borrow::Cow::Borrowed(token);
                for (from, to) in &pieces.replace {
                    token = token.replace(from, to).into();
                }
                match byte_token(token.as_bytes()).filter(|_| pieces.byte_fallback) {
                    Some(byte) => vec![byte],
                    None => token.into_owned().into(),
                }
            }
        }
    }
}

/// The state of decoding one text.
#[derive(Debug)]
pub(super) struct Decoding<'a> {
    decoder: &'a Decoder,
    /// Whether there was no token yet.
    first: bool,
    /// The number of spaces that are still removed; 0 as soon as another character came.
    lead: usize,
}

impl<'a> Decoding<'a> {
    pub(super) fn new(decoder: &'a Decoder) -> Self {
        let lead = match decoder {
            Decoder::Pieces(Pieces { lead: Lead::Spaces(count), .. }) => *count,
            _ => 0,
        };
        Self { decoder, first: true, lead }
    }

    /// The bytes that `token` adds to the text.
    pub(super) fn push(&mut self, token: &str) -> Vec<u8> {
        let mut bytes = self.decoder.bytes(token);
        let first = std::mem::replace(&mut self.first, false);
        match self.decoder {
            Decoder::Words if !first => bytes.insert(0, b' '),
            Decoder::Pieces(Pieces { lead: Lead::FirstToken, .. }) if first => {
                bytes.retain(|&byte| byte != b' ');
            }
            _ => {}
        }
        if self.lead > 0 && !bytes.is_empty() {
            let spaces = bytes.iter().take(self.lead).take_while(|&&byte| byte == b' ').count();
            // Anything other than a space ends the beginning.
            self.lead = if spaces == bytes.len() { self.lead - spaces } else { 0 };
            bytes.drain(..spaces);
        }
        bytes
    }
}

/// GPT-2's alphabet: the character for each byte. Printable Latin-1 characters represent themselves. The other bytes,
/// in order, are U+0100 and the following characters (`bytes_to_unicode` in OpenAI's encoder.py).
pub(super) static ALPHABET: LazyLock<[char; 256]> = LazyLock::new(|| {
    let mut others = '\u{100}'..;
    std::array::from_fn(|byte| match char::from(byte as u8) {
        letter @ ('!'..='~' | '¡'..='¬' | '®'..='ÿ') => letter,
        letter => others.next().unwrap_or(letter),
    })
});

/// The byte of a character in GPT-2's alphabet.
fn alphabet_byte(character: char) -> Option<u8> {
    static BYTES: LazyLock<HashMap<char, u8>> =
        LazyLock::new(|| ALPHABET.iter().copied().zip(0..=255).collect());
    BYTES.get(&character).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn decode(decoder: &Decoder, tokens: &[&str]) -> String {
        let mut decoding = Decoding::new(decoder);
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| decoding.push(token)).collect();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn gpt_2_spells_bytes_as_characters() {
        assert_eq!(alphabet_byte('Ġ'), Some(b' '));
        assert_eq!(alphabet_byte('Ċ'), Some(b'\n'));
        assert_eq!(alphabet_byte('â'), Some(0xe2));
        assert_eq!(alphabet_byte('Ń'), Some(0xad));
        assert_eq!(alphabet_byte(' '), None);
        assert_eq!(alphabet_byte('€'), None);
        let all = (0..0x200).filter_map(char::from_u32).filter_map(alphabet_byte);
        let mut all: Vec<u8> = all.collect();
        all.sort_unstable();
        assert_eq!(all, (0..=255).collect::<Vec<u8>>());
    }

    #[test]
    fn the_llama_2_sequence() {
        let decoder = Decoder::new(&json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]}));
        let decoder = decoder.unwrap();
        assert_eq!(decode(&decoder, &["▁Hello", "▁world", "<0xE2>", "<0x82>", "<0xAC>"]), "Hello world€");
        assert_eq!(decode(&decoder, &["▁▁", "▁x"]), "  x");
        assert_eq!(decode(&decoder, &["x", "▁y"]), "x y");
    }

    #[test]
    fn metaspace_and_words() {
        let metaspace = Decoder::new(&json!({"type": "Metaspace", "replacement": "▁"})).unwrap();
        assert_eq!(decode(&metaspace, &["▁Hey", "▁you"]), "Hey you");
        let never = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"});
        assert_eq!(decode(&Decoder::new(&never).unwrap(), &["▁Hey"]), " Hey");
        assert_eq!(decode(&Decoder::Words, &["hello", "world"]), "hello world");
    }

    #[test]
    fn other_decoders_are_refused_with_their_text() {
        for wrong in [
            json!({"type": "WordPiece", "prefix": "##"}),
            json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}),
            json!({"type": "Replace", "pattern": {"Regex": "a"}, "content": ""}),
            json!({"type": "Replace", "pattern": {"String": ""}, "content": "x"}),
            json!({"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "ByteFallback"}]}),
            json!({}),
            json!(3),
        ] {
            assert_eq!(Decoder::new(&wrong).unwrap_err().1, wrong.to_string());
        }
    }
}
