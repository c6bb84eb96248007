//! The lines of a lesson's file, and the comments that hold its settings.

use crate::trace::select::near;

/// A mistake in a lesson's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Line in the file, from 1.
    pub line: usize,
    /// What is wrong, and what is expected.
    pub what: String,
}

/// A line of text, or a comment with settings.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Part {
    Text(String),
    Settings(Comment),
}

/// A comment with settings: `<!-- KEY: VALUE`, and lines with further settings.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Comment {
    pub(super) line: usize,
    pub(super) key: String,
    pub(super) value: String,
    /// The lines below the first, each with its number.
    pub(super) settings: Vec<(usize, String)>,
}

const OPENS: &str = "<!--";
const CLOSES: &str = "-->";
/// Keys of the comments that a lesson may have.
pub(super) const KEYS: [&str; 7] = ["scene", "ask", "steps", "prompt", "passes", "sampling", "precision"];

/// The text without characters that control a terminal or reverse the direction of writing, with `\n` as its only line
/// end.
pub(super) fn clean(text: &str) -> String {
    let harmless = |c: char| {
        let reverses = matches!(c, '\u{200e}' | '\u{200f}' | '\u{61c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        (c == '\n' || c == '\t' || !c.is_control()) && !reverses && c != '\u{feff}'
    };
    text.chars().filter(|c| harmless(*c)).collect()
}

/// Splits a cleaned text into lines of text and comments with settings. Other comments, and comments in fenced blocks,
/// are text.
pub(super) fn parts(text: &str, problems: &mut Vec<Problem>) -> Vec<(usize, Part)> {
    let mut parts = Vec::new();
    let mut lines = (1..).zip(text.lines());
    let mut fence: Option<&str> = None;
    while let Some((number, line)) = lines.next() {
        let marks = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| marks.starts_with(mark));
        match (fence, mark) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark => fence = None,
            _ => {}
        }
        let Some(rest) = line.strip_prefix(OPENS).filter(|_| fence.is_none() && mark.is_none()) else {
            parts.push((number, Part::Text(line.to_owned())));
            continue;
        };
        let mut problem = |line, what: String| problems.push(Problem { line, what });
        let mut body = vec![(number, rest.to_owned())];
        let mut closed = rest.contains(CLOSES);
        while !closed {
            let Some((number, line)) = lines.next() else {
                problem(number, format!("the comment has no end: `{CLOSES}` is missing"));
                // The other lines are the text of the lesson.
                body.truncate(1);
                break;
            };
            closed = line.contains(CLOSES);
            body.push((number, line.to_owned()));
        }
        let key = key_of(&body[0].1);
        let is_known = KEYS.contains(&key.as_str());
        if !is_known {
            // A note such as `TODO: …` is no setting.
            let after = body[0].1.trim_start().strip_prefix(&key).unwrap_or_default();
            if after.starts_with(':') && key.starts_with(|c: char| c.is_ascii_lowercase()) {
                problem(number, unknown("comment", &key, &KEYS));
            }
            // An author's note, which a page does not show.
            parts.extend(body.into_iter().map(|(at, line)| {
                let line = if at == number { format!("{OPENS}{line}") } else { line };
                (at, Part::Text(line))
            }));
            continue;
        }
        let Some((last, line)) = body.last_mut() else { continue };
        if let Some((before, after)) = line.clone().split_once(CLOSES) {
            if !after.trim().is_empty() {
                problem(*last, format!("`{}` follows the comment: begin a new line", after.trim()));
            }
            *line = before.to_owned();
        }
        if let Some(nested) = body.iter().position(|(_, line)| line.contains(OPENS)) {
            problem(
                body[nested].0,
                format!("`{OPENS}` in a comment: the comment before it has no `{CLOSES}`"),
            );
            body.truncate(nested.max(1));
        }
        let first = body.remove(0).1;
        let value = first.trim_start().strip_prefix(&key).unwrap_or_default().trim();
        let value = value.strip_prefix(':').unwrap_or(value).trim().to_owned();
        let settings = body.into_iter().filter(|(_, line)| !line.trim().is_empty()).collect();
        parts.push((number, Part::Settings(Comment { line: number, key, value, settings })));
    }
    parts
}

/// The first word of a comment.
fn key_of(comment: &str) -> String {
    comment
        .trim_start()
        .chars()
        .take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
        .collect::<String>()
        .trim_end_matches("--")
        .to_owned()
}

/// The message for an unknown key.
pub(super) fn unknown(what: &str, key: &str, known: &[&str]) -> String {
    match &near(key, known)[..] {
        [] => format!("there is no {what} `{key}`; known are {}", known.join(", ")),
        near => format!("there is no {what} `{key}`; did you mean {}?", near.join(" or ")),
    }
}

/// Splits a line of settings into key and value.
///
/// # Errors
/// A message if it is no setting.
pub(super) fn setting(line: &str) -> Result<(&str, &str), String> {
    let (key, value) =
        line.split_once(':').ok_or_else(|| format!("`{}` is no setting: write `key: value`", line.trim()))?;
    let (key, value) = (key.trim(), value.trim());
    if value.is_empty() {
        return Err(format!("`{key}` has no value"));
    }
    Ok((key, value))
}
