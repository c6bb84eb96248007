//! The comment of a question, and the text around it.

use super::comments::{Comment, Problem, setting, unknown};
use super::expression::{Expression, Position};
use super::{Hint, Kind, Question, Right, Tolerance};
use crate::trace::Step;

/// Names of the kinds.
const KINDS: [(&str, Kind); 9] = [
    ("cell", Kind::Cell),
    ("token", Kind::Token),
    ("key", Kind::Key),
    ("head", Kind::Head),
    ("layer", Kind::Layer),
    ("stage", Kind::Stage),
    ("number", Kind::Number),
    ("shape", Kind::Shape),
    ("choice", Kind::Choice),
];

const KEYS: [&str; 4] = ["answer", "hint", "hide", "tolerance"];

/// Most choices: each has a digit.
const MOST_CHOICES: usize = 9;

impl Kind {
    /// Its name in a lesson's file.
    pub fn name(self) -> &'static str {
        KINDS.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// Whether the cursor answers, and Enter gives the answer.
    pub fn is_cursor(self) -> bool {
        !matches!(self, Self::Number | Self::Shape | Self::Choice)
    }

    /// Whether the values are hidden if the question does not say.
    fn hides_cells(self) -> bool {
        matches!(self, Self::Cell | Self::Key | Self::Token | Self::Head | Self::Number)
    }
}

/// Reads the comment of a question about a scene at `step`, and the text below it.
pub(super) fn question(
    comment: &Comment,
    step: Option<Step>,
    text: &[(usize, String)],
    problems: &mut Vec<Problem>,
) -> Option<Question> {
    let mut problem = |line, what: String| problems.push(Problem { line, what });
    let Some(kind) = KINDS.iter().find(|(name, _)| *name == comment.value).map(|(_, kind)| *kind) else {
        let names = KINDS.map(|(name, _)| name);
        problem(comment.line, unknown("kind of question", &comment.value, &names));
        return None;
    };
    let (mut answer, mut hints, mut hide, mut tolerance) = (None, Vec::new(), None, None);
    for (line, text) in &comment.settings {
        let read = setting(text).and_then(|(key, value)| match key {
            "answer" if answer.is_none() => {
                answer = Some(right(kind, value, step)?);
                Ok(())
            }
            "tolerance" if tolerance.is_none() => {
                if kind != Kind::Number {
                    return Err("only a number has a tolerance".into());
                }
                tolerance = Some(self::tolerance(value)?);
                Ok(())
            }
            "hide" if hide.is_none() => {
                hide = Some(match value {
                    "cells" => true,
                    "none" => false,
                    _ => return Err(format!("`hide` is cells or none, not `{value}`")),
                });
                Ok(())
            }
            "hint" => {
                let hint = value.split_once('|').map(|(to, text)| (to.trim(), text.trim()));
                let Some((to, text)) = hint.filter(|(to, text)| !to.is_empty() && !text.is_empty()) else {
                    return Err(
                        "a hint is `ANSWER | text`, or `* | text` for every other wrong answer".into()
                    );
                };
                let to = if to == "*" { None } else { Some(right(kind, to, step)?) };
                if hints.iter().any(|hint: &Hint| hint.to == to) {
                    return Err("there is a hint to this answer already".into());
                }
                hints.push(Hint { to, text: text.to_owned() });
                Ok(())
            }
            _ if KEYS.contains(&key) => Err(format!("`{key}` is set twice in this question")),
            _ => Err(unknown("setting of a question", key, &KEYS)),
        });
        if let Err(what) = read {
            problem(*line, what);
        }
    }
    let Some(mut answer) = answer else {
        if !comment.settings.iter().any(|(_, text)| text.trim_start().starts_with("answer")) {
            problem(comment.line, "the question has no `answer:`".into());
        }
        return None;
    };
    if let Right::Value { tolerance: own, .. } = &mut answer {
        *own = tolerance;
    }
    // A hint to every other answer is tried last, wherever it stands.
    hints.sort_by_key(|hint| hint.to.is_none());
    let lines: Vec<&str> = text.iter().map(|(_, line)| line.as_str()).collect();
    let (asked, rest) = lines.split_at(end_of_text(&lines, kind));
    let (choices, rest) = if kind == Kind::Choice { choices(rest) } else { (Vec::new(), rest) };
    if kind == Kind::Choice && !(2..=MOST_CHOICES).contains(&choices.len()) {
        let what = format!(
            "a choice has 2 to {MOST_CHOICES} choices, not {}: write them as a list, 1. 2. 3., right after the question",
            choices.len()
        );
        problem(comment.line, what);
    }
    let asked = trimmed(asked);
    if asked.is_empty() {
        problem(comment.line, "the question has no text below its comment".into());
    }
    Some(Question {
        line: comment.line,
        kind,
        answer,
        hints,
        hides_cells: hide.unwrap_or(kind.hides_cells()),
        text: asked,
        choices,
        explanation: explanation(rest),
    })
}

/// An answer, or the answer that a hint is about.
fn right(kind: Kind, text: &str, step: Option<Step>) -> Result<Right, String> {
    match kind {
        Kind::Cell | Kind::Token | Kind::Key | Kind::Head | Kind::Layer => {
            let indices = indices(text, step)?;
            let has = |wanted: &[char]| indices.iter().any(|(letter, _)| wanted.contains(letter));
            let wanted: &[char] = match kind {
                Kind::Layer => &['L'],
                Kind::Head => &['h', 'g'],
                Kind::Key => &['k'],
                Kind::Token => &['t', 'v', 'k', 'n'],
                _ => return Ok(Right::Indices(indices)),
            };
            match has(wanted) {
                true => Ok(Right::Indices(indices)),
                false => {
                    Err(format!("a {} is asked for: write its index, as in `{}=0`", kind.name(), wanted[0]))
                }
            }
        }
        Kind::Stage => match Step::from_name(text) {
            Some(step) => Ok(Right::Step(step.name().to_owned())),
            None => Err(format!("there is no stage `{text}`")),
        },
        Kind::Number | Kind::Shape | Kind::Choice => {
            Expression::parse(text)?;
            Ok(Right::Value { expression: text.to_owned(), tolerance: None })
        }
    }
}

/// `letter=EXPRESSION` list.
fn indices(text: &str, step: Option<Step>) -> Result<Vec<(char, String)>, String> {
    let axes = step.map_or(&[][..], |step| step.axes());
    let mut indices: Vec<(char, String)> = Vec::new();
    for part in Position::list(text) {
        let (letter, expression) = part.split_once('=').ok_or_else(|| {
            format!("`{part}` is no index: write a letter, `=` and an expression, as in t=3")
        })?;
        let (letter, expression) = (letter.trim(), expression.trim());
        let letter = if letter == "q" { "t" } else { letter };
        let known = axes.iter().map(|axis| axis.index()).chain(['L']).find(|own| own.to_string() == letter);
        let Some(letter) = known else {
            let letters: Vec<String> = axes.iter().map(|axis| axis.index().to_string()).collect();
            return Err(format!(
                "`{letter}` is no axis of the scene's stage: its letters are {}, and L for the layer",
                letters.join(", ")
            ));
        };
        if letter == 'L' && step.is_some_and(|step| !step.stage().in_layer()) {
            return Err("the scene's stage is in no layer, so that `L` has no value".into());
        }
        if indices.iter().any(|(other, _)| *other == letter) {
            return Err(format!("`{letter}` has an index already"));
        }
        Position::of_answer(expression)?;
        indices.push((letter, expression.to_owned()));
    }
    match indices.is_empty() {
        true => Err("an index is expected, as in t=3".into()),
        false => Ok(indices),
    }
}

fn tolerance(text: &str) -> Result<Tolerance, String> {
    let (digits, relative) = match text.strip_suffix('%') {
        Some(digits) => (digits.trim(), true),
        None => (text, false),
    };
    let number = digits.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    match number {
        Some(number) if relative => Ok(Tolerance::Relative(number / 100.0)),
        Some(number) => Ok(Tolerance::Absolute(number)),
        None => Err(format!("a tolerance is a number over 0, as 0.01 or 2%, not `{text}`")),
    }
}

/// The line at which the question's text ends: the list of choices, or the block with the answer.
fn end_of_text(lines: &[&str], kind: Kind) -> usize {
    let ends = |line: &&str| line.starts_with(DETAILS) || kind == Kind::Choice && item(line, 1).is_some();
    lines.iter().position(ends).unwrap_or(lines.len())
}

const DETAILS: &str = "<details";

/// The text of a list's item, if the line begins the item with this number.
fn item(line: &str, number: usize) -> Option<&str> {
    line.strip_prefix(&format!("{number}. ")).map(str::trim)
}

/// The ordered list at the beginning of `lines`, and the lines after it.
fn choices<'a>(lines: &'a [&'a str]) -> (Vec<String>, &'a [&'a str]) {
    let mut choices: Vec<String> = Vec::new();
    let mut blank = false;
    for (at, line) in lines.iter().enumerate() {
        if let Some(text) = item(line, choices.len() + 1) {
            choices.push(text.to_owned());
        } else if line.trim().is_empty() {
            blank = true;
            continue;
        } else if let Some(last) =
            choices.last_mut().filter(|_| !line.starts_with(DETAILS) && (!blank || line.starts_with("  ")))
        {
            *last = format!("{last} {}", line.trim());
        } else {
            return (choices, &lines[at..]);
        }
        blank = false;
    }
    (choices, &[])
}

/// The words after a question, without the lines that fold them.
fn explanation(lines: &[&str]) -> String {
    let mut open = false;
    let shown = lines.iter().filter(|line| {
        let line = line.trim();
        if line.starts_with(DETAILS) && line.ends_with("</summary>") {
            open = true;
            return false;
        }
        !(open && line == "</details>")
    });
    trimmed(&shown.copied().collect::<Vec<_>>())
}

/// The lines as a text without empty lines around it.
pub(super) fn trimmed(lines: &[&str]) -> String {
    let is_text = |line: &&str| !line.trim().is_empty();
    let first = lines.iter().position(is_text).unwrap_or(lines.len());
    let last = lines.iter().rposition(is_text).map_or(first, |last| last + 1);
    lines[first..last].join("\n")
}
