//! A screen as text, without colours.

use ratatui::buffer::Buffer;

use super::look;

/// Returns a line for each row, without trailing spaces.
pub(super) fn write(screen: &Buffer) -> String {
    let mut text = String::new();
    for y in 0..screen.area.height {
        let line: String = look::row(screen, y).map(|(_, _, cell)| cell.symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
