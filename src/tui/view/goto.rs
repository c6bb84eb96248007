//! The go-to line, with what it completes to.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::{Block, Clear, Widget};

use super::super::app::App;
use super::super::goto::GotoLine;
use super::super::text;
use super::paint::{put, put_all};

/// The popup.
#[derive(Debug)]
pub struct GotoPopup<'a> {
    /// The application.
    pub app: &'a App,
    /// The line.
    pub line: &'a GotoLine,
}

const LISTED: usize = 10;

impl Widget for GotoPopup<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let theme = self.app.theme;
        let width = area.width.min(56);
        let height = (LISTED as u16 + 4).min(area.height);
        let place =
            Rect { x: area.x + (area.width - width) / 2, y: area.y + area.height.min(2), width, height }
                .intersection(area);
        Clear.render(place, buf);
        Block::bordered().title(" go to ").border_style(theme.dim()).render(place, buf);
        let inner = Rect {
            x: place.x + place.width.min(2),
            y: place.y + place.height.min(1),
            width: place.width.saturating_sub(4),
            height: place.height.saturating_sub(2),
        };
        // The end of a long line is what is being typed.
        let room = usize::from(inner.width).saturating_sub(4);
        let skip = self.line.text.chars().count().saturating_sub(room);
        let shown: String = self.line.text.chars().skip(skip).collect();
        let pieces =
            [("/ ".to_owned(), theme.key()), (shown, theme.strong()), (" ".to_owned(), theme.current())];
        put_all(buf, inner, 0, 0, &pieces);
        let names = self.line.completions(self.app);
        let listed = usize::from(inner.height.saturating_sub(2)).min(LISTED);
        let chosen = self.line.chosen.unwrap_or(0);
        let first = (chosen + 1).saturating_sub(listed);
        for (y, (i, name)) in names.iter().enumerate().skip(first).take(listed).enumerate() {
            let style = if self.line.chosen == Some(i) { theme.current() } else { Style::new() };
            put(buf, inner, 2, y as u16 + 1, &text::cut(name, inner.width.into()), style);
        }
        let note = match names.len() {
            0 => "a stage, L1, p0, or an address p0/L1/softmax[h=0,q=1,k=0]".to_owned(),
            count if count > listed => format!("{count} in all"),
            _ => String::new(),
        };
        put(buf, inner, 2, inner.height.saturating_sub(1), &note, theme.dim());
    }
}
