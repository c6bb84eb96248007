//! A screen as painted cells, for a front end that paints them itself. Blocks, shades and lines come as rectangles, so
//! that they join seamlessly.

use ratatui::buffer::Buffer;

use super::look::{self, Look, Paper, Rgb};
use super::shapes;
pub use super::shapes::{CELL, Part};

/// A cell, or two cells with one wide character.
#[derive(Clone, Debug, PartialEq)]
pub struct Painted<'a> {
    /// Column.
    pub x: u16,
    /// Row.
    pub y: u16,
    /// Number of columns.
    pub width: u16,
    /// The text.
    pub symbol: &'a str,
    /// The colour of the text.
    pub ink: Rgb,
    /// The colour behind it.
    pub ground: Rgb,
    /// Whether the text is bold.
    pub bold: bool,
    /// Whether it is italic.
    pub italic: bool,
    /// Whether it is underlined.
    pub underlined: bool,
}

impl Painted<'_> {
    /// The rectangles of the symbol, in units of [`CELL`]; none if it is drawn with the font.
    pub fn parts(&self) -> Option<Vec<Part>> {
        shapes::of(self.symbol)
    }
}

/// The cells of a row, from the left.
pub fn row(screen: &Buffer, y: u16, paper: Paper) -> impl Iterator<Item = Painted<'_>> {
    look::row(screen, y).map(move |(x, width, cell)| {
        let Look { ink, background, bold, italic, underlined } = Look::of(cell, paper);
        let ground = background.unwrap_or(paper.background());
        Painted { x, y, width, symbol: cell.symbol(), ink, ground, bold, italic, underlined }
    })
}

#[cfg(test)]
mod tests {
    use ratatui::layout::Rect;
    use ratatui::style::{Color, Modifier, Style};

    use super::*;

    #[test]
    fn wide_characters_and_reversed_cells_are_painted_as_they_are_seen() {
        let mut screen = Buffer::empty(Rect::new(0, 0, 4, 1));
        screen.set_string(0, 0, "あ█x", Style::new());
        screen.set_style(
            Rect::new(3, 0, 1, 1),
            Style::new().bg(Color::Rgb(1, 2, 3)).add_modifier(Modifier::REVERSED | Modifier::BOLD),
        );
        let cells: Vec<_> = row(&screen, 0, Paper::Dark).collect();
        let at: Vec<_> = cells.iter().map(|cell| (cell.x, cell.width, cell.symbol)).collect();
        assert_eq!(at, [(0, 2, "あ"), (2, 1, "█"), (3, 1, "x")]);
        assert_eq!(cells[1].parts().unwrap().len(), 1);
        let last = &cells[2];
        assert_eq!((last.ink, last.ground, last.bold), ((1, 2, 3), Paper::Dark.ink(), true));
        assert_eq!(last.parts(), None);
    }
}
