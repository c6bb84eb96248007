//! Rewrites a template so that minijinja reads it like Jinja: one kind of newline, strings with Python's escapes, no
//! marks for training.

/// Rewrites `text`.
///
/// # Errors
/// Returns the unsupported part of the template.
pub(super) fn rewrite(text: &str) -> Result<String, String> {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    let (mut exponent, mut joined) = (None, false);
    while let Some(at) = rest.find('{') {
        out += &rest[..at];
        rest = &rest[at..];
        let length = match rest.as_bytes().get(1) {
            Some(b'#') => rest.find("#}").map_or(rest.len(), |end| end + 2),
            Some(b'{' | b'%') => {
                let (tag, length) = tag(rest, &mut exponent, &mut joined)?;
                out += &tag;
                rest = &rest[length..];
                if word(&tag) == Some("raw") {
                    let end = raw_end(rest);
                    out += &rest[..end];
                    rest = &rest[end..];
                }
                continue;
            }
            _ => 1,
        };
        out += &rest[..length];
        rest = &rest[length..];
    }
    match exponent.filter(|_| joined) {
        Some(number) => Err(format!(
            "the number {number} and the operator `~`, which would format it differently from Python"
        )),
        None => Ok(out + rest),
    }
}

/// The only word of a statement.
fn word(tag: &str) -> Option<&str> {
    let inside = tag.strip_prefix("{%")?.strip_suffix("%}")?;
    Some(inside.trim_matches(|c: char| c.is_whitespace() || matches!(c, '-' | '+')))
}

/// The start of the statement that ends raw text, or the end of `text` if there is none.
fn raw_end(text: &str) -> usize {
    let starts = text.match_indices("{%").map(|(at, _)| at);
    let mut ends = starts.filter(|&at| {
        let end = text[at..].find("%}").map_or(text.len(), |end| at + end + 2);
        word(&text[at..end]) == Some("endraw")
    });
    ends.next().unwrap_or(text.len())
}

/// The number with an exponent at the beginning of `text`.
fn number(text: &str) -> Option<&str> {
    let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_');
    let mut end = text.find(|c| !inside(c)).unwrap_or(text.len());
    if text[..end].ends_with(['e', 'E']) && text[end..].starts_with(['+', '-']) {
        end += 1 + text[end + 1..].find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len() - end - 1);
    }
    let number = &text[..end];
    let is = number.contains(['e', 'E']) && !number.starts_with("0x") && number.parse::<f64>().is_ok();
    is.then_some(number)
}

/// The rewritten tag at the beginning of `text`, and the tag's length. Records a number with an exponent, and a `~`.
fn tag<'t>(
    text: &'t str,
    exponent: &mut Option<&'t str>,
    joined: &mut bool,
) -> Result<(String, usize), String> {
    let close = if text.starts_with("{{") { "}}" } else { "%}" };
    let mut out = text[..2].to_owned();
    let (mut at, mut depth) = (2, 0);
    while let Some(character) = text[at..].chars().next() {
        if depth == 0 && text[at..].starts_with(close) {
            out += close;
            at += 2;
            break;
        }
        match character {
            '\'' | '"' => {
                let length = string_length(&text[at..], character);
                out += &string(&text[at..at + length], character)?;
                at += length;
                continue;
            }
            '~' => *joined = true,
            '0'..='9' if !out.ends_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_')) => {
                *exponent = exponent.or_else(|| number(&text[at..]));
            }
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            _ => {}
        }
        out.push(character);
        at += character.len_utf8();
    }
    // transformers uses these for training masks and prints what is between them.
    let marked = match word(&out) {
        Some("generation") => out.replacen("generation", "if true", 1),
        Some("endgeneration") => out.replacen("endgeneration", "endif", 1),
        _ => out,
    };
    Ok((marked, at))
}

/// The length of the string at the beginning of `text`, with its quotes. If the string does not end, the length of
/// `text`.
fn string_length(text: &str, quote: char) -> usize {
    let mut characters = text.char_indices().skip(1);
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => _ = characters.next(),
            character if character == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// A string literal with the escapes that minijinja reads in the same way.
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
        let same =
            ["a {# '\\101' #}b", "{% raw %}'\\101'{% endraw %}", "'\\101'", "{{ {'a': {}} }}'\\7'", "{"];
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
        assert!(rewrite("{% set x = 1.5e-7 %}{{ x ~ 'a' }}").unwrap_err().contains("1.5e-7"));
        for fine in ["{{ 1e9 }}", "{{ '1e9' ~ 2 }}", "{{ a1e9 ~ 0x1e9 ~ 1.5 }}"] {
            assert_eq!(rewrite(fine).unwrap(), fine);
        }
        assert_eq!(rewrite("{%- generation -%}a{% endgeneration %}").unwrap(), "{%- if true -%}a{% endif %}");
        for unfinished in ["{{ 'a", "{% if", "{{ 'a\\", "{#"] {
            assert_eq!(rewrite(unfinished).unwrap(), unfinished);
        }
    }
}
