//! The words of a lesson's scene, with its question. They are shown in place of the notes.

use ratatui::style::Style;
use ratatui::text::{Line, Span};

use llama_trace_core::lesson::Question;

use super::super::app::App;
use super::super::lesson_state::{Answered, Arrival, LessonState, how};
use super::super::text;
use super::markdown;

/// All lines of the words, wrapped to `width` minus one column at either side. Also the number of the line with the
/// reply; the number of all lines if there is none.
fn all(app: &App, lesson: &LessonState, width: u16) -> (Vec<Line<'static>>, usize) {
    let (theme, width) = (app.theme, usize::from(width).saturating_sub(2).max(8));
    let mut lines = Vec::new();
    if lesson.at == 0 {
        lines.extend(
            text::wrap(&lesson.lesson.title, width)
                .into_iter()
                .map(|line| Line::styled(line, theme.heading(false))),
        );
        lines.push(Line::default());
    }
    if let Arrival::Failed(reason) = &lesson.arrival {
        let told = format!("This scene cannot be shown: {reason}");
        lines.extend(text::wrap(&told, width).into_iter().map(|line| Line::styled(line, theme.error())));
        lines.push(Line::default());
    }
    let Some(scene) = lesson.scene() else { return (lines, 0) };
    if lesson.at == 0 && app.facts.is_none() && app.is_own(&lesson.lesson.slug) {
        let told = "This lesson was written for the built-in model. Its words can be wrong for this one.";
        lines.extend(text::wrap(told, width).into_iter().map(|line| Line::styled(line, theme.key())));
        lines.push(Line::default());
    }
    lines.extend(markdown::render(&scene.words, width, theme));
    let failed = matches!(lesson.arrival, Arrival::Failed(_));
    let Some(question) = scene.question.as_ref().filter(|_| !failed) else {
        let count = lines.len();
        return (lines, count);
    };
    if lines.last().is_some_and(|line| line.width() > 0) {
        lines.push(Line::default());
    }
    ask(app, question, width, &mut lines);
    let reply = lines.len();
    let styled = |content: &str, style: Style| -> Vec<Line<'static>> {
        text::wrap(content, width).into_iter().map(|line| Line::styled(line, style)).collect()
    };
    match lesson.answered() {
        Answered::Open => match &lesson.reply {
            Some(reply) => {
                lines.extend(
                    markdown::render(reply, width, theme)
                        .into_iter()
                        .map(|line| line.patch_style(theme.key())),
                );
            }
            None if lesson.presents => lines.extend(styled("Space shows the answer.", theme.dim())),
            None => lines.extend(styled(how(question.kind), theme.dim())),
        },
        answered => {
            let (verdict, style) = match answered {
                Answered::Right => ("✓ Right.", theme.strong()),
                _ => ("The answer:", theme.strong()),
            };
            lines.extend(styled(verdict, style));
            lines.extend(markdown::render(&question.explanation, width, theme));
        }
    }
    (lines, reply)
}

fn ask(app: &App, question: &Question, width: usize, lines: &mut Vec<Line<'static>>) {
    let theme = app.theme;
    let rule = "─".repeat(width.saturating_sub(10));
    lines.push(Line::from(vec![Span::styled("question ", theme.key()), Span::styled(rule, theme.dim())]));
    lines.extend(markdown::render(&question.text, width, theme));
    for (number, choice) in (1..).zip(&question.choices) {
        let rendered = markdown::render(choice, width.saturating_sub(3), theme);
        for (at, line) in rendered.into_iter().enumerate() {
            let mark = if at == 0 { format!("{number}  ") } else { "   ".to_owned() };
            let mut spans = vec![Span::styled(mark, theme.key())];
            spans.extend(line.spans);
            lines.push(Line::from(spans));
        }
    }
}

/// The lines of the words.
pub(super) fn lines(app: &App, width: u16) -> Option<Vec<Line<'static>>> {
    let lesson = app.lesson.as_ref()?;
    Some(all(app, lesson, width).0)
}

/// The number of the line with the reply to an answer.
pub fn reply_line(app: &App, width: u16) -> usize {
    app.lesson.as_ref().map_or(0, |lesson| all(app, lesson, width).1)
}

/// The heading of the panel: "scene 3 of 15 · question".
pub(super) fn heading(app: &App) -> Option<String> {
    let lesson = app.lesson.as_ref()?;
    let state = match lesson.arrival {
        Arrival::Waits => " …",
        _ if lesson.open_question().is_some() => " · question",
        _ => "",
    };
    Some(format!("scene {} of {}{state}", lesson.at + 1, lesson.lesson.scenes.len()))
}

/// The keys of the footer that come first in a lesson.
pub(super) fn keys(app: &App) -> Option<Vec<(&'static str, &'static str)>> {
    use llama_trace_core::lesson::Kind;
    let lesson = app.lesson.as_ref()?;
    let mut keys = vec![("Space", "next"), ("Backspace", "back")];
    if let Some(question) = lesson.open_question() {
        match question.kind {
            _ if lesson.presents => {}
            Kind::Choice => keys.push(("1-9", "answer")),
            _ => keys.push(("Enter", "answer")),
        }
        keys.push(("x", "reveal"));
    }
    match (lesson.presents, app.sampler.setting()) {
        (true, _) => keys.push(("q", "quit")),
        (false, None) => keys.push(("Esc", "leave")),
        // The view of the sampler names what Esc does.
        (false, Some(_)) => {}
    }
    Some(keys)
}

/// Heading of the lesson's keys in the help screen.
pub(super) const HELP_TITLE: &str = "This lesson";

/// The rows of the help screen on a lesson.
const HELP: [(&str, &str); 6] = [
    (
        "Space",
        "the next page of the words, then the next scene; at an open question: how to answer it, then its answer",
    ),
    (
        "Backspace",
        "the scene before; after a walk to other places: this scene again; in an explanation: one step back",
    ),
    (
        "Enter",
        "answers the question: with the place under the cursor, or with a number or a shape that you type",
    ),
    ("0 … 9", "the number of your choice, or the first digit of the number that you type"),
    ("x", "the answer of the question"),
    ("Esc", "leaves the lesson and returns to the place before it; C or /learn continues it"),
];

/// Keys that have another meaning outside a lesson, and lose it.
const TAKEN: [&str; 3] = ["Space", "Backspace", "x"];

/// The rows of the help screen on the open lesson, and the keys that lose their usual meaning.
pub(super) fn help(app: &App) -> (&'static [(&'static str, &'static str)], &'static [&'static str]) {
    if app.lesson.is_some() { (&HELP, &TAKEN) } else { (&[], &[]) }
}
