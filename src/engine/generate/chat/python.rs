//! Features of Python and transformers that minijinja lacks or formats differently.

use std::fmt;

use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, escape_formatter};
use serde_json::Value as Json;

use super::strings;

/// An exception that the template itself raised.
#[derive(Debug)]
pub(super) struct Raised(pub(super) String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// The function `raise_exception`, which templates call to reject a conversation.
pub(super) fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message)))
}

/// The names that Jinja gives to a macro's unnamed arguments.
pub(super) const UNKNOWN: [&str; 2] = ["varargs", "kwargs"];

/// Adds to `environment` the features of Python and Jinja that minijinja lacks or implements differently. Removes those
/// with another meaning.
pub(super) fn extend(environment: &mut Environment<'_>) {
    environment.set_formatter(print);
    environment.set_unknown_method_callback(strings::method);
    environment.add_filter("tojson", tojson);
    environment.add_filter("trim", |value: &Value, characters: Option<&str>| -> Result<String, Error> {
        Ok(strings::strip(&text(value)?, characters, true, true).to_owned())
    });
    environment.add_filter("string", text);
    environment.add_filter("join", join);
    environment.add_filter("int", int);
    environment.add_filter("float", float_of);
    environment.add_filter("title", |value: &Value| title(&text(value)?));
    environment.add_filter("capitalize", |value: &Value| strings::capitalized(&text(value)?));
    environment.add_filter("wordcount", |value: &Value| -> Result<usize, Error> {
        let words = text(value)?;
        Ok(words.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty()).count())
    });
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("joiner", minijinja_contrib::globals::joiner);
    environment.add_function("cycler", |items: Rest<Value>| minijinja_contrib::globals::cycler(items.0));
    environment.remove_filter("pprint");
}

/// Prints a value as Python's `str` does.
pub(super) fn print(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Number | ValueKind::Seq | ValueKind::Map => {
            escape_formatter(out, state, &Value::from(text(value)?))
        }
        _ => escape_formatter(out, state, value),
    }
}

/// The number, if it is not an integer.
fn fraction(value: &Value) -> Option<f64> {
    let number = (value.is_number() && !value.is_integer()).then(|| f64::try_from(value.clone()).ok());
    number.flatten()
}

/// A value in the format of Python's `str`.
///
/// # Errors
/// Returns an error if the value contains a number that minijinja would format differently.
pub(super) fn text(value: &Value) -> Result<String, Error> {
    if let Some(number) = fraction(value) {
        return Ok(float(number));
    }
    if matches!(value.kind(), ValueKind::Seq | ValueKind::Map) {
        check_numbers(value, 0)?;
    }
    Ok(value.to_string())
}

/// Checks that Python would format no number in `value` with an exponent.
fn check_numbers(value: &Value, depth: usize) -> Result<(), Error> {
    let wrong = |what: String| Err(Error::new(ErrorKind::InvalidOperation, what));
    if let Some(number) = fraction(value) {
        let python = float(number);
        return if python == value.to_string() {
            Ok(())
        } else {
            wrong(format!("the number {python} inside a list or mapping"))
        };
    }
    match value.kind() {
        // Deeper values are rejected when they are printed.
        _ if depth > 64 => Ok(()),
        ValueKind::Seq => value.try_iter()?.try_for_each(|item| check_numbers(&item, depth + 1)),
        ValueKind::Map => {
            value.try_iter()?.try_for_each(|key| check_numbers(&value.get_item(&key)?, depth + 1))
        }
        _ => Ok(()),
    }
}

/// The number that Python's `float` parses. `None` if Python rejects the text.
///
/// # Errors
/// Returns an error if Python may accept a text that Rust does not.
fn number(value: &Value) -> Result<Option<f64>, Error> {
    Ok(match value.as_str() {
        Some(text) => digits(text)?.parse().ok(),
        None if value.kind() == ValueKind::Bool => Some(if value.is_true() { 1.0 } else { 0.0 }),
        None => f64::try_from(value.clone()).ok(),
    })
}

/// The text, if Python and Rust parse the same number from it.
fn digits(text: &str) -> Result<&str, Error> {
    match text.is_ascii() && !text.contains('_') {
        true => Ok(strings::strip(text, None, true, true)),
        false => {
            Err(Error::new(ErrorKind::InvalidOperation, format!("the conversion of {text:?} to a number")))
        }
    }
}

/// The filter `float`.
fn float_of(value: &Value, default: Option<f64>) -> Result<f64, Error> {
    Ok(number(value)?.or(default).unwrap_or(0.0))
}

/// The filter `int`: an integer, or another number without its fraction, or else the default.
fn int(value: &Value, default: Option<i64>) -> Result<i64, Error> {
    let whole = match value.as_str() {
        Some(text) => digits(text)?.parse().ok(),
        None => value.as_i64(),
    };
    match whole {
        Some(whole) => Ok(whole),
        None => match number(value)?.filter(|number| number.is_finite()) {
            None => Ok(default.unwrap_or(0)),
            Some(number) if number.abs() < 9e15 => Ok(number as i64),
            Some(number) => Err(Error::new(ErrorKind::InvalidOperation, format!("int of {}", float(number)))),
        },
    }
}

/// A number in the format of Python's `repr`: the fewest digits that identify it, with an exponent if that is below -4
/// or above 15.
fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.into();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if number != 0.0 && !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => format!("{number:?}"),
    }
}

/// The filter `join`, with the items in the format of `str`.
#[expect(clippy::needless_pass_by_value, reason = "a filter takes its options so")]
fn join(value: &Value, separator: Option<&str>, options: Kwargs) -> Result<String, Error> {
    let attribute: Option<String> = options.get("attribute")?;
    let named: Option<String> = options.get("d")?;
    options.assert_all_used()?;
    let separator = separator.map(str::to_owned).or(named).unwrap_or_default();
    if value.is_undefined() {
        return Ok(String::new());
    }
    let mut joined = String::new();
    for (at, item) in value.try_iter()?.enumerate() {
        if at > 0 {
            joined += &separator;
        }
        let item = match &attribute {
            Some(name) => item.get_attr(name)?,
            None => item,
        };
        joined += &text(&item)?;
    }
    Ok(joined)
}

/// The filter `title`. A word begins after white space, a hyphen or an opening bracket.
fn title(text: &str) -> Result<String, Error> {
    let begins = |c: char| strings::is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    let mut first = true;
    let letters = text.chars().map(|c| {
        let letter = if first { Ok(c.to_uppercase().to_string()) } else { Ok(c.to_lowercase().to_string()) };
        first = begins(c);
        letter
    });
    letters.collect()
}

/// The filter `tojson` of chat templates: `json.dumps` with its `indent`, `separators`, `ensure_ascii` and `sort_keys`,
/// and without HTML escapes.
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
        Some(_) => return Err(wrong("tojson without exactly two separators")),
    };
    let ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sorted = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let json = serde_json::to_value(value).map_err(|error| wrong(&error.to_string()))?;
    let mut dump = Dump { indent, separators, ascii, sorted, text: String::new() };
    dump.value(&json, 0);
    Ok(Value::from(dump.text))
}

/// The state of a `json.dumps` call.
struct Dump {
    indent: Option<usize>,
    /// The separators between items, and between a key and its value.
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
