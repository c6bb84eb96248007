//! The colours and the style of a cell of a screen, without a terminal.

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};
use unicode_width::UnicodeWidthStr;

/// Red, green, blue.
pub type Rgb = (u8, u8, u8);

/// The background of a picture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Paper {
    /// Light text on black.
    #[default]
    Dark,
    /// Dark text on white.
    Light,
}

/// The 16 colours of a terminal.
const ON_DARK: [Rgb; 16] = [
    (0, 0, 0),
    (205, 60, 60),
    (19, 188, 121),
    (220, 205, 70),
    (70, 130, 220),
    (198, 90, 198),
    (40, 178, 205),
    (204, 204, 204),
    (128, 128, 128),
    (241, 96, 96),
    (35, 209, 139),
    (245, 245, 67),
    (90, 160, 245),
    (220, 120, 220),
    (60, 200, 225),
    (255, 255, 255),
];
const ON_LIGHT: [Rgb; 16] = [
    (0, 0, 0),
    (190, 30, 30),
    (0, 110, 50),
    (128, 100, 0),
    (4, 81, 165),
    (160, 20, 150),
    (0, 115, 140),
    (85, 85, 85),
    (110, 110, 110),
    (205, 49, 49),
    (0, 130, 60),
    (140, 110, 0),
    (4, 81, 165),
    (188, 5, 188),
    (0, 125, 150),
    (255, 255, 255),
];

impl Paper {
    /// Its colour.
    pub fn background(self) -> Rgb {
        match self {
            Self::Dark => (16, 16, 20),
            Self::Light => (255, 255, 255),
        }
    }

    /// The colour of text on it.
    pub fn ink(self) -> Rgb {
        match self {
            Self::Dark => (220, 220, 220),
            Self::Light => (24, 24, 24),
        }
    }

    fn rgb(self, color: Color, reset: Rgb) -> Rgb {
        let table = if self == Self::Dark { ON_DARK } else { ON_LIGHT };
        match color {
            Color::Reset => reset,
            Color::Rgb(r, g, b) => (r, g, b),
            Color::Indexed(index) => indexed(index, &table),
            named => table[usize::from(number(named))],
        }
    }
}

/// Returns the number of a named colour.
pub(super) fn number(color: Color) -> u8 {
    const NAMES: [Color; 16] = [
        Color::Black,
        Color::Red,
        Color::Green,
        Color::Yellow,
        Color::Blue,
        Color::Magenta,
        Color::Cyan,
        Color::Gray,
        Color::DarkGray,
        Color::LightRed,
        Color::LightGreen,
        Color::LightYellow,
        Color::LightBlue,
        Color::LightMagenta,
        Color::LightCyan,
        Color::White,
    ];
    (0..).zip(NAMES).find(|(_, name)| *name == color).map_or(7, |(number, _)| number)
}

/// Returns a colour of the 256-colour palette: the 16 colours of `table`, a cube with 6 levels on each side, and 24
/// greys.
fn indexed(index: u8, table: &[Rgb; 16]) -> Rgb {
    const LEVELS: [u8; 6] = [0, 95, 135, 175, 215, 255];
    let level = |index: u8| LEVELS[usize::from(index % 6)];
    match index {
        0..16 => table[usize::from(index)],
        16..232 => {
            let index = index - 16;
            (level(index / 36), level(index / 6), level(index))
        }
        232.. => {
            let shade = 8 + 10 * (index - 232);
            (shade, shade, shade)
        }
    }
}

/// Colours and style of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) ink: Rgb,
    /// `None` for the paper's colour.
    pub(super) background: Option<Rgb>,
    pub(super) bold: bool,
    pub(super) italic: bool,
    pub(super) underlined: bool,
}

impl Look {
    pub(super) fn of(cell: &Cell, paper: Paper) -> Self {
        let has = |modifier| cell.modifier.contains(modifier);
        let (mut ink, mut ground) = (paper.rgb(cell.fg, paper.ink()), paper.rgb(cell.bg, paper.background()));
        if has(Modifier::REVERSED) {
            std::mem::swap(&mut ink, &mut ground);
        }
        if has(Modifier::DIM) {
            let half = |a: u8, b: u8| u8::midpoint(a, b);
            ink = (half(ink.0, ground.0), half(ink.1, ground.1), half(ink.2, ground.2));
        }
        Self {
            ink,
            background: (ground != paper.background()).then_some(ground),
            bold: has(Modifier::BOLD),
            italic: has(Modifier::ITALIC),
            underlined: has(Modifier::UNDERLINED),
        }
    }
}

/// Iterates over the cells of a row from the left, with the column of each and its width in columns.
pub(super) fn row(screen: &Buffer, y: u16) -> impl Iterator<Item = (u16, u16, &Cell)> {
    let area = screen.area;
    let mut x = 0;
    std::iter::from_fn(move || {
        let cell = (x < area.width).then(|| &screen[(area.x + x, area.y + y)])?;
        let width = u16::try_from(cell.symbol().width()).unwrap_or(1).clamp(1, area.width - x);
        x += width;
        Some((x - width, width, cell))
    })
}

/// Returns a colour as `#c8c8c8`.
pub(super) fn hex((r, g, b): Rgb) -> String {
    format!("#{r:02x}{g:02x}{b:02x}")
}

/// Escapes `text` for XML and HTML, and replaces characters that such a file may not contain.
pub(super) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}
