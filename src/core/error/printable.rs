//! What others wrote, made fit to be printed: names of files and models, tokens, the words of a server. A terminal
//! obeys what it is sent, so everything that is not ours goes through here on its way to one.

use std::borrow::Cow;

/// `text` on one line, with every character written out (`\u{1b}`) that a terminal would obey or that changes the
/// order in which others are read: control characters, line ends among them, and what turns the direction of text.
pub fn printable(text: &str) -> Cow<'_, str> {
    written_out(text, drives)
}

/// The same for a text of several lines: line feeds and tabs stay.
pub fn printable_text(text: &str) -> Cow<'_, str> {
    written_out(text, |c| drives(c) && !matches!(c, '\n' | '\t'))
}

/// The same for JSON, which has an escape of its own; between its strings only line feeds and blanks stand.
pub fn printable_json(text: &str) -> Cow<'_, str> {
    let drives = |c: char| drives(c) && c != '\n';
    if !text.contains(drives) {
        return Cow::Borrowed(text);
    }
    let shown = |c: char| if drives(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
    Cow::Owned(text.chars().map(shown).collect())
}

/// All of these are in the Basic Multilingual Plane, as JSON's escape needs it.
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
