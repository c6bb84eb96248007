//! JSON in Python's dialect.

use std::borrow::Cow;

use serde::de::DeserializeOwned;

/// Parses JSON text like Python's `json`. The values NaN and ±infinity, which JSON does not have, become the strings
/// `NaN`, `Infinity` and `-Infinity`.
///
/// # Errors
/// The errors of [`serde_json::from_str`].
pub(crate) fn read_json<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    serde_json::from_str(text).or_else(|error| match quoted(text) {
        Cow::Borrowed(_) => Err(error),
        Cow::Owned(text) => serde_json::from_str(&text),
    })
}

/// The text with the non-JSON numbers put in quotes.
fn quoted(text: &str) -> Cow<'_, str> {
    let (mut out, mut rest) = (String::new(), text);
    let part_of_word = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    while let Some(start) = rest.find(|c| c == '"' || part_of_word(c)) {
        let (between, from) = rest.split_at(start);
        out.push_str(between);
        let length = match from.starts_with('"') {
            true => string_length(from),
            false => from.find(|c| !part_of_word(c)).unwrap_or(from.len()),
        };
        let (word, after) = from.split_at(length);
        let number = word.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit());
        match word {
            "NaN" | "Infinity" | "-Infinity" => out += &format!("\"{word}\""),
            // Python parses a number beyond the largest float64 as infinity.
            _ if number && word.parse::<f64>().is_ok_and(f64::is_infinite) => {
                out += if word.starts_with('-') { "\"-Infinity\"" } else { "\"Infinity\"" };
            }
            _ => out.push_str(word),
        }
        rest = after;
    }
    out.push_str(rest);
    if out == text { Cow::Borrowed(text) } else { Cow::Owned(out) }
}

/// The length of the string at the beginning of `text`, with its quotes. If the string does not end, the length of
/// `text`.
fn string_length(text: &str) -> usize {
    let mut escaped = false;
    let end = text.bytes().skip(1).position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    });
    end.map_or(text.len(), |end| end + 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    #[test]
    fn numbers_that_are_none_are_read_as_python_reads_them() {
        let read = |text: &str| read_json::<Value>(text).unwrap();
        assert_eq!(
            read(
                r#"{"a": NaN, "b":[Infinity,-Infinity , 1e999, -1e999,-1], "é\"NaN": "NaN, Infinity \\", "c": 2}"#
            ),
            json!({
                "a": "NaN", "b": ["Infinity", "-Infinity", "Infinity", "-Infinity", -1],
                "é\"NaN": "NaN, Infinity \\", "c": 2,
            })
        );
        assert_eq!(read("NaN"), json!("NaN"));
        for wrong in
            ["nan", "inf", "infinity", "+Infinity", "-NaN", "NaN1", "--1e999", "{NaN", "{\"a", "{\"a\\"]
        {
            assert!(read_json::<Value>(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[NaIinfty\"\\\\{}:,é1e9. -]{0,60}") {
            let _ = read_json::<Value>(&text);
            if let Ok(value) = serde_json::from_str::<Value>(&text) {
                prop_assert_eq!(read_json::<Value>(&text).unwrap(), value);
            }
        }
    }
}
