//! The screen of a terminal that is too small.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::Widget;

use super::super::app::App;
use super::super::text;
use super::SMALLEST;
use super::paint::put;

/// The message with the minimum size of the terminal.
#[derive(Debug)]
pub struct TooSmall<'a>(pub &'a App);

impl Widget for TooSmall<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let size = self.0.panels.size;
        let (columns, rows) = SMALLEST;
        let message = format!(
            "terminal too small: needs at least {columns}x{rows}, is {}x{}; q quits",
            size.width, size.height
        );
        for (y, line) in text::wrap(&message, area.width.into()).iter().enumerate() {
            let Ok(y) = u16::try_from(y) else { return };
            put(buf, area, 0, y, line, Style::new());
        }
    }
}
