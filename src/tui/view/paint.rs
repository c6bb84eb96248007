//! Writing into a buffer without ever leaving an area.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Line;

use super::super::text;

/// Writes `text` at column `x` and row `y` of `area`, cut at its right edge, and says how many columns it
/// took. Outside the area nothing is written.
pub fn put(buf: &mut Buffer, area: Rect, x: u16, y: u16, content: &str, style: Style) -> u16 {
    let area = area.intersection(buf.area);
    if x >= area.width || y >= area.height {
        return 0;
    }
    let room = usize::from(area.width - x);
    buf.set_stringn(area.x + x, area.y + y, content, room, style);
    text::width(content).min(room) as u16
}

/// Writes pieces of a line one after the other.
pub fn put_all(buf: &mut Buffer, area: Rect, x: u16, y: u16, pieces: &[(String, Style)]) -> u16 {
    pieces.iter().fold(x, |x, (text, style)| x + put(buf, area, x, y, text, *style))
}

/// Writes a line of styled text into row `y` of `area`.
pub fn put_line(buf: &mut Buffer, area: Rect, y: u16, line: &Line<'_>) {
    let mut x = 0;
    for span in &line.spans {
        x += put(buf, area, x, y, &span.content, line.style.patch(span.style));
    }
}

/// Gives a part of a row of `area` a style, whatever is written there.
pub fn restyle(buf: &mut Buffer, area: Rect, x: u16, y: u16, width: u16, style: Style) {
    if y < area.height && x < area.width {
        let part = Rect::new(area.x + x, area.y + y, width.min(area.width - x), 1);
        buf.set_style(part.intersection(buf.area), style);
    }
}
