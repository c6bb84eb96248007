//! Limits for the sizes in a tokenizer.json: ids, for which a table is allocated; expressions, which are matched at
//! every character of a text; and normalizers, which lengthen texts. Each is checked before any memory is allocated for
//! it.

use std::borrow::Cow;
use std::fmt;

use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::wrong::Wrong;
use crate::tokenizer::MAX_VOCAB;

/// The maximum number of added tokens, the maximum size of one of them in bytes, and the maximum size of all of them,
/// as in GGUF files. Searching for them in a text takes many times their size in memory.
pub(super) const MAX_ADDED: (usize, usize, usize) = (1 << 14, 1 << 10, 1 << 20);
/// The maximum size of a regular expression in bytes. GPT-4o's, the longest of the Llamas' expressions, has some 500.
const MAX_EXPRESSION: usize = 2048;
/// The maximum cost of lookarounds at each character: the number of lookarounds, times the numbers of repetitions. Real
/// expressions have a cost of up to three.
const MAX_AROUND: usize = 64;
/// The maximum size in bytes of a normalized text.
const MAX_NORMALIZED: usize = 16 << 20;

/// The ids of a vocabulary.
#[derive(Debug, Default)]
pub(super) struct Ids {
    count: u64,
    largest: Option<u64>,
}

impl Ids {
    /// The largest id, plus one.
    pub(super) fn end(&self) -> u64 {
        self.largest.map_or(self.count, |largest| largest + 1)
    }
}

impl<'de> Deserialize<'de> for Ids {
    /// Reads the ids and stores nothing else.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Look;
        impl<'de> Visitor<'de> for Look {
            type Value = Ids;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "tokens with ids below {MAX_VOCAB}, or a list of at most that many")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Ids, A::Error> {
                let mut ids = Ids::default();
                while let Some((IgnoredAny, id)) = map.next_entry::<IgnoredAny, u64>()? {
                    ids.count += 1;
                    ids.largest = ids.largest.max(Some(id));
                    check(id, ids.count)?;
                }
                Ok(ids)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Ids, A::Error> {
                let mut ids = Ids::default();
                while list.next_element::<IgnoredAny>()?.is_some() {
                    ids.count += 1;
                    check(0, ids.count)?;
                }
                Ok(ids)
            }
        }

        fn check<E: serde::de::Error>(id: u64, count: u64) -> Result<(), E> {
            match id < MAX_VOCAB as u64 && count <= MAX_VOCAB as u64 {
                true => Ok(()),
                false => Err(E::custom(format_args!(
                    "token {count} has id {id}; expected at most {MAX_VOCAB} tokens, with ids below that"
                ))),
            }
        }
        deserializer.deserialize_any(Look)
    }
}

/// An entry of `added_tokens`.
#[derive(Deserialize)]
pub(super) struct Added<'a> {
    pub(super) id: u64,
    #[serde(borrow)]
    pub(super) content: Cow<'a, str>,
}

/// Checks the added tokens. Returns the size in bytes of the shortest, or 1 if there is none.
pub(super) fn check_added(tokens: &[Added<'_>]) -> Result<usize, Wrong> {
    if let Some(token) = tokens.iter().find(|token| token.id >= MAX_VOCAB as u64) {
        return Err((format!("added_tokens: ids below {MAX_VOCAB}"), format!("id {}", token.id)));
    }
    let lengths = || tokens.iter().map(|token| token.content.len());
    let (count, longest, bytes) = (tokens.len(), lengths().max().unwrap_or(0), lengths().sum::<usize>());
    let (most, length, total) = MAX_ADDED;
    if count > most || longest > length || bytes > total {
        let expected = format!(
            "added_tokens: at most {most} tokens, each of at most {length} bytes, and at most {total} bytes in all"
        );
        return Err((
            expected,
            format!("{count} tokens, the longest of {longest} bytes, {bytes} bytes in all"),
        ));
    }
    Ok(lengths().filter(|&length| length > 0).min().unwrap_or(1))
}

/// Checks the regular expression of a part, if it has one.
pub(super) fn check_expression(part: &Value) -> Result<(), Wrong> {
    let Some(expression) = part["pattern"]["Regex"].as_str() else { return Ok(()) };
    if expression.len() > MAX_EXPRESSION {
        let expected = format!("regular expressions of at most {MAX_EXPRESSION} bytes");
        return Err((expected, format!("{} bytes", expression.len())));
    }
    let around = ["(?=", "(?!", "(?<=", "(?<!", "(?>"].map(|form| expression.matches(form).count());
    let around: usize = around.iter().sum();
    let effort = repetitions(expression).fold(around, usize::saturating_mul);
    if effort > MAX_AROUND {
        let expected = format!("regular expressions that look around a character at most {MAX_AROUND} times");
        return Err((expected, format!("{around} lookarounds, repeated up to {effort} times in all")));
    }
    Ok(())
}

/// The maximum of each repetition, `{n}` or `{n,m}`, in an expression.
fn repetitions(expression: &str) -> impl Iterator<Item = usize> {
    let inside = expression.split('{').skip(1).filter_map(|rest| Some(rest.split_once('}')?.0));
    inside.filter_map(|inside| {
        let numbers = inside.split(',').filter(|number| !number.trim().is_empty());
        numbers.map(|number| number.trim().parse().ok()).collect::<Option<Vec<usize>>>()?.into_iter().max()
    })
}

/// The maximum growth of a text by normalizers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Growth {
    /// The number of bytes that one byte may become.
    factor: usize,
    /// The number of bytes added to each stretch between two added tokens.
    prefix: usize,
    /// The size in bytes of the shortest added token.
    shortest: usize,
}

impl Growth {
    /// The growth without normalizers.
    pub(super) const NONE: Self = Self { factor: 1, prefix: 0, shortest: 1 };

    /// The growth by these normalizers in this order. `shortest` is the size of the shortest added token in bytes.
    pub(super) fn of<'p>(normalizers: impl Iterator<Item = &'p Value>, shortest: usize) -> Self {
        normalizers.fold(Self { shortest, ..Self::NONE }, |growth, part| {
            let content = part["content"].as_str().map_or(0, str::len);
            let factor = match part["type"].as_str() {
                Some("Prepend") => {
                    let more = part["prepend"].as_str().map_or(0, str::len);
                    return Self { prefix: growth.prefix.saturating_add(more), ..growth };
                }
                Some("Replace") => match part["pattern"]["String"].as_str() {
                    Some(pattern) => content.div_ceil(pattern.len().max(1)),
                    // A regular expression may match between any two bytes.
                    None => content + 1,
                },
                // From Unicode's tables: 11 is the growth of U+FDFA, and 3 that of the longest canonical decomposition.
                Some("NFKC" | "NFKD") => 11,
                Some("NFC" | "NFD" | "Lowercase") => 3,
                _ => 1,
            };
            let factor = factor.max(1);
            Self {
                factor: growth.factor.saturating_mul(factor),
                prefix: growth.prefix.saturating_mul(factor),
                ..growth
            }
        })
    }

    /// The same with another size of the shortest added token.
    pub(super) fn with_shortest(self, shortest: usize) -> Self {
        Self { shortest, ..self }
    }

    /// Checks that a text of `bytes` bytes stays within the limit.
    ///
    /// # Errors
    /// Returns what was expected and found.
    pub(super) fn check(self, bytes: usize) -> Result<(), Wrong> {
        let stretches = bytes / self.shortest + 1;
        let most = bytes.saturating_mul(self.factor).saturating_add(stretches.saturating_mul(self.prefix));
        if self == (Self { shortest: self.shortest, ..Self::NONE }) || most <= MAX_NORMALIZED {
            return Ok(());
        }
        let expected = format!("a normalized text of at most {MAX_NORMALIZED} bytes");
        Err((expected, format!("{bytes} bytes, which the tokenizer's normalizers may lengthen to {most}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ids_are_counted_and_bounded() {
        let ids = |value: Value| serde_json::from_value::<Ids>(value).map(|ids| ids.end());
        assert_eq!(ids(json!({"a": 0, "b": 7})).unwrap(), 8);
        assert_eq!(ids(json!([["a", 0.5], ["b", 1.0]])).unwrap(), 2);
        assert!(ids(json!({"a": 1 << 31})).unwrap_err().to_string().contains("2147483648"));
        assert!(ids(json!({"a": MAX_VOCAB})).is_err() && ids(json!({"a": MAX_VOCAB - 1})).is_ok());
        assert!(ids(json!({"a": -1})).is_err());
        let added = |id: u64, content: &str| check_added(&[Added { id, content: content.to_owned().into() }]);
        assert_eq!(added(5, "<s>").unwrap(), 3);
        assert!(added(1 << 31, "<s>").unwrap_err().1.contains("2147483648"));
        assert!(added(5, &"x".repeat(1025)).is_err());
    }

    #[test]
    fn expressions_look_around_a_few_times() {
        let check = |expression: &str| check_expression(&json!({"pattern": {"Regex": expression}}));
        for real in [
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            r"[!#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            r"\d{1,3}(?=(?:\d{3})*\b)",
            "a{1000}",
        ] {
            check(real).unwrap();
        }
        for wrong in ["(?=a)".repeat(65), "(?:(?=a)|b){65}".into(), "x".repeat(2049)] {
            check(&wrong).unwrap_err();
        }
    }

    #[test]
    fn growth_is_the_most_that_normalizers_can_do() {
        let of = |parts: &[Value]| Growth::of(parts.iter(), 3);
        let prepend = json!({"type": "Prepend", "prepend": "▁"});
        let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
        let llama_2 = of(&[prepend, replace]);
        assert_eq!((llama_2.factor, llama_2.prefix), (3, 9));
        llama_2.check(1 << 20).unwrap();
        let bomb = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "x".repeat(4096)});
        let bomb = of(&[bomb]);
        bomb.check(4096).unwrap();
        assert!(bomb.check(4097).unwrap_err().1.contains("16781312"));
        let empty = json!({"type": "Replace", "pattern": {"Regex": "a*"}, "content": "xx"});
        assert_eq!(of(&[empty]).factor, 3);
        assert_eq!(of(&[]).check(usize::MAX), Ok(()));
    }
}
