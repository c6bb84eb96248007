//! Features of Python and transformers that minijinja does not have, or that it formats differently.

use std::fmt;

use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, escape_formatter};
use serde_json::Value as Json;

use super::order;
use super::strings::{self, View, wrong};

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

/// Names that Jinja defines, but minijinja does not.
pub(super) const UNKNOWN: [&str; 3] = ["varargs", "kwargs", "lipsum"];

/// Adds to `environment` those features of Python and Jinja that minijinja does not have or implements differently.
/// Removes features of minijinja that Jinja does not have, or that have another meaning in Jinja.
pub(super) fn extend(environment: &mut Environment<'_>) {
    environment.set_formatter(print);
    environment.set_unknown_method_callback(strings::method);
    order::extend(environment);
    environment.add_filter("tojson", tojson);
    environment.add_filter("trim", |value: &Value, characters: Option<&str>| -> Result<String, Error> {
        Ok(strings::strip(&text(value)?, characters, true, true).to_owned())
    });
    environment.add_filter("string", text);
    environment.add_filter("join", join);
    environment.add_filter("int", int);
    environment.add_filter("float", float_of);
    environment.add_filter("title", |value: &Value| text(value).map(|text| title(&text)));
    environment.add_filter("capitalize", |value: &Value| strings::capitalized(&text(value)?));
    environment.add_filter("indent", indent);
    for (name, again) in [("e", false), ("escape", false), ("forceescape", true)] {
        environment.add_filter(name, move |value: &Value| match value.is_safe() && !again {
            true => Ok(value.clone()),
            false => text(value).map(|text| Value::from_safe_string(escape(&text))),
        });
    }
    environment.add_filter("wordcount", |value: &Value| -> Result<usize, Error> {
        let words = text(value)?;
        Ok(words.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty()).count())
    });
    environment.add_filter("attr", |value: &Value, name: &str| match value.kind() {
        // A dictionary has items, but no attributes except its methods.
        ValueKind::Map if !is_namespace(value) => {
            let methods =
                ["clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem", "setdefault"];
            match methods.contains(&name) || matches!(name, "update" | "values") || name.starts_with('_') {
                true => Err(wrong(format!("attr() with the name {name:?}"))),
                false => Ok(Value::UNDEFINED),
            }
        }
        ValueKind::Map | ValueKind::Plain => value.get_attr(name),
        kind => Err(wrong(format!("attr() of a value of the type {kind}"))),
    });
    environment.add_filter(
        "sum",
        |state: &State<'_, '_>, items: Value, named: Rest<Value>, options: Kwargs| {
            let [attribute, start] =
                strings::named_arguments("sum", ["attribute", "start"], named, &options)?;
            let item = |item: Value| match &attribute {
                Some(name) => {
                    name.as_str().map_or_else(|| item.get_item(name), |name| order::path(&item, name))
                }
                None => Ok(item),
            };
            let items = items.try_iter()?.map(item).collect::<Result<Vec<_>, Error>>()?;
            if items.iter().any(Value::is_undefined) {
                return Err(wrong("sum() of an undefined value"));
            }
            minijinja::filters::sum(
                state,
                Value::from(items),
                None,
                start,
                Kwargs::from_iter([] as [(&str, Value); 0]),
            )
        },
    );
    // True for values that have a length, and items by index or key.
    environment.add_test("sequence", |value: &Value| match value.kind() {
        ValueKind::Iterable => value
            .downcast_object_ref::<View>()
            .map_or(value.len().is_some(), |view| view.name.starts_with("range")),
        kind => matches!(kind, ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined),
    });
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("joiner", minijinja_contrib::globals::joiner);
    environment.add_function("cycler", |items: Rest<Value>| minijinja_contrib::globals::cycler(items.0));
    environment.add_function("range", |first: isize, end: Option<isize>, step: Option<isize>| {
        let items = minijinja::functions::range(first, end, step)?.try_iter()?.collect();
        let (start, end) = end.map_or((0, first), |end| (first, end));
        let step = step.filter(|step| *step != 1).map_or_else(String::new, |step| format!(", {step}"));
        let name = format!("range({start}, {end}{step})");
        Ok::<_, Error>(Value::from_object(View { name, items }))
    });
    for name in ["pprint", "zip", "chain", "split", "lines", "bool"] {
        environment.remove_filter(name);
    }
    for name in ["safe", "int", "startingwith", "endingwith"] {
        environment.remove_test(name);
    }
    environment.remove_global("debug");
}

/// Prints a value as Python's `str` does.
pub(super) fn print(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Undefined | ValueKind::None | ValueKind::Bool | ValueKind::String => {
            escape_formatter(out, state, value)
        }
        _ => escape_formatter(out, state, &Value::from(text(value)?)),
    }
}

/// Returns the value as a number, if it is a number but not an integer.
fn fraction(value: &Value) -> Option<f64> {
    let number = (value.is_number() && !value.is_integer()).then(|| f64::try_from(value.clone()).ok());
    number.flatten()
}

/// Returns a value in the format of Python's `str`.
///
/// # Errors
/// Returns an error if the format is not known.
pub(super) fn text(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::String | ValueKind::Undefined => Ok(value.to_string()),
        _ => {
            let mut out = String::new();
            repr(value, &mut out, 0)?;
            Ok(out)
        }
    }
}

/// The maximum nesting depth of values that are printed.
const DEEPEST: usize = 64;

/// Appends a value in the format of Python's `repr`.
fn repr(value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
    if depth > DEEPEST {
        return Err(wrong(format!("more than {DEEPEST} nested values written as text")));
    }
    let view = value.downcast_object_ref::<View>();
    let single = match value.kind() {
        ValueKind::Undefined => Some("Undefined".into()),
        ValueKind::None | ValueKind::Bool => Some(value.to_string()),
        ValueKind::Number => Some(fraction(value).map_or_else(|| value.to_string(), float)),
        ValueKind::String => {
            let quoted = quoted(value.as_str().unwrap_or_default());
            Some(if value.is_safe() { format!("Markup({quoted})") } else { quoted })
        }
        _ => view.filter(|view| view.name.starts_with("range")).map(|view| view.name.clone()),
    };
    if let Some(single) = single {
        *out += &single;
        return Ok(());
    }
    // The groups of the filter `groupby` are named tuples.
    let tuple = value.is_tuple() || is_a(value, &["GroupTuple"]);
    let (open, close) = match (value.kind(), view) {
        (_, Some(view)) => (format!("{}([", view.name), "])"),
        (ValueKind::Seq | ValueKind::Iterable, _) if tuple => {
            ("(".into(), if value.len() == Some(1) { ",)" } else { ")" })
        }
        (ValueKind::Seq, _) => ("[".into(), "]"),
        (ValueKind::Iterable, _) if value.len().is_some() => ("[".into(), "]"),
        (ValueKind::Map, _) if !is_namespace(value) => ("{".into(), "}"),
        (kind, _) => return Err(wrong(format!("a value of the type {kind} written as text"))),
    };
    *out += &open;
    check_keys(value)?;
    for (at, item) in value.try_iter()?.enumerate() {
        *out += if at > 0 { ", " } else { "" };
        repr(&item, out, depth + 1)?;
        if value.kind() == ValueKind::Map {
            *out += ": ";
            repr(&value.get_item(&item)?, out, depth + 1)?;
        }
    }
    *out += close;
    Ok(())
}

/// Checks that a dictionary does not have both numbers and booleans as keys. In Python two such keys may be equal,
/// because `true` is 1.
fn check_keys(value: &Value) -> Result<(), Error> {
    let has = |kind| value.try_iter().is_ok_and(|mut keys| keys.any(|key| key.kind() == kind));
    match value.kind() == ValueKind::Map && has(ValueKind::Bool) && has(ValueKind::Number) {
        true => Err(wrong("a dictionary with numbers and booleans as keys")),
        false => Ok(()),
    }
}

/// Whether the value is one of Jinja's objects, and not a dictionary.
fn is_namespace(value: &Value) -> bool {
    is_a(value, &["Namespace", "Macro", "Loop", "Module", "Closure"])
}

/// Whether the value is an object of one of these types of minijinja.
fn is_a(value: &Value, types: &[&str]) -> bool {
    let name = value.as_object().map_or("", |object| object.type_name());
    types.iter().any(|end| name.ends_with(end))
}

/// Returns a string in the format of Python's `repr`.
fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    let mut pair = String::new();
    for c in text.chars() {
        // Rust escapes characters that cannot be printed. It also escapes a combining mark at the beginning of a text.
        // So a letter is put before `c`.
        pair.clear();
        pair.extend(['a', c]);
        match c {
            '\n' => out += r"\n",
            '\r' => out += r"\r",
            '\t' => out += r"\t",
            '\\' => out += r"\\",
            '\'' | '"' if c == quote => out.extend(['\\', c]),
            '\'' | '"' => out.push(c),
            _ if pair.escape_debug().nth(1) == Some(c) => out.push(c),
            '\0'..='\u{ff}' => out += &format!("\\x{:02x}", u32::from(c)),
            '\u{100}'..='\u{ffff}' => out += &format!("\\u{:04x}", u32::from(c)),
            _ => out += &format!("\\U{:08x}", u32::from(c)),
        }
    }
    out.push(quote);
    out
}

/// The filters `e` and `escape`. They escape the characters that MarkupSafe escapes.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '\'' => out += "&#39;",
            '"' => out += "&#34;",
            c => out.push(c),
        }
    }
    out
}

/// The filter `indent`.
#[expect(clippy::needless_pass_by_value, reason = "a filter takes its options so")]
fn indent(value: &Value, given: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    let [width, first, blank] =
        strings::named_arguments("indent", ["width", "first", "blank"], given, &named)?;
    let indent = match width.as_ref().and_then(Value::as_str) {
        Some(text) => text.to_owned(),
        None => {
            let width = usize::try_from(strings::number("indent", width.as_ref(), 4)?).unwrap_or(0);
            if width > 1 << 20 {
                return Err(wrong("indent() with a width that is too large"));
            }
            " ".repeat(width)
        }
    };
    let Some(text) = value.as_str() else { return Err(wrong("indent() of a value that is not a string")) };
    let blank = blank.is_some_and(|blank| blank.is_true());
    let mut out = String::new();
    for (at, line) in strings::lines(&format!("{text}\n"), false).iter().enumerate() {
        out += if at > 0 { "\n" } else { "" };
        if if at > 0 { blank || !line.is_empty() } else { first.as_ref().is_some_and(Value::is_true) } {
            out += &indent;
        }
        out += line;
    }
    Ok(out)
}

/// Returns the number that Python's `float` makes of the value. `None` if Python rejects the text.
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

/// Returns the text without white space around it, if Python and Rust parse the same number from it.
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

/// The filter `int`: returns an integer as it is, another number without its fraction, and otherwise the default.
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
            Some(number) => {
                Err(Error::new(ErrorKind::InvalidOperation, format!("int() of {}", float(number))))
            }
        },
    }
}

/// Returns a number in the format of Python's `repr`: the fewest digits that identify it, with an exponent if the
/// exponent is below -4 or above 15.
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
fn title(text: &str) -> String {
    let begins = |c: char| strings::is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    let mut out = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(begins).unwrap_or(rest.len()).max(first.len_utf8());
        out.extend(first.to_uppercase());
        out += &rest[first.len_utf8()..end].to_lowercase();
        rest = &rest[end..];
    }
    out
}

/// The filter `tojson` of chat templates: `json.dumps` with its `indent`, `separators`, `ensure_ascii` and `sort_keys`,
/// and without HTML escapes.
#[expect(clippy::needless_pass_by_value, reason = "a filter takes its options so")]
pub(super) fn tojson(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent = options.get::<Option<usize>>("indent")?;
    if indent.is_some_and(|indent| indent > 16) {
        return Err(wrong("tojson() with an indent of more than 16"));
    }
    let separators = match options.get::<Option<Vec<String>>>("separators")?.as_deref() {
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(wrong("tojson() without exactly two separators")),
    };
    let ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sorted = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let mut dump = Dump { indent, separators, ascii, sorted, text: String::new() };
    dump.value(value, 0)?;
    Ok(Value::from(dump.text))
}

/// Returns a value without items as JSON, as Python writes it.
fn scalar(value: &Value) -> Result<String, Error> {
    Ok(match (value.kind(), fraction(value)) {
        (ValueKind::None, _) => "null".into(),
        (ValueKind::Bool, _) => value.is_true().to_string(),
        (_, Some(number)) if number.is_nan() => "NaN".into(),
        (_, Some(number)) => float(number).replace("inf", "Infinity"),
        (ValueKind::Number, _) => value.to_string(),
        (kind, _) => return Err(wrong(format!("tojson() of a key of the type {kind}"))),
    })
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
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEEPEST {
            return Err(wrong(format!("tojson() of more than {DEEPEST} nested values")));
        }
        let list = match value.downcast_object_ref::<View>() {
            Some(_) => false,
            None => value.len().is_some(),
        };
        match value.kind() {
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::None | ValueKind::Bool | ValueKind::Number => self.text += &scalar(value)?,
            ValueKind::Seq | ValueKind::Iterable if list => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.items(('[', ']'), items.into_iter(), depth, |dump, item| dump.value(&item, depth + 1))?;
            }
            ValueKind::Map if !is_namespace(value) => {
                check_keys(value)?;
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sorted {
                    if keys.iter().any(|key| key.as_str().is_none()) {
                        return Err(wrong("tojson() with sorted keys that are not strings"));
                    }
                    keys.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
                }
                self.items(('{', '}'), keys.into_iter(), depth, |dump, key| {
                    let name = key.as_str().map_or_else(|| scalar(&key), |key| Ok(key.to_owned()))?;
                    dump.string(&name);
                    dump.text += &dump.separators.1;
                    dump.value(&value.get_item(&key)?, depth + 1)
                })?;
            }
            kind => return Err(wrong(format!("tojson() of a value of the type {kind}"))),
        }
        Ok(())
    }

    fn items<T>(
        &mut self,
        (open, close): (char, char),
        items: impl ExactSizeIterator<Item = T>,
        depth: usize,
        mut write: impl FnMut(&mut Self, T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let empty = items.len() == 0;
        self.text.push(open);
        for (at, item) in items.enumerate() {
            if at > 0 {
                self.text += &self.separators.0;
            }
            self.line(depth + 1);
            write(self, item)?;
        }
        if !empty {
            self.line(depth);
        }
        self.text.push(close);
        Ok(())
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
