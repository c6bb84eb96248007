//! Names and values from untrusted files, prepared for messages.

use serde_json::Value;

use llama_trace_core::error;

/// A string from a file, safe to show on a terminal: [`error::printable`], with at most 100 characters.
pub fn printable(text: &str) -> String {
    let end = text.char_indices().nth(100).map_or(text.len(), |(end, _)| end);
    let mut shown = error::printable(&text[..end]).into_owned();
    if end < text.len() {
        shown.push('…');
    }
    shown
}

/// A short description of a JSON value.
pub fn brief(value: &Value) -> String {
    match value {
        Value::Array(list)
            if list.len() <= 4 && list.iter().all(|value| !value.is_array() && !value.is_object()) =>
        {
            format!("[{}]", list.iter().map(brief).collect::<Vec<_>>().join(", "))
        }
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
        Value::String(text) => format!("\"{}\"", printable(text)),
        scalar => scalar.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_from_a_file_cannot_drive_the_terminal() {
        assert_eq!(printable("\x1b[2J"), "\\u{1b}[2J");
        assert_eq!(printable(&"x".repeat(1000)).chars().count(), 101);
    }
}
