//! The popup of the go-to line with its completions.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::Widget;

use llama_trace_core::error::printable;
use llama_trace_core::trace::Step;

use super::super::app::App;
use super::super::goto::{edit_in, is_edit, prompt_of, takes_text, target, token_in, without_in};
use super::super::input::GotoLine;
use super::super::screen_option::ScreenOption;
use super::super::synonyms::meant;
use super::super::text;
use super::labels;
use super::paint::{popup, put};

/// The popup.
#[derive(Debug)]
pub struct GotoPopup<'a> {
    /// The viewer.
    pub app: &'a App,
    /// The line.
    pub line: &'a GotoLine,
}

const LISTED: usize = 10;

/// The hint if there are no completions. For a prompt or a comparison, it says what Enter does. Inside brackets, it has
/// the letters of the step's axes. Otherwise, it has examples of places.
fn hint(app: &App, text: &str) -> String {
    if prompt_of(text).is_some() {
        return "Enter runs this text as a new run".to_owned();
    }
    if takes_text(text) {
        return "type a text of equally many tokens, or an open run: r1; Enter maps which places carry its answer"
            .to_owned();
    }
    if is_edit(text) {
        let empty = text.trim_end().ends_with('=');
        return match (target(app, text), token_in(text).is_some()) {
            (Ok(_), true) if empty => {
                "Enter runs the prompt without this token; Tab inserts a token".to_owned()
            }
            (Ok(_), true) => {
                "Enter runs the prompt with this text; Tab inserts it before or after".to_owned()
            }
            (Ok(_), false) => "Enter runs the prompt with this edit".to_owned(),
            (Err(_), false) if empty => {
                "type a number, mean, an address or a file; Tab widens the place".to_owned()
            }
            (Err(wrong), _) => wrong,
        };
    }
    if let Some((option, value)) = ScreenOption::in_line(text) {
        return match option.check(value) {
            Err(wrong) if !value.is_empty() => wrong,
            _ => option.hint().to_owned(),
        };
    }
    let name = text.split('[').next().and_then(|path| path.rsplit('/').next()).unwrap_or_default().trim();
    let step =
        if name.is_empty() { Some(app.place().step) } else { Step::from_name(&name.to_ascii_lowercase()) };
    match step {
        Some(step) if text.contains('[') => {
            let letters = step.axes().iter().map(|axis| format!("{} {}", axis.index(), labels::name(*axis)));
            format!("letters: {}", letters.collect::<Vec<_>>().join(", "))
        }
        _ => match meant(name).next() {
            Some(row) => row.what.to_owned(),
            None => "a stage, L1, p0, h2, step 9, a token, L1/xq[h=0]".to_owned(),
        },
    }
}

/// The end of a line that is too long, because the user types there. It never begins within a number.
fn tail(line: &str, room: usize) -> String {
    let count = line.chars().count();
    if count <= room {
        return line.to_owned();
    }
    let rest = line.chars().skip(count + 1 - room.max(1));
    "…".chars().chain(rest.skip_while(char::is_ascii_digit)).collect()
}

impl Widget for GotoPopup<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let theme = self.app.theme;
        let width = area.width.min(56);
        let height = (LISTED as u16 + 4).min(area.height);
        let place =
            Rect { x: area.x + (area.width - width) / 2, y: area.y + area.height.min(2), width, height }
                .intersection(area);
        let line = &self.line.text;
        let title = match () {
            () if prompt_of(line).is_some() => " another prompt ",
            () if takes_text(line) => " patch: values from a clean prompt ",
            () if edit_in(line).is_some() => " this prompt with an edit ",
            () if token_in(line).is_some() => " this prompt with another token ",
            () if without_in(line).is_some() => " this prompt without a part of the model ",
            () => match ScreenOption::in_line(line) {
                Some((option, _)) => option.title(),
                None => " go to ",
            },
        };
        let inner = popup(buf, place, title, theme);
        let shown = tail(&printable(&self.line.text), usize::from(inner.width).saturating_sub(4));
        let mut x = put(buf, inner, 0, 0, "/ ", theme.key());
        x += put(buf, inner, x, 0, &shown, theme.strong());
        put(buf, inner, x, 0, " ", theme.current());
        let found = self.line.completions(self.app);
        let listed = usize::from(inner.height.saturating_sub(2)).min(LISTED);
        let chosen = self.line.chosen.unwrap_or(0);
        let first = (chosen + 1).saturating_sub(listed);
        for (y, (i, completion)) in found.iter().enumerate().skip(first).take(listed).enumerate() {
            let style = if self.line.chosen == Some(i) { theme.current() } else { Style::new() };
            let y = y as u16 + 1;
            let x = 2 + put(buf, inner, 2, y, &text::cut(&completion.text, inner.width.into()), style);
            let room = usize::from(inner.width.saturating_sub(x + 2));
            if room > 0 {
                put(buf, inner, x + 2, y, &text::cut(&completion.what, room), theme.dim());
            }
        }
        let note = match found.len() {
            0 => hint(self.app, &self.line.text),
            count if count > listed => format!("{count} in all"),
            _ => String::new(),
        };
        let lines = text::wrap(&note, usize::from(inner.width.saturating_sub(3)));
        for (y, line) in (inner.height.saturating_sub(lines.len() as u16)..).zip(&lines) {
            put(buf, inner, 2, y, line, theme.dim());
        }
    }
}
