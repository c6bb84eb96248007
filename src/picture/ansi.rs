//! A screen as text with a terminal's escape sequences: `cat` shows it unchanged.

use std::fmt::Write;

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

use super::look;

/// Returns a line for each row. Each line begins and ends with the terminal's default colours.
pub(super) fn write(screen: &Buffer) -> String {
    let mut text = String::new();
    for y in 0..screen.area.height {
        let mut now = String::new();
        for (_, _, cell) in look::row(screen, y) {
            let codes = codes(cell);
            if codes != now {
                // Writing to a string cannot fail.
                let _ = write!(text, "\x1b[0{codes}m");
                now = codes;
            }
            text.push_str(cell.symbol());
        }
        text.push_str(if now.is_empty() { "\n" } else { "\x1b[0m\n" });
    }
    text
}

/// Returns the codes after the 0 of a sequence; the 0 resets everything.
fn codes(cell: &Cell) -> String {
    const MODIFIERS: [(Modifier, &str); 5] = [
        (Modifier::BOLD, ";1"),
        (Modifier::DIM, ";2"),
        (Modifier::ITALIC, ";3"),
        (Modifier::UNDERLINED, ";4"),
        (Modifier::REVERSED, ";7"),
    ];
    let mut codes: String = MODIFIERS
        .iter()
        .filter(|(modifier, _)| cell.modifier.contains(*modifier))
        .map(|(_, code)| *code)
        .collect();
    for (color, first) in [(cell.fg, 30), (cell.bg, 40)] {
        codes += &match color {
            Color::Reset => String::new(),
            Color::Rgb(r, g, b) => format!(";{};2;{r};{g};{b}", first + 8),
            Color::Indexed(index) => format!(";{};5;{index}", first + 8),
            named => match u16::from(look::number(named)) {
                number @ 0..8 => format!(";{}", first + number),
                number => format!(";{}", first + 52 + number),
            },
        };
    }
    codes
}
