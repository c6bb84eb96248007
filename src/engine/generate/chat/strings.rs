//! Methods of Python's strings, lists and dictionaries that minijinja-contrib does not have or implements differently.

use std::sync::Arc;

use minijinja::value::{Enumerator, Kwargs, Object, ObjectRepr, Rest, Tuple, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat;

/// Calls the method `name` of `value`.
///
/// # Errors
/// Returns an error if there is no such method or its arguments are wrong.
pub(super) fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let own = match (value.kind(), value.as_str()) {
        (_, Some(text)) => string(text, name, args)?,
        (ValueKind::Seq, _) => list(value, name, args)?,
        (ValueKind::Map, _) => map(value, name, args)?,
        _ => None,
    };
    match own {
        Some(found) => Ok(found),
        None => pycompat::unknown_method_callback(state, value, name, args),
    }
}

pub(super) fn wrong(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what.into())
}

/// Returns the arguments of a method whose parameters have these `names`. They may be given by position or by name.
fn arguments<const N: usize>(
    method: &str,
    names: [&str; N],
    args: &[Value],
) -> Result<[Option<Value>; N], Error> {
    let (given, named): (Rest<Value>, Kwargs) = from_args(args)?;
    named_arguments(method, names, given, &named)
}

/// Returns the arguments of a filter or method whose parameters have these `names`. The first ones are `given` by
/// position, the others by name.
pub(super) fn named_arguments<const N: usize>(
    method: &str,
    names: [&str; N],
    given: Rest<Value>,
    named: &Kwargs,
) -> Result<[Option<Value>; N], Error> {
    if given.len() > N {
        return Err(wrong(format!("{method}() with {} arguments", given.len())));
    }
    let mut given = given.0.into_iter();
    let mut all = [const { None }; N];
    for (place, name) in all.iter_mut().zip(names) {
        *place = match given.next() {
            Some(value) => Some(value),
            None if named.has(name) => Some(named.get(name)?),
            None => None,
        };
    }
    named.assert_all_used()?;
    Ok(all.map(|value| value.filter(|value| !value.is_none())))
}

fn text_argument(method: &str, value: Option<&Value>) -> Result<String, Error> {
    let text = value.and_then(Value::as_str).map(str::to_owned);
    text.ok_or_else(|| wrong(format!("{method}() without a string")))
}

pub(super) fn number(method: &str, value: Option<&Value>, default: i64) -> Result<i64, Error> {
    let Some(value) = value else { return Ok(default) };
    value.as_i64().ok_or_else(|| wrong(format!("{method}() without a whole number")))
}

/// Whether Python's strings treat the character as white space.
pub(super) fn is_space(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\x1c'..='\x1f')
}

/// `str.strip`, at one or both ends.
pub(super) fn strip<'t>(text: &'t str, characters: Option<&str>, start: bool, end: bool) -> &'t str {
    let goes = |c: char| characters.map_or_else(|| is_space(c), |set| set.contains(c));
    let text = if start { text.trim_start_matches(goes) } else { text };
    if end { text.trim_end_matches(goes) } else { text }
}

fn is_cased(character: char) -> bool {
    character.is_lowercase() || character.is_uppercase()
}

/// Returns the titlecase form of the first letter of a word.
///
/// # Errors
/// Returns an error if Unicode's titlecase form does not follow from upper and lower case.
pub(super) fn titlecase(letter: char) -> Result<String, Error> {
    let upper = letter.to_uppercase().to_string();
    Ok(match letter {
        'Ǆ' | 'ǅ' | 'ǆ' => "ǅ".into(),
        'Ǉ' | 'ǈ' | 'ǉ' => "ǈ".into(),
        'Ǌ' | 'ǋ' | 'ǌ' => "ǋ".into(),
        'Ǳ' | 'ǲ' | 'ǳ' => "ǲ".into(),
        // Georgian words do not begin with a capital letter.
        '\u{10d0}'..='\u{10ff}' => letter.into(),
        '\u{1f80}'..='\u{1fff}' if upper.chars().count() > 1 => {
            return Err(wrong(format!("the titlecase form of {letter:?}")));
        }
        // Only the first letter of a ligature is a capital.
        _ => upper.chars().take(1).chain(upper.chars().skip(1).flat_map(char::to_lowercase)).collect(),
    })
}

/// Returns the characters of `text`, each with its lower case at this place in the text: a Σ at the end of a word
/// becomes ς.
pub(super) fn lowered(text: &str) -> impl Iterator<Item = (char, String)> {
    let lower: Vec<char> = text.to_lowercase().chars().collect();
    let mut at = 0;
    text.chars().map(move |c| {
        let start = at;
        at += c.to_lowercase().count();
        (c, lower[start..at].iter().collect())
    })
}

/// `str.capitalize`.
pub(super) fn capitalized(text: &str) -> Result<String, Error> {
    let mut letters = lowered(text);
    let first = letters.next().map_or(Ok(String::new()), |(first, _)| titlecase(first))?;
    Ok(first + &letters.map(|(_, lower)| lower).collect::<String>())
}

/// Returns the part of `text` that Python's `[start:end]` selects.
fn slice<'t>(
    method: &str,
    text: &'t str,
    start: Option<&Value>,
    end: Option<&Value>,
) -> Result<(usize, &'t str), Error> {
    let count = text.chars().count() as i64;
    let place = |value: Option<&Value>, default: i64| -> Result<i64, Error> {
        let at = number(method, value, default)?;
        Ok(if at < 0 { (at + count).max(0) } else { at.min(count) })
    };
    let (start, end) = (place(start, 0)?, place(end, count)?);
    let byte = |at: i64| text.char_indices().nth(at as usize).map_or(text.len(), |(byte, _)| byte);
    Ok((start as usize, if start <= end { &text[byte(start)..byte(end)] } else { "" }))
}

/// `str.split` and `str.rsplit`.
fn split(text: &str, separator: Option<&str>, most: i64, right: bool) -> Vec<String> {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let mut parts: Vec<&str> = Vec::new();
    let mut rest = text;
    match separator {
        Some(separator) => {
            while parts.len() < most {
                let cut = if right { rest.rsplit_once(separator) } else { rest.split_once(separator) };
                let Some((left, after)) = cut else { break };
                (rest, _) = if right { (left, parts.push(after)) } else { (after, parts.push(left)) };
            }
            parts.push(rest);
        }
        None => loop {
            rest = strip(rest, None, !right, right);
            if rest.is_empty() {
                break;
            }
            let cut = if right { rest.rfind(is_space) } else { rest.find(is_space) };
            let Some(at) = cut.filter(|_| parts.len() < most) else {
                parts.push(rest);
                break;
            };
            if right {
                let space = rest[at..].chars().next().map_or(1, char::len_utf8);
                parts.push(&rest[at + space..]);
                rest = &rest[..at];
            } else {
                parts.push(&rest[..at]);
                rest = &rest[at..];
            }
        },
    }
    if right {
        parts.reverse();
    }
    parts.into_iter().map(str::to_owned).collect()
}

/// `str.splitlines`.
pub(super) fn lines(text: &str, keep: bool) -> Vec<String> {
    let ends = |c: char| {
        matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
    };
    let (mut lines, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let at = rest.find(ends).unwrap_or(rest.len());
        let end = match rest[at..].chars().next() {
            Some('\r') if rest[at..].starts_with("\r\n") => at + 2,
            Some(end) => at + end.len_utf8(),
            None => at,
        };
        lines.push(rest[..if keep { end } else { at }].to_owned());
        rest = &rest[end..];
    }
    lines
}

/// Returns `text` padded to a width. The method determines how much of the padding is on the left.
fn padded(method: &str, text: &str, args: &[Value]) -> Result<String, Error> {
    let [width, fill] = arguments(method, ["width", "fillchar"], args)?;
    let width = usize::try_from(number(method, width.as_ref(), 0)?).unwrap_or(0);
    let fill = fill.as_ref().map_or(Ok(" ".to_owned()), |fill| text_argument(method, Some(fill)))?;
    if fill.chars().count() != 1 || width > 1 << 20 {
        return Err(wrong(format!(
            "{method}() with a width above {}, or with a fill of more than one character",
            1 << 20
        )));
    }
    let pad = width.saturating_sub(text.chars().count());
    let left = match method {
        "ljust" => 0,
        "rjust" => pad,
        _ => pad / 2 + (pad & width & 1),
    };
    Ok(fill.repeat(left) + text + &fill.repeat(pad - left))
}

/// Calls a method of `text`. `None` if minijinja-contrib's method behaves like Python's.
fn string(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let none = || arguments(name, [], args).map(|_: [Option<Value>; 0]| ());
    let pair = |place: Option<usize>, length: usize, otherwise: [&str; 3]| match place {
        Some(at) => [&text[..at], &text[at..at + length], &text[at + length..]].map(str::to_owned),
        None => otherwise.map(str::to_owned),
    };
    Ok(Some(match name {
        "strip" | "lstrip" | "rstrip" => {
            let [characters] = arguments(name, ["chars"], args)?;
            let characters = characters.map(|set| text_argument(name, Some(&set))).transpose()?;
            strip(text, characters.as_deref(), name != "rstrip", name != "lstrip").into()
        }
        "split" | "rsplit" => {
            let [separator, most] = arguments(name, ["sep", "maxsplit"], args)?;
            let separator = separator.map(|set| text_argument(name, Some(&set))).transpose()?;
            if separator.as_deref() == Some("") {
                return Err(wrong(format!("{name}() with an empty separator")));
            }
            split(text, separator.as_deref(), number(name, most.as_ref(), -1)?, name == "rsplit").into()
        }
        "splitlines" => {
            let [keep] = arguments(name, ["keepends"], args)?;
            lines(text, keep.is_some_and(|keep| keep.is_true())).into()
        }
        "partition" | "rpartition" => {
            let [separator] = arguments(name, ["sep"], args)?;
            let separator = text_argument(name, separator.as_ref())?;
            if separator.is_empty() {
                return Err(wrong(format!("{name}() with an empty separator")));
            }
            let parts = match name {
                "partition" => pair(text.find(&separator), separator.len(), [text, "", ""]),
                _ => pair(text.rfind(&separator), separator.len(), ["", "", text]),
            };
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        "removeprefix" | "removesuffix" => {
            let [part] = arguments(name, ["prefix"], args)?;
            let part = text_argument(name, part.as_ref())?;
            let rest =
                if name == "removeprefix" { text.strip_prefix(&*part) } else { text.strip_suffix(&*part) };
            rest.unwrap_or(text).into()
        }
        "find" | "rfind" | "index" | "rindex" | "count" => {
            let [part, start, end] = arguments(name, ["sub", "start", "end"], args)?;
            let part = text_argument(name, part.as_ref())?;
            let (before, within) = slice(name, text, start.as_ref(), end.as_ref())?;
            let found = match name {
                "count" => return Ok(Some(within.matches(&*part).count().into())),
                "find" | "index" => within.find(&*part),
                _ => within.rfind(&*part),
            };
            match found {
                Some(at) => (before + within[..at].chars().count()).into(),
                None if name.ends_with("find") => Value::from(-1),
                None => return Err(wrong(format!("{name}(): the substring is not found"))),
            }
        }
        "ljust" | "rjust" | "center" => padded(name, text, args)?.into(),
        "zfill" => {
            let [width] = arguments(name, ["width"], args)?;
            let width = usize::try_from(number(name, width.as_ref(), 0)?).unwrap_or(0);
            if width > 1 << 20 {
                return Err(wrong("zfill() with a width that is too large"));
            }
            let zeros = "0".repeat(width.saturating_sub(text.chars().count()));
            match text.strip_prefix(['+', '-']) {
                Some(rest) => format!("{}{zeros}{rest}", &text[..1]).into(),
                None => (zeros + text).into(),
            }
        }
        "title" => {
            none()?;
            let mut cased = false;
            let letters = lowered(text).map(|(c, lower)| {
                let letter = if cased { Ok(lower) } else { titlecase(c) };
                cased = is_cased(c);
                letter
            });
            letters.collect::<Result<String, Error>>()?.into()
        }
        "capitalize" => {
            none()?;
            capitalized(text)?.into()
        }
        "swapcase" => {
            none()?;
            let swap = |(c, lower): (char, String)| match c.is_uppercase() {
                true => lower,
                false => c.to_uppercase().to_string(),
            };
            lowered(text).map(swap).collect::<String>().into()
        }
        "isspace" => {
            none()?;
            (!text.is_empty() && text.chars().all(is_space)).into()
        }
        "isdigit" | "isnumeric" | "isdecimal" | "isalpha" | "isalnum" => {
            none()?;
            let is = |c: char| match name {
                "isalpha" => c.is_ascii_alphabetic(),
                "isalnum" => c.is_ascii_alphanumeric(),
                _ => c.is_ascii_digit(),
            };
            // Beyond ASCII, Python's character classes differ from Rust's. They agree only for letters that have a
            // case.
            let sure = |c: char| c.is_ascii() || (c.is_alphabetic() && c.is_lowercase() | c.is_uppercase());
            if !text.chars().all(sure) {
                return Err(wrong(format!("{name}() on a text with non-ASCII characters")));
            }
            let letters = matches!(name, "isalpha" | "isalnum");
            (!text.is_empty() && text.chars().all(|c| if c.is_ascii() { is(c) } else { letters })).into()
        }
        "casefold" if text.is_ascii() => {
            none()?;
            text.to_lowercase().into()
        }
        "join" => {
            let [parts] = arguments(name, ["iterable"], args)?;
            let parts = parts.ok_or_else(|| wrong("join() without an argument"))?;
            let parts: Vec<Value> = parts.try_iter()?.collect();
            let texts: Option<Vec<&str>> = parts.iter().map(Value::as_str).collect();
            texts.ok_or_else(|| wrong("join() on values that are not strings"))?.join(text).into()
        }
        _ => return Ok(None),
    }))
}

/// Calls a method of a list. `None` if minijinja-contrib's method behaves like Python's.
fn list(value: &Value, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "index" => {
            let [item, start, end] = arguments(name, ["value", "start", "stop"], args)?;
            let items: Vec<Value> = value.try_iter()?.collect();
            let count = items.len() as i64;
            let place = |value: Option<&Value>, default: i64| -> Result<i64, Error> {
                let at = number(name, value, default)?;
                Ok(if at < 0 { (at + count).max(0) } else { at.min(count) })
            };
            let (start, end) = (place(start.as_ref(), 0)?, place(end.as_ref(), count)?);
            let item = item.unwrap_or_else(|| Value::from(()));
            let found = (start..end).find(|at| items[*at as usize] == item);
            found.ok_or_else(|| wrong(format!("index(): {item} is not in the list")))?.into()
        }
        "copy" => value.clone(),
        _ => return Ok(None),
    }))
}

/// Calls a method of a dictionary. `None` if minijinja-contrib's method behaves like Python's.
fn map(value: &Value, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let view = ["keys", "values", "items"].into_iter().find(|view| *view == name);
    Ok(match view {
        Some(name) => {
            let [] = arguments(name, [], args)?;
            let pairs = value.try_iter()?.map(|key| {
                let item = value.get_item(&key)?;
                Ok(match name {
                    "keys" => key,
                    "values" => item,
                    _ => Value::from(Tuple::from([key, item])),
                })
            });
            let items = pairs.collect::<Result<Vec<Value>, Error>>()?;
            Some(Value::from_object(View { name: format!("dict_{name}"), items }))
        }
        None if name == "copy" => Some(value.clone()),
        None => None,
    })
}

/// The items of a dictionary or a range. Python prints them with the name of their type.
#[derive(Debug)]
pub(super) struct View {
    /// `dict_keys`, or the whole text of a range.
    pub(super) name: String,
    pub(super) items: Vec<Value>,
}

impl Object for View {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.items.clone())
    }
}
