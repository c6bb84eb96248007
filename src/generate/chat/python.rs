//! What Python and transformers have and minijinja has not, or writes in another way.

use std::fmt;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, Output, State, escape_formatter};
use serde_json::Value as Json;

/// The template itself said no.
#[derive(Debug)]
pub(super) struct Raised(pub(super) String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// The function `raise_exception`, by which templates refuse a conversation.
pub(super) fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message)))
}

/// Prints a value as Python's `str` does.
pub(super) fn print(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => escape_formatter(out, state, &Value::from("None")),
        ValueKind::Bool if value.is_true() => escape_formatter(out, state, &Value::from("True")),
        ValueKind::Bool => escape_formatter(out, state, &Value::from("False")),
        _ => escape_formatter(out, state, value),
    }
}

/// The filter `tojson` of chat templates: `json.dumps` with its `indent`, `separators`, `ensure_ascii` and
/// `sort_keys`, and no escapes for HTML.
#[expect(clippy::needless_pass_by_value, reason = "a filter takes its options so")]
pub(super) fn tojson(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let wrong = |what: &str| Error::new(ErrorKind::InvalidOperation, what.to_owned());
    let indent = options.get::<Option<usize>>("indent")?;
    if indent.is_some_and(|indent| indent > 16) {
        return Err(wrong("tojson with an indent of more than 16"));
    }
    let separators = match options.get::<Option<Vec<String>>>("separators")?.as_deref() {
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(wrong("tojson with separators that are not two")),
    };
    let ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sorted = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let json = serde_json::to_value(value).map_err(|error| wrong(&error.to_string()))?;
    let mut dump = Dump { indent, separators, ascii, sorted, text: String::new() };
    dump.value(&json, 0);
    Ok(Value::from(dump.text))
}

/// `json.dumps` under way.
struct Dump {
    indent: Option<usize>,
    /// Between items, and between a key and its value.
    separators: (String, String),
    ascii: bool,
    sorted: bool,
    text: String,
}

impl Dump {
    fn value(&mut self, value: &Json, depth: usize) {
        match value {
            Json::String(text) => self.string(text),
            Json::Array(items) => {
                self.items(('[', ']'), items.iter(), depth, |dump, item| dump.value(item, depth + 1));
            }
            Json::Object(fields) => {
                let mut fields: Vec<_> = fields.iter().collect();
                if self.sorted {
                    fields.sort_by_key(|(name, _)| name.as_str());
                }
                self.items(('{', '}'), fields.into_iter(), depth, |dump, (name, value)| {
                    dump.string(name);
                    dump.text += &dump.separators.1;
                    dump.value(value, depth + 1);
                });
            }
            other => self.text += &other.to_string(),
        }
    }

    fn items<T>(
        &mut self,
        (open, close): (char, char),
        items: impl ExactSizeIterator<Item = T>,
        depth: usize,
        mut write: impl FnMut(&mut Self, T),
    ) {
        let empty = items.len() == 0;
        self.text.push(open);
        for (at, item) in items.enumerate() {
            if at > 0 {
                self.text += &self.separators.0;
            }
            self.line(depth + 1);
            write(self, item);
        }
        if !empty {
            self.line(depth);
        }
        self.text.push(close);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.text.push('\n');
            self.text += &" ".repeat(indent * depth);
        }
    }

    fn string(&mut self, text: &str) {
        let quoted = Json::from(text).to_string();
        if !self.ascii {
            self.text += &quoted;
            return;
        }
        for character in quoted.chars() {
            if character.is_ascii() {
                self.text.push(character);
            } else {
                let units = character.encode_utf16(&mut [0; 2]).to_vec();
                self.text.extend(units.iter().map(|unit| format!("\\u{unit:04x}")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::value::Serde;
    use serde_json::json;

    #[test]
    fn json_is_written_as_by_python() {
        let value = Value::from(Serde(json!({"b": [1, 2.5, null], "a": "é\"<", "c": {}})));
        let dump = |options: &[(&str, Value)]| {
            let options = options.iter().map(|(name, value)| (*name, value.clone())).collect();
            tojson(&value, options).unwrap().to_string()
        };
        assert_eq!(dump(&[]), r#"{"b": [1, 2.5, null], "a": "é\"<", "c": {}}"#);
        assert_eq!(
            dump(&[("sort_keys", true.into()), ("ensure_ascii", true.into())]),
            r#"{"a": "\u00e9\"<", "b": [1, 2.5, null], "c": {}}"#
        );
        let indented =
            "{\n  \"b\": [\n    1,\n    2.5,\n    null\n  ],\n  \"a\": \"é\\\"<\",\n  \"c\": {}\n}";
        assert_eq!(dump(&[("indent", 2.into())]), indented);
    }
}
