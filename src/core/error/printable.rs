//! Escapes untrusted text for a terminal: names of files and models, tokens, replies of a server. A terminal executes
//! control characters, so all text from outside passes through this module before it is printed.

use std::borrow::Cow;

/// `text` on one line, with dangerous characters escaped (`\u{1b}`). These are the control characters, line ends
/// included, and the characters that change the direction of text.
pub fn printable(text: &str) -> Cow<'_, str> {
    written_out(text, drives)
}

/// [`printable`] for a text of several lines: line feeds and tabs stay.
pub fn printable_text(text: &str) -> Cow<'_, str> {
    written_out(text, |c| drives(c) && !matches!(c, '\n' | '\t'))
}

/// [`printable`] for JSON, with JSON's own escapes. Line feeds stay. Outside its strings, the JSON must have no other
/// control characters.
pub fn printable_json(text: &str) -> Cow<'_, str> {
    let drives = |c: char| drives(c) && c != '\n';
    if !text.contains(drives) {
        return Cow::Borrowed(text);
    }
    let shown = |c: char| if drives(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
    Cow::Owned(text.chars().map(shown).collect())
}

/// Returns whether a character must be escaped. All such characters are in the Basic Multilingual Plane, as JSON's
/// `\uXXXX` requires.
fn drives(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn written_out(text: &str, drives: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&drives) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            c if !drives(c) => shown.push(c),
            '\n' | '\r' | '\t' => shown.extend(c.escape_default()),
            c => shown.extend(c.escape_unicode()),
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_drives_a_terminal_is_written_out_and_nothing_else() {
        let plain = r#"C:\models\"x" é'✨ ␣"#;
        assert!(matches!(printable(plain), Cow::Borrowed(text) if text == plain));
        assert_eq!(printable("a\u{1b}[2J\u{9b}é\u{7f}\r\n\t"), r"a\u{1b}[2J\u{9b}é\u{7f}\r\n\t");
        assert_eq!(printable("gguf.\u{202e}exe\u{2028}"), r"gguf.\u{202e}exe\u{2028}");
    }

    #[test]
    fn a_text_keeps_its_lines() {
        let plain = "\ta\n \"é'✨\u{301}";
        assert!(matches!(printable_text(plain), Cow::Borrowed(text) if text == plain));
        assert_eq!(printable_text("a\r\n\u{1b}[2J\tb"), "a\\r\n\\u{1b}[2J\tb");
    }

    #[test]
    fn json_stays_json() {
        let text = serde_json::json!({"name": "a\u{1b}\u{9b}\u{7f}\u{202e}b"}).to_string() + "\n";
        let shown = printable_json(&text);
        assert!(!shown.trim_end().contains(drives), "{shown}");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&shown).unwrap()["name"],
            "a\u{1b}\u{9b}\u{7f}\u{202e}b"
        );
    }
}
