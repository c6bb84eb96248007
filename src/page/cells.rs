//! The cells that changed between two screens, as bytes for the page's script.
//!
//! Each cell is a record:
//!
//! ```text
//! column u16 · row u16 · columns u8 · style u8 (1 bold, 2 italic, 4 underlined) · ink 3 bytes · ground 3 bytes
//! bytes of the text u8 · number of rectangles u8 · the text · rectangles
//! ```
//!
//! A rectangle has five bytes: x, y, width and height in eighths of a unit of [`CELL`], and the opacity. A cell with
//! rectangles is not drawn with the font.

use ratatui::buffer::Buffer;

use llama_trace_picture::Paper;
use llama_trace_picture::cells::{CELL, Painted, Part, row};

/// Parts of a unit of [`CELL`] in the encoding.
const PARTS: f32 = 8.0;

/// Appends the cells of `now` that differ from `before`. Without `before`, appends all.
pub fn changed(now: &Buffer, before: Option<&Buffer>, paper: Paper, out: &mut Vec<u8>) {
    let before = before.filter(|before| before.area == now.area);
    for y in 0..now.area.height {
        // A cell beside or under a wide character is painted with it, so whole rows are compared first.
        let Some(before) = before else {
            row(now, y, paper).for_each(|cell| encode(&cell, out));
            continue;
        };
        let width = usize::from(now.area.width);
        let of = |screen: &Buffer| {
            let start = usize::from(y) * width;
            screen.content.get(start..start + width).map(<[_]>::to_vec)
        };
        if of(now) == of(before) {
            continue;
        }
        let old: Vec<Painted<'_>> = row(before, y, paper).collect();
        for cell in row(now, y, paper) {
            let same = old.binary_search_by_key(&cell.x, |old| old.x).is_ok_and(|at| old[at] == cell);
            if !same {
                encode(&cell, out);
            }
        }
    }
}

fn encode(cell: &Painted<'_>, out: &mut Vec<u8>) {
    let parts = cell.parts().unwrap_or_default();
    let symbol = if parts.is_empty() { text(cell.symbol) } else { "" };
    let style = u8::from(cell.bold) | u8::from(cell.italic) << 1 | u8::from(cell.underlined) << 2;
    out.extend(cell.x.to_le_bytes());
    out.extend(cell.y.to_le_bytes());
    out.push(u8::try_from(cell.width).unwrap_or(u8::MAX));
    out.push(style);
    for (red, green, blue) in [cell.ink, cell.ground] {
        out.extend([red, green, blue]);
    }
    // A cell has at most 32 Braille dots or lines, and `text` bounds the text.
    out.push(symbol.len() as u8);
    out.push(parts.len() as u8);
    out.extend(symbol.as_bytes());
    for Part { x, y, width, height, opacity } in parts {
        out.extend([x, y, width, height].map(|length| (length * PARTS) as u8));
        out.push((opacity * 255.0) as u8);
    }
}

/// The symbol, without the rest if it is too long for its record. A base character may carry many combining marks.
fn text(symbol: &str) -> &str {
    let mut end = symbol.len().min(usize::from(u8::MAX));
    while !symbol.is_char_boundary(end) {
        end -= 1;
    }
    if symbol.trim().is_empty() { "" } else { &symbol[..end] }
}

/// The height of a cell for one unit of width.
pub const RATIO: f32 = CELL.1 / CELL.0;

#[cfg(test)]
mod tests {
    use ratatui::layout::Rect;
    use ratatui::style::Style;

    use super::*;

    fn screen(text: &str) -> Buffer {
        let mut screen = Buffer::empty(Rect::new(0, 0, 4, 2));
        screen.set_string(0, 1, text, Style::new());
        screen
    }

    fn bytes(now: &Buffer, before: Option<&Buffer>) -> Vec<u8> {
        let mut out = Vec::new();
        changed(now, before, Paper::Dark, &mut out);
        out
    }

    #[test]
    fn only_cells_that_changed_are_sent() {
        let (one, other) = (screen("abc"), screen("axc"));
        assert!(bytes(&one, Some(&one)).is_empty());
        let sent = bytes(&other, Some(&one));
        assert_eq!((&sent[..6], &sent[12..]), (&[1, 0, 1, 0, 1, 0][..], &[1, 0, b'x'][..]));
        // All 8 cells, of which 3 have a text.
        assert_eq!(bytes(&one, None).len(), 8 * 14 + 3);
        let larger = Buffer::empty(Rect::new(0, 0, 5, 2));
        assert_eq!(bytes(&larger, Some(&one)).len(), 10 * 14);
    }

    #[test]
    fn blocks_are_rectangles() {
        let sent = bytes(&screen("▌"), Some(&screen("")));
        assert_eq!(sent[12..], [0, 1, 0, 0, 40, 160, 255]);
    }

    #[test]
    fn a_character_replaced_by_half_of_a_wide_one_is_painted_again() {
        let sent = bytes(&screen("ab"), Some(&screen("あ")));
        assert_eq!((sent[0], sent[14], sent[15]), (0, b'a', 1));
        let long = format!("a{}", "\u{301}".repeat(400));
        assert_eq!(text(&long).len(), 255);
    }
}
