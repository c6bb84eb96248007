//! Tokenization of long texts, one piece at a time. The `tokenizers` crate uses some 350 bytes for each byte of a text
//! until all of it is split, and a text may have megabytes. If the text is split piece by piece, only one piece needs
//! that memory. This is done only if the ids are the same.
//!
//! The ids are the same if the text is cut before a single blank that stands between two letters or digits. The
//! published expressions end a word before the blank, whatever comes before and after. The rest of the file is checked
//! too. With other expressions, or with tokens that cross a blank, the text is split as a whole.
//!
//! A long text without such a blank is also cut inside a word, between two letters that no token joins. Every step of a
//! merge is a token, so no step crosses that place. See [`Inside`].

use std::collections::HashSet;

use serde_json::Value;
use tokenizers::{AddedToken, Model as _, ModelWrapper, Tokenizer};

use super::byte_level::Cut;
use crate::tokenizer::gguf;

/// The approximate length of a piece in bytes.
pub(super) const LENGTH: usize = 64 << 10;

/// Published expressions that [`Cut`] does not contain: GPT-4's, GPT-4o's, Mistral's tekken.
const PUBLISHED: [&str; 3] = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

/// The blanks before which a piece may end.
type Blanks = &'static [u8];

/// Returns whether this is a letter or a digit in every expression.
fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '\u{4e00}'..='\u{9fa5}')
}

/// Places inside words at which a text may be cut: between two ASCII letters of lower case, or before a digit. On both
/// sides of the place, there are only letters and digits for longer than any token. No token occurs across the place.
#[derive(Debug)]
pub(super) struct Inside {
    /// The tokens that consist only of letters and digits.
    tokens: HashSet<String>,
    /// More than the longest stretch of letters and digits in any token.
    reach: usize,
}

impl Inside {
    /// The places for this tokenizer. `None` if it is not a byte-level BPE, or has affixes or dropout.
    pub(super) fn of(inner: &Tokenizer) -> Option<Self> {
        let ModelWrapper::BPE(model) = inner.get_model() else { return None };
        let pre_tokenizer = serde_json::to_value(inner.get_pre_tokenizer()).unwrap_or_default();
        let mut parts = Vec::new();
        flatten(pre_tokenizer, "pretokenizers", &mut parts);
        let bytes = parts.iter().any(|part| part["type"] == "ByteLevel");
        let affixes = [&model.continuing_subword_prefix, &model.end_of_word_suffix]
            .iter()
            .any(|affix| affix.as_deref().is_some_and(|affix| !affix.is_empty()));
        if !bytes || affixes || model.dropout.is_some() {
            return None;
        }
        let (mut tokens, mut reach) = (HashSet::new(), 0);
        for token in inner.get_vocab(true).into_keys() {
            let stretches = token.split(|c: char| !c.is_ascii_alphanumeric());
            reach = stretches.map(str::len).max().unwrap_or(0).max(reach);
            if token.len() > 1 && token.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
                tokens.insert(token);
            }
        }
        Some(Self { tokens, reach: reach.max(8) + 1 })
    }

    /// Returns whether `text` may be cut at this byte.
    fn allows(&self, text: &str, at: usize) -> bool {
        let bytes = text.as_bytes();
        let pair = bytes[at - 1].is_ascii_lowercase() && bytes[at].is_ascii_lowercase();
        let digit = bytes[at - 1].is_ascii_alphabetic() && bytes[at].is_ascii_digit();
        let Some(around) = at.checked_sub(self.reach).and_then(|from| bytes.get(from..at + self.reach))
        else {
            return false;
        };
        // At a cut between letters, all letters around it must be of lower case. Then no contraction and no change of
        // case splits the word differently.
        let plain = if pair { u8::is_ascii_lowercase } else { u8::is_ascii_alphanumeric };
        (pair || digit)
            && around.iter().all(plain)
            && !(at + 1..at + self.reach).any(|end| {
                (end.saturating_sub(self.reach)..at)
                    .rev()
                    .any(|start| self.tokens.contains(&text[start..end]))
            })
    }
}

/// The pieces of `text`, each of about `length` bytes, or longer if there is no earlier place to end.
pub(super) fn of<'t>(
    text: &'t str,
    length: usize,
    blanks: Blanks,
    inside: Option<&'t Inside>,
) -> impl Iterator<Item = &'t str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (piece, next) = rest.split_at(end(rest, length, blanks, inside));
        rest = next;
        (!piece.is_empty()).then_some(piece)
    })
}

/// The end of the first piece of `text`: before a blank, or inside a word.
fn end(text: &str, length: usize, blanks: Blanks, inside: Option<&Inside>) -> usize {
    let bytes = text.as_bytes();
    let ends = |&at: &usize| {
        blanks.contains(&bytes[at])
            && text[..at].chars().next_back().is_some_and(is_word)
            && text[at + 1..].chars().next().is_some_and(is_word)
    };
    // Looks for a blank first, because it is cheaper to find.
    let near = (length.max(1)..text.len().min(2 * length)).find(ends);
    let near = near.or_else(|| {
        let within = |&at: &usize| inside.is_some_and(|inside| inside.allows(text, at)) || ends(&at);
        (length.max(1)..text.len()).find(within)
    });
    near.unwrap_or(text.len())
}

/// The blanks before which pieces may end without a change of the ids. `None` if the ids would change.
pub(super) fn blanks(inner: &Tokenizer) -> Option<Blanks> {
    let parts = |section: serde_json::Result<Value>, list: &str| {
        let mut parts = Vec::new();
        flatten(section.unwrap_or_default(), list, &mut parts);
        parts
    };
    // These change neither words nor blanks, unless a combining mark follows.
    let kept = |part: &Value| ["NFC", "NFD", "NFKC", "NFKD"].iter().any(|form| part["type"] == *form);
    if !parts(serde_json::to_value(inner.get_normalizer()), "normalizers").iter().all(kept)
        || inner.get_added_tokens_decoder().values().any(reaches_over)
    {
        return None;
    }
    let pre_tokenizer = parts(serde_json::to_value(inner.get_pre_tokenizer()), "pretokenizers");
    match &pre_tokenizer[..] {
        // A text that begins with a blank gets no additional one.
        [part] if part["type"] == "Metaspace" => {
            (part["replacement"] == "▁" && (part["split"] == true || never_merged(inner))).then_some(b" ")
        }
        parts => ends_words(parts).then_some(b" \n"),
    }
}

/// Returns whether no token has a `▁` after a letter or a digit. The two are then never merged.
fn never_merged(inner: &Tokenizer) -> bool {
    let ModelWrapper::BPE(model) = inner.get_model() else { return false };
    let merged = |token: &String| {
        token.match_indices('▁').any(|(at, _)| token[..at].chars().next_back().is_some_and(is_word))
    };
    !model.ignore_merges && model.token_to_id("▁").is_some() && !model.get_vocab().keys().any(merged)
}

/// The parts of a section: a single part or a sequence of them.
fn flatten(mut section: Value, list: &str, parts: &mut Vec<Value>) {
    match section.get_mut(list).map(Value::take) {
        Some(Value::Array(inner)) => inner.into_iter().for_each(|part| flatten(part, list, parts)),
        _ if section.is_null() => {}
        _ => parts.push(section),
    }
}

/// Returns whether these parts of a pre-tokenizer end a word before a blank, and change nothing at the ends of a text.
fn ends_words(parts: &[Value]) -> bool {
    let mut expressions = Vec::new();
    let mut words = false;
    for part in parts {
        match part["type"].as_str() {
            Some("ByteLevel") if part["add_prefix_space"] == false => words |= part["use_regex"] != false,
            Some("Whitespace" | "WhitespaceSplit") => words = true,
            Some("Digits" | "Punctuation") => {}
            Some("Split") => {
                let whole = (part["behavior"].as_str(), part["invert"].as_bool());
                let whole = matches!(whole, (Some("Isolated"), _) | (Some("Removed"), Some(true)));
                let Some(expression) = part["pattern"]["Regex"].as_str().filter(|_| whole) else {
                    return false;
                };
                expressions.push(expression);
            }
            _ => return false,
        }
    }
    match expressions.is_empty() {
        true => words,
        false => known().any(|known| known == expressions),
    }
}

/// The lists of expressions that are known to end a word before a blank.
fn known() -> impl Iterator<Item = Vec<String>> {
    let cuts = [Cut::Llama3, Cut::Qwen2].into_iter().chain(gguf::cuts()).map(Cut::expressions);
    // One of llama.cpp's expressions treats single letters with blanks between them as one word. It is left out.
    let cuts = cuts.filter(|all| !all.iter().any(|expression| expression.contains(r"(?: \p{L}")));
    cuts.chain(PUBLISHED.map(|expression| vec![expression.to_owned()]))
}

/// Returns whether an added token may cross the end of a piece, or depends on the characters there.
fn reaches_over(token: &AddedToken) -> bool {
    let text = token.content.as_str();
    let over = text.trim_start().contains(char::is_whitespace);
    let asks = token.rstrip || token.single_word;
    over || asks && (text.starts_with(char::is_whitespace) || text.ends_with(is_word))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::super::Tokenizer as _;
    use super::super::HfTokenizer;
    use super::super::byte_level::{ByteLevel, spelt};
    use super::super::tests::{byte_level, load};
    use super::*;

    /// A tokenizer with this pre-tokenization, and merges across every place where it does not split.
    fn tokenizer(cut: Cut) -> HfTokenizer {
        let letters = (0..=u8::MAX).map(|byte| spelt(&[byte]));
        let merged =
            ["aa", "Ġa", "aĠ", "ĠĠ", "ĊĊ", "Ċa", "1Ġ", "Ġ1", "11", "a.", "aa.", "'s", "ĠaĠ", "aĊ", "1Ċ"];
        let tokens: Vec<String> = letters.chain(merged.map(String::from)).chain(["<|x|>".into()]).collect();
        let merges = merged.iter().map(|merged| {
            let last = merged.char_indices().next_back().unwrap().0;
            (merged[..last].to_owned(), merged[last..].to_owned())
        });
        let special = tokens.len() as u32 - 1;
        let parts = ByteLevel {
            merges: merges.collect(),
            tokens,
            by_id: false,
            added: Vec::new(),
            special: vec![special],
            cut,
            whole: false,
            before: Some(special),
            after: Some(special),
            ends: Vec::new(),
        };
        parts.build("test").unwrap()
    }

    #[test]
    fn a_piece_ends_before_one_blank_between_words() {
        let pieces = |text, length| of(text, length, b" \n", None).collect::<Vec<_>>();
        assert_eq!(pieces("ab cd 1\n2 ", 1), ["ab", " cd", " 1", "\n2 "]);
        assert_eq!(pieces("ab  cd. e, é f é", 1), ["ab  cd. e, é f é"]);
        assert_eq!(pieces("ab cd ef gh", 4), ["ab cd", " ef gh"]);
        assert_eq!((pieces("", 4), pieces("一 二", 1)), (vec![], vec!["一", " 二"]));
    }

    #[test]
    fn what_reaches_over_a_blank_is_split_as_a_whole() {
        let with = |change: &dyn Fn(&mut Value)| {
            let mut file = byte_level();
            change(&mut file);
            blanks(&load(&file).inner).is_some()
        };
        assert!(with(&|_| ()));
        assert!(with(&|file| file["normalizer"] = json!({"type": "NFC"})));
        assert!(!with(&|file| file["normalizer"] = json!({"type": "Prepend", "prepend": "a"})));
        assert!(!with(&|file| file["pre_tokenizer"] = Value::Null));
        assert!(!with(&|file| file["pre_tokenizer"]["use_regex"] = false.into()));
        assert!(!with(&|file| file["pre_tokenizer"]["add_prefix_space"] = true.into()));
        let flags = [
            ("<a b>", "lstrip", false),
            ("end", "rstrip", false),
            ("end", "lstrip", true),
            ("<|end|>", "rstrip", true),
        ];
        for (name, flag, expected) in flags {
            let found = with(&|file| {
                file["added_tokens"][1]["content"] = name.into();
                file["added_tokens"][1][flag] = true.into();
            });
            assert_eq!(found, expected, "{name} {flag}");
        }
        let split = |regex: &str| {
            let pattern = json!({"Regex": regex});
            let part = json!({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false});
            with(&|file| file["pre_tokenizer"] = part.clone())
        };
        assert!(PUBLISHED.iter().all(|expression| split(expression)));
        assert!(!split(r"\S+ \S+"));
    }

    /// A long text has the same ids as when it is split as a whole, and the post-processor adds its tokens only once.
    #[test]
    fn long_texts_are_split_as_short_ones() {
        let tokenizer = tokenizer(Cut::Llama3);
        let text = "aa a1 .'s <|x|>\n".repeat(2 * LENGTH / 16);
        for (plain, added) in [(false, true), (true, false), (false, false)] {
            let whole = tokenizer.whole(&text, 0, plain, added).unwrap();
            assert_eq!(tokenizer.ids(&text, plain, added).unwrap(), whole.get_ids());
        }
        // The position of a character without a token refers to the whole text.
        let text = "ab a ".repeat(LENGTH / 4) + "z";
        let error = load(&byte_level()).encode(&text).unwrap_err().to_string();
        assert!(error.contains(&format!("byte {} ", text.len() - 1)), "{error}");
    }

    /// A tokenizer like Llama 2's: a `▁` for each blank and before a text, and merges over the whole text.
    fn metaspace(scheme: &str, split: bool, merges: &[&str]) -> HfTokenizer {
        let mut file = super::super::tests::pieces();
        file["normalizer"] = Value::Null;
        file["pre_tokenizer"] =
            json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split});
        file["model"]["merges"] = json!(merges);
        for merge in merges {
            let id = file["model"]["vocab"].as_object().unwrap().len();
            let merged = merge.replace(' ', "");
            file["model"]["vocab"].as_object_mut().unwrap().entry(merged).or_insert(id.into());
        }
        load(&file)
    }

    #[test]
    fn merges_over_a_blank_keep_a_text_whole() {
        let blanks = |split, merges: &[&str]| blanks(&metaspace("first", split, merges).inner);
        assert_eq!(blanks(false, &["▁ a", "▁ ▁"]), Some(&b" "[..]));
        assert_eq!((blanks(false, &["a ▁"]), blanks(true, &["a ▁"])), (None, Some(&b" "[..])));
    }

    /// A merge crosses a cut only if a token crosses it.
    #[test]
    fn a_word_is_cut_where_no_token_joins_its_letters() {
        let tokenizer = tokenizer(Cut::Llama3);
        let inside = Inside::of(&tokenizer.inner).unwrap();
        let (mut seed, mut text) = (7_u64, String::new());
        while text.len() < 6000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let letters = if seed >> 63 == 0 { "aaabcd" } else { "aA1b9c" };
            text.push(letters.as_bytes()[(seed >> 40) as usize % 6].into());
            text += if (seed >> 33).is_multiple_of(97) { "-" } else { "" };
            text += if (seed >> 33).is_multiple_of(5) { "bcdbcdbcdbcd" } else { "" };
        }
        let ids = |text: &str| tokenizer.whole(text, 0, true, false).unwrap().get_ids().to_vec();
        for length in [1, 5, 64] {
            let pieces: Vec<&str> = of(&text, length, b" \n", Some(&inside)).collect();
            assert!(pieces.len() > 20, "{}", pieces.len());
            assert_eq!(pieces.iter().flat_map(|piece| ids(piece)).collect::<Vec<u32>>(), ids(&text));
        }
        assert!(!inside.allows(&"a".repeat(100), 50));
    }

    proptest! {
        #[test]
        fn pieces_with_spaces_as_letters_have_the_ids_of_the_whole(
            text in "[ab1x▁ \né]{0,40}", scheme in "first|always|never", split: bool,
        ) {
            let tokenizer = metaspace(&scheme, split, &["▁ a", "▁ ▁", "a b", "▁▁ ▁a"]);
            let ids = |text: &str| tokenizer.whole(text, 0, true, false).unwrap().get_ids().to_vec();
            let pieces: Vec<u32> = of(&text, 1, b" ", None).flat_map(ids).collect();
            prop_assert_eq!(pieces, ids(&text));
        }

        #[test]
        fn pieces_have_the_ids_of_the_whole(
            text in "[aBé1一 \n\r\t.'s/(\u{301}]{0,40}|([a1] ?|\n[a1]|\u{301}|\\.|  | 's){0,30}",
        ) {
            thread_local! {
                static MADE: Vec<HfTokenizer> = {
                    let cuts = [Cut::Gpt2, Cut::SmolLm, Cut::Llama3, Cut::Qwen2].into_iter();
                    let made = cuts.chain(gguf::cuts()).map(tokenizer);
                    made.filter(|tokenizer| blanks(&tokenizer.inner).is_some()).collect()
                };
            }
            let ids = |tokenizer: &HfTokenizer, text: &str| {
                tokenizer.whole(text, 0, true, false).unwrap().get_ids().to_vec()
            };
            MADE.with(|made| {
                prop_assert!(made.len() > 20);
                for tokenizer in made {
                    let pieces: Vec<u32> = of(&text, 1, b" \n", None).flat_map(|piece| ids(tokenizer, piece)).collect();
                    prop_assert_eq!(pieces, ids(tokenizer, &text), "{:?}", tokenizer.inner.get_pre_tokenizer());
                }
                Ok(())
            })?;
        }
    }
}
