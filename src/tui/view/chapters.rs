//! The popup with the list of chapters.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::Widget;

use llama_trace_core::chapters::{Chapter, number_in};
use llama_trace_core::trace::Step;

use super::super::app::App;
use super::super::chapter_list;
use super::super::text;
use super::paint::{popup, put};

/// The popup.
#[derive(Debug)]
pub struct Chapters<'a> {
    /// The viewer.
    pub app: &'a App,
    /// The chosen row.
    pub at: usize,
}

/// The steps of a chapter: "xq_rope, xk_rope".
fn steps(chapter: &Chapter) -> String {
    chapter.steps().map(Step::name).collect::<Vec<_>>().join(", ")
}

impl Widget for Chapters<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let theme = self.app.theme;
        let chapters: Vec<Chapter> = chapter_list::listed(self.app).collect();
        let width = area.width.saturating_sub(4).min(110);
        let height = (chapters.len() as u16 + 4).min(area.height.saturating_sub(2));
        let place =
            Rect { x: area.x + (area.width - width) / 2, y: area.y + area.height.min(1), width, height }
                .intersection(area);
        let inner = popup(buf, place, " chapters ", theme);
        let listed = usize::from(inner.height.saturating_sub(1));
        let first = (self.at + 1).saturating_sub(listed);
        if listed < chapters.len() {
            let seen =
                format!(" {}-{} of {} ", first + 1, (first + listed).min(chapters.len()), chapters.len());
            let at = place.width.saturating_sub(text::width(&seen) as u16 + 2);
            put(buf, place, at, place.height.saturating_sub(1), &seen, theme.key());
        }
        let titles = chapters.iter().map(|chapter| text::width(chapter.title())).max().unwrap_or(0);
        let titles = titles.min(usize::from(inner.width).saturating_sub(4));
        for (y, (at, chapter)) in (0..).zip(chapters.iter().enumerate().skip(first).take(listed)) {
            let style = if at == self.at { theme.current() } else { Style::new() };
            let number = number_in(chapter.slug).map_or(String::new(), |number| format!("{number:02}"));
            let number = format!("{number:>2}  ");
            let x = put(buf, inner, 0, y, &number, theme.index());
            let x = x + put(buf, inner, x, y, &text::left(chapter.title(), titles), style) + 2;
            let room = usize::from(inner.width.saturating_sub(x));
            if room > 0 {
                put(buf, inner, x, y, &text::cut(&steps(chapter), room), theme.dim());
            }
        }
        let keys = if self.app.starts_runs {
            "↑ ↓ choose · Enter opens it as a lesson on its own prompt · Esc closes"
        } else {
            "↑ ↓ choose · Enter goes to its stage and its text · Esc closes"
        };
        put(buf, inner, 0, inner.height.saturating_sub(1), keys, theme.dim());
    }
}
