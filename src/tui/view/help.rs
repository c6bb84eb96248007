//! The help screen, drawn from the key table.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;

use super::super::action::{BINDINGS, Binding, Group};
use super::super::app::App;
use super::super::synonyms::{SYNONYMS, Synonym, meant};
use super::super::text;
use super::super::theme::Theme;
use super::kind::View;
use super::lesson;
use super::paint::{inside, popup, put_line};
use super::views::VIEWS;

/// The help screen.
#[derive(Debug)]
pub struct Help<'a> {
    /// The viewer.
    pub app: &'a App,
    /// The first line on the screen.
    pub line: usize,
    /// The text that lines must contain to be shown; empty for all lines.
    pub wanted: &'a str,
}

const KEYS: usize = 14;
/// Heading of the synonyms.
const SYNONYMS_TITLE: &str = "Other words for stages, views, commands (type them after /) and keys";

fn place(area: Rect) -> Rect {
    let width = area.width.saturating_sub(4).min(100);
    let height = area.height.saturating_sub(2);
    Rect { x: area.x + (area.width - width) / 2, y: area.y + area.height.min(1), width, height }
}

/// The keys of a row with their text, in as many lines as it needs.
fn entry(theme: Theme, width: usize, keys: &str, help: &str) -> Vec<Line<'static>> {
    let words = text::wrap(help, width.saturating_sub(KEYS));
    let rows = words.into_iter().enumerate().map(|(i, words)| {
        let keys = if i == 0 { keys } else { "" };
        Line::from(vec![Span::styled(text::left(keys, KEYS), theme.key()), words.into()])
    });
    rows.collect()
}

/// The keys of a row, without those that the lesson takes.
fn labels(binding: &Binding, taken: &[&str]) -> String {
    let all = binding.labels();
    let keys: Vec<&str> = all.split(", ").filter(|key| !taken.contains(key)).collect();
    keys.join(", ")
}

/// The lines of all entries that contain `wanted`.
fn lines(app: &App, width: usize, wanted: &str) -> Vec<Line<'static>> {
    let theme = app.theme;
    let wanted = wanted.to_lowercase();
    let is_wanted = |texts: &[&str]| texts.iter().any(|text| text.to_lowercase().contains(&wanted));
    // Names that the text is a synonym of.
    let meant: Vec<&str> = meant(&wanted).flat_map(|row| row.finds).copied().collect();
    let mut lines = Vec::new();
    let (of_lesson, taken) = lesson::help(app);
    let found = |row: &&(&str, &str)| is_wanted(&[lesson::HELP_TITLE, row.0, row.1]);
    if of_lesson.iter().any(|row| found(&row)) {
        lines.push(Line::styled(lesson::HELP_TITLE, theme.heading(false)));
        for (keys, help) in of_lesson.iter().filter(found) {
            lines.extend(entry(theme, width, keys, help));
        }
        lines.push(Line::default());
    }
    for group in Group::ALL {
        let found = |binding: &&Binding| {
            let named = binding.keys.iter().any(|key| meant.contains(&&*key.label()));
            let keys = labels(binding, taken);
            binding.group == group
                && !keys.is_empty()
                && (named || is_wanted(&[group.title(), binding.help, &keys]))
        };
        if !BINDINGS.iter().any(|binding| found(&binding)) {
            continue;
        }
        lines.push(Line::styled(group.title(), theme.heading(false)));
        for binding in BINDINGS.iter().filter(found) {
            lines.extend(entry(theme, width, &labels(binding, taken), binding.help));
        }
        lines.push(Line::default());
    }
    let found = |view: &&&dyn View| {
        meant.contains(&view.name()) || is_wanted(&["Views", view.name(), &view.hint().join(" ")])
    };
    if VIEWS.iter().any(|view| found(&view)) {
        lines.push(Line::styled("Views", theme.heading(false)));
    }
    for view in VIEWS.iter().filter(found) {
        let mut name = view.name();
        for line in view.hint().into_iter().flat_map(|line| text::wrap(line, width.saturating_sub(KEYS))) {
            let name = std::mem::take(&mut name);
            lines.push(Line::from(vec![Span::styled(text::left(name, KEYS), theme.key()), line.into()]));
        }
    }
    let found = |row: &&Synonym| {
        row.is_meant(&wanted) || is_wanted(&[SYNONYMS_TITLE, row.what, &row.words.join(", ")])
    };
    if SYNONYMS.iter().any(|row| found(&row)) {
        lines.push(Line::default());
        lines.push(Line::styled(SYNONYMS_TITLE, theme.heading(false)));
    }
    for row in SYNONYMS.iter().filter(found) {
        let mut name = row.words[0];
        let others = match &row.words[1..] {
            [] => String::new(),
            others => format!(" · also {}", others.join(", ")),
        };
        let text = format!("{} · {}{others}", row.finds.join(", "), row.what);
        for line in text::wrap(&text, width.saturating_sub(KEYS)) {
            let name = std::mem::take(&mut name);
            lines.push(Line::from(vec![Span::styled(text::left(name, KEYS), theme.key()), line.into()]));
        }
    }
    let mouse = "A click selects a step, a cell or a token. The wheel scrolls the panel under the \
                 pointer. Hold Shift to select text, as in any terminal.";
    let screen = "␣ is a space in a token. ▸ and ▾ are closed and open parts of the outline. A step in \
                  italics is a view of another step. In a heatmap, [ ] is the cursor, · is exactly 0, a \
                  - is below 0, -∞ is -inf (masked), ?? is NaN, and ▲ or ▼ is beyond the colour scale. \
                  The legend below the heatmap explains the colours, or the shades and signs, and counts \
                  the values beyond the scale.";
    for (title, words) in [("The mouse", mouse), ("On the screen", screen)] {
        if is_wanted(&[title, words]) {
            lines.push(Line::default());
            lines.push(Line::styled(title, theme.heading(false)));
            lines.extend(text::wrap(words, width).into_iter().map(Line::from));
        }
    }
    if lines.is_empty() {
        lines.push(Line::from("nothing matches; Backspace deletes a letter"));
    }
    lines
}

/// The last scroll position on a screen of this size.
pub fn last_line(app: &App, wanted: &str) -> usize {
    let inner = inside(place(app.panels.size));
    lines(app, inner.width.into(), wanted).len().saturating_sub(inner.height.into())
}

impl Widget for Help<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let place = place(area);
        let title = match self.wanted {
            "" => " help · type to find · the manual: llama-trace help keys ".to_owned(),
            wanted => format!(" help · {} ", text::cut(&text::visible(wanted), 40)),
        };
        let inner = popup(buf, place, &title, self.app.theme);
        let lines = lines(self.app, inner.width.into(), self.wanted);
        for (y, line) in lines.iter().skip(self.line).take(inner.height.into()).enumerate() {
            put_line(buf, inner, y as u16, line);
        }
        if self.line + usize::from(inner.height) < lines.len() && place.height > 0 {
            let foot = Rect { y: place.bottom() - 1, height: 1, ..place };
            put_line(buf, foot, 0, &Line::styled("─ ↓ more ", Style::new()));
        }
    }
}
