//! Rewrites a template so that minijinja reads it like Jinja: one kind of newline, strings with Python's escapes, no
//! tags for training masks, and default values of macros in order.

use super::operators::{self, string_length};
use super::strings::strip;

/// Rewrites `text`.
///
/// # Errors
/// Returns the unsupported part of the template.
pub(super) fn rewrite(text: &str) -> Result<String, String> {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find('{') {
        out += &rest[..at];
        rest = &rest[at..];
        let length = match rest.as_bytes().get(1) {
            Some(b'#') => rest.find("#}").map_or(rest.len(), |end| end + 2),
            Some(b'{' | b'%') => {
                let (tag, length) = tag(rest)?;
                rest = &rest[length..];
                if word(&tag) == Some("raw") {
                    let (raw, length) = raw(&tag, rest)?;
                    out += &raw;
                    rest = &rest[length..];
                } else {
                    out += &tag;
                }
                continue;
            }
            _ => 1,
        };
        out += &rest[..length];
        rest = &rest[length..];
    }
    Ok(out + rest)
}

/// Returns the text inside a statement, such as its only word. `None` if the tag is not a statement.
fn word(tag: &str) -> Option<&str> {
    let inside = tag.strip_prefix("{%")?.strip_suffix("%}")?;
    Some(inside.trim_matches(|c: char| c.is_whitespace() || matches!(c, '-' | '+')))
}

/// Rewrites raw text and the two statements around it. `text` follows the first statement, `begin`. Also returns the
/// length of `text` up to the end of the second statement.
///
/// Jinja keeps the newline after `{% raw %}`. It also keeps spaces before `{% endraw %}` unless they begin a line. This
/// function removes the white space that Jinja removes. The returned statements make minijinja keep the rest.
fn raw(begin: &str, text: &str) -> Result<(String, usize), String> {
    let ends = text.match_indices("{%").filter_map(|(at, _)| Some((at, at + text[at..].find("%}")? + 2)));
    let found = ends.into_iter().find(|&(at, end)| word(&text[at..end]) == Some("endraw"));
    let Some((at, end)) = found else { return Ok((begin.to_owned() + text, text.len())) };
    let head = begin.strip_suffix("%}").unwrap_or(begin);
    if head.ends_with('+') {
        return Err("`{% raw +%}`".into());
    }
    let mut inside = strip(&text[..at], None, head.ends_with('-'), false);
    let tail = &text[at + 2..end];
    if tail.starts_with('-') {
        inside = strip(inside, None, false, true);
    } else if !tail.starts_with('+')
        && let Some(line) = inside.rfind('\n')
        && strip(&inside[line..], None, true, true).is_empty()
    {
        inside = &inside[..=line];
    }
    let (head, tail) = (head.trim_end_matches('-'), tail.trim_start_matches(['-', '+']));
    Ok((format!("{head}+%}}{inside}{{%+{tail}"), end))
}

/// Rewrites the tag at the beginning of `text`. Returns the new tag, and the length of the old tag.
fn tag(text: &str) -> Result<(String, usize), String> {
    let close = if text.starts_with("{{") { "}}" } else { "%}" };
    let mut out = String::new();
    let (mut at, mut depth) = (2, 0);
    loop {
        if depth == 0 && text[at..].starts_with(close) {
            at += 2;
            break;
        }
        // The tag does not end.
        let Some(character) = text[at..].chars().next() else { return Ok((text[..2].to_owned() + &out, at)) };
        match character {
            '\'' | '"' => {
                let length = string_length(&text[at..], character);
                out += &string(&text[at..at + length], character)?;
                at += length;
                continue;
            }
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            _ => {}
        }
        out.push(character);
        at += character.len_utf8();
    }
    let inside = out.strip_prefix(['-', '+']).unwrap_or(&out);
    let (open, inside) = (format!("{}{}", &text[..2], &out[..out.len() - inside.len()]), inside);
    let expression = inside.strip_suffix(['-', '+']).unwrap_or(inside);
    let close = format!("{}{close}", &inside[expression.len()..]);
    // transformers uses these two tags for training masks, and prints the text between them.
    let expression = match expression.trim() {
        "generation" => expression.replacen("generation", "if true", 1),
        "endgeneration" => expression.replacen("endgeneration", "endif", 1),
        _ => operators::rewrite(expression)?,
    };
    let tag = match defaults(&expression)? {
        Some((expression, sets)) => format!("{open}{expression}-%}}{sets}{close}"),
        None => format!("{open}{expression}{close}"),
    };
    Ok((tag, at))
}

/// Rewrites a macro with default values if one of them uses an earlier argument, because minijinja computes the default
/// values from the last to the first. Returns the macro's head without the default values, and statements that set the
/// values in order; the last statement has no end. Otherwise returns `None`.
fn defaults(statement: &str) -> Result<Option<(String, String)>, String> {
    let tokens = operators::tokens(statement);
    let begin = match tokens.as_slice() {
        [first, _, open, ..] if first.text == "macro" && open.text == "(" => 2,
        [first, open, ..] if first.text == "call" && open.text == "(" => 1,
        _ => return Ok(None),
    };
    let length = tokens[begin + 1..].iter().position(|token| token.depth == 0);
    let Some(end) = length.map(|length| begin + 1 + length) else { return Ok(None) };
    let arguments: Vec<_> =
        tokens[begin + 1..end].split(|token| token.depth == 1 && token.text == ",").collect();
    let names: Vec<&str> = arguments.iter().filter_map(|argument| Some(argument.first()?.text)).collect();
    let mut sets = String::new();
    let mut used = false;
    for (at, argument) in arguments.iter().enumerate() {
        let [name, equals, value @ ..] = argument else { continue };
        let (Some(first), Some(last)) = (value.first(), value.last()) else { return Ok(None) };
        if equals.text != "=" {
            return Ok(None);
        }
        // A name is not a variable if it is an attribute, a filter, a test, or the name of a keyword argument.
        let is_variable = |at: usize| {
            let before = at.checked_sub(1).map(|at| value[at].text);
            let is_keyword = value.get(at + 1).is_some_and(|next| next.text == "=");
            !matches!(before, Some("." | "|" | "is")) && !is_keyword
        };
        let uses = |names: &[&str]| {
            value.iter().enumerate().any(|(at, token)| names.contains(&token.text) && is_variable(at))
        };
        if uses(&names[at..]) {
            return Err(format!("the default of the argument `{}`, which uses a later argument", name.text));
        }
        used |= uses(&names[..at]);
        let (name, value) = (name.text, &statement[first.at..last.end()]);
        sets += if sets.is_empty() { "" } else { "-%}" };
        sets += &format!("{{%- if {name} is undefined -%}}{{%- set {name} = {value} -%}}{{%- endif ");
    }
    let head =
        format!("{}{}{}", &statement[..tokens[begin].end()], names.join(", "), &statement[tokens[end].at..]);
    Ok(used.then_some((head, sets)))
}

/// Rewrites the escapes of a string literal, so that minijinja reads the same string that Python reads from the
/// original.
fn string(literal: &str, quote: char) -> Result<String, String> {
    if !literal.contains('\\') || literal.len() < 2 || !literal.ends_with(quote) {
        return Ok(literal.into());
    }
    let mut out = String::from(quote);
    for character in unescaped(&literal[1..literal.len() - 1])?.chars() {
        match character {
            '\\' => out += r"\\",
            '\n' => out += r"\n",
            character if character == quote => out.extend(['\\', character]),
            character => out.push(character),
        }
    }
    out.push(quote);
    Ok(out)
}

/// Decodes a Python literal (`unicode_escape`).
fn unescaped(text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text.chars();
    while let Some(character) = rest.next() {
        if character != '\\' {
            out.push(character);
            continue;
        }
        let wrong = |what: &str| format!("the escape `\\{what}` in a string");
        match rest.next() {
            None => return Err(wrong("")),
            Some('\n') => {}
            Some(c @ ('\\' | '\'' | '"')) => out.push(c),
            Some('a') => out.push('\x07'),
            Some('b') => out.push('\x08'),
            Some('f') => out.push('\x0c'),
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('t') => out.push('\t'),
            Some('v') => out.push('\x0b'),
            Some(first @ '0'..='7') => {
                let mut digits = String::from(first);
                while let Some(digit) =
                    rest.clone().next().filter(|c| digits.len() < 3 && matches!(c, '0'..='7'))
                {
                    digits.push(digit);
                    rest.next();
                }
                let code = u32::from_str_radix(&digits, 8).ok().and_then(char::from_u32);
                out.push(code.ok_or_else(|| wrong(&digits))?);
            }
            Some(kind @ ('x' | 'u' | 'U')) => {
                let count = match kind {
                    'x' => 2,
                    'u' => 4,
                    _ => 8,
                };
                let digits: String = rest.by_ref().take(count).collect();
                let hexadecimal = digits.len() == count && digits.bytes().all(|c| c.is_ascii_hexdigit());
                let code =
                    u32::from_str_radix(&digits, 16).ok().filter(|_| hexadecimal).and_then(char::from_u32);
                out.push(code.ok_or_else(|| wrong(&format!("{kind}{digits}")))?);
            }
            Some('N') => return Err(wrong("N")),
            Some(other) => out.extend(['\\', other]),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newlines_and_escapes_are_pythons() {
        let same = ["a {# '\\101' #}b", "'\\101'", "{{ {'a': {}} }}'\\7'", "{"];
        for text in same {
            assert_eq!(rewrite(text).unwrap(), text);
        }
        assert_eq!(rewrite("a\r\nb\rc{{ 'd\r\n' }}").unwrap(), "a\nb\nc{{ 'd\n' }}");
        assert_eq!(
            rewrite(r#"{{ '\101\x41\u0041\U0001F600\n\'"\d' }}"#).unwrap(),
            r#"{{ 'AAA😀\n\'"\\d' }}"#
        );
        assert_eq!(rewrite(r"{{ {'a': '\62'}['a'] }}'\62'").unwrap(), r"{{ {'a': '2'}['a'] }}'\62'");
        for wrong in [r"\ud83d", r"\N{DASH}", r"\x4", r"\u12G4"] {
            let error = rewrite(&format!("{{{{ '{wrong}' }}}}")).unwrap_err();
            assert!(error.contains(&wrong[..2]), "{error}");
        }
        assert_eq!(rewrite("{%- generation -%}a{% endgeneration %}").unwrap(), "{%- if true -%}a{% endif %}");
        assert_eq!(
            rewrite("{% raw %}\n'\\101'\n {% endraw %}").unwrap(),
            "{% raw +%}\n'\\101'\n{%+ endraw %}"
        );
        assert_eq!(rewrite("{%- raw -%} a {%- endraw -%} ").unwrap(), "{%- raw +%}a{%+ endraw -%} ");
        assert_eq!(rewrite("{% macro f(a, b='c') %}").unwrap(), "{% macro f(a, b='c') %}");
        assert!(rewrite("{% macro f(a=b, b=1) %}").unwrap_err().contains("`a`"));
        for unchanged in ["(content=m.content)", "(a=m.b, b='z')", "(a=g(a=1), b=a2)", "(a, b=x | a)"] {
            let macro_of = format!("{{% macro f{unchanged} %}}");
            assert_eq!(rewrite(&macro_of).unwrap(), macro_of);
        }
        for unfinished in ["{{ 'a", "{% if", "{{ 'a\\", "{#"] {
            assert_eq!(rewrite(unfinished).unwrap(), unfinished);
        }
    }
}
