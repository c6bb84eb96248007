//! Functions that write into a buffer within an area.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Widget};

use super::super::fit::{Piece, fit};
use super::super::text;
use super::super::theme::Theme;

/// Clears `area` for a popup. If a wide character reaches into the area from the left, it is removed too, because the
/// terminal would draw it over the popup's edge.
pub fn clear(buf: &mut Buffer, area: Rect) {
    let area = area.intersection(buf.area);
    Clear.render(area, buf);
    for y in area.y..area.bottom() {
        if let Some(cell) = area.x.checked_sub(1).and_then(|x| buf.cell_mut((x, y)))
            && text::width(cell.symbol()) > 1
        {
            cell.set_symbol(" ");
        }
    }
}

/// Draws the frame of an empty popup in `place`, and returns the area inside the frame.
pub fn popup(buf: &mut Buffer, place: Rect, title: &str, theme: Theme) -> Rect {
    clear(buf, place);
    Block::bordered().title(title).border_style(theme.dim()).render(place, buf);
    inside(place)
}

/// The area inside a popup: inside its frame, and without one column at either side.
pub fn inside(place: Rect) -> Rect {
    Rect {
        x: place.x + place.width.min(2),
        y: place.y + place.height.min(1),
        width: place.width.saturating_sub(4),
        height: place.height.saturating_sub(2),
    }
}

/// Writes `content` at column `x` and row `y` of `area`, and returns the number of written columns. Text that does not
/// fit ends in `…`, but never within a number ([`text::cut`]). Nothing is written outside the area.
pub fn put(buf: &mut Buffer, area: Rect, x: u16, y: u16, content: &str, style: Style) -> u16 {
    let area = area.intersection(buf.area);
    if x >= area.width || y >= area.height {
        return 0;
    }
    let room = usize::from(area.width - x);
    let shown = text::cut(content, room);
    buf.set_stringn(area.x + x, area.y + y, &shown, room, style);
    text::width(&shown) as u16
}

/// Writes the pieces of a line from column `x` on, fitted to the area, and returns the number of written columns.
pub fn put_fit(buf: &mut Buffer, area: Rect, x: u16, y: u16, pieces: &[Piece]) -> u16 {
    let room = usize::from(area.width.saturating_sub(x));
    let line = fit(pieces, room);
    line.iter().fold(x, |x, (content, style)| x + put(buf, area, x, y, content, *style)) - x
}

/// Writes a line of styled text into row `y` of `area`.
pub fn put_line(buf: &mut Buffer, area: Rect, y: u16, line: &Line<'_>) {
    let mut x = 0;
    for span in &line.spans {
        x += put(buf, area, x, y, &span.content, line.style.patch(span.style));
    }
}
