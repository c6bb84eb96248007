//! The theme: the style of each kind of text, and the coloured cells of values. Terminals may have 16 million colours,
//! 256, 16 or none.

use ratatui::style::{Color, Modifier, Style};

use super::palette::{self, Palette, Rgb};
use llama_trace_picture::Paper;

/// Number of colours of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// No colours, or the user wants none (`NO_COLOR`).
    None,
    /// 16 colours.
    Ansi,
    /// 256 colours.
    Indexed,
    /// 24-bit colours.
    True,
}

impl Depth {
    /// The depth according to the environment; `get` reads a variable.
    pub fn detect(get: impl Fn(&str) -> Option<String>) -> Self {
        let is = |name: &str, words: &[&str]| {
            get(name).is_some_and(|value| words.iter().any(|word| value.to_ascii_lowercase().contains(word)))
        };
        let unwanted = get("NO_COLOR").is_some_and(|value| !value.is_empty());
        if unwanted || get("TERM").is_some_and(|term| has_no_colour(&term)) {
            Self::None
        } else if is("COLORTERM", &["truecolor", "24bit"]) || is("TERM", &["direct", "truecolor"]) {
            Self::True
        } else if is("TERM", &["256"]) {
            Self::Indexed
        } else {
            Self::Ansi
        }
    }
}

/// Returns whether a terminal of this name has no colours: DEC's terminals up to the VT420, and those that terminfo
/// calls monochrome.
fn has_no_colour(term: &str) -> bool {
    let model = term.split('-').next().unwrap_or(term);
    let old = ["dumb", "vt52", "vt100", "vt102", "vt125", "vt131", "vt132", "vt220", "vt320", "vt420"];
    !term.contains("color") && (old.contains(&model) || term.ends_with("-m") || term.ends_with("-mono"))
}

/// Colour span of a heatmap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// Whether it begins at 0 (probabilities) rather than at −`high`.
    pub positive: bool,
    /// The value of the last colour.
    pub high: f64,
    /// Number of values beyond `high`, which have the last colour and a mark.
    pub clipped: usize,
    /// Whether `clipped` is only an upper bound; at least one value is clipped.
    pub at_most: bool,
}

impl Span {
    /// Position of `value` on the scale: 0 … 1, or −1 … 1.
    pub fn share(self, value: f64) -> f64 {
        let low = if self.positive { 0.0 } else { -1.0 };
        if self.high > 0.0 { (value / self.high).clamp(low, 1.0) } else { 0.0 }
    }

    /// The mark of a finite value beyond the last colour.
    pub fn beyond(self, value: f64) -> Option<&'static str> {
        (value.is_finite() && value.abs() > self.high).then_some(if value > 0.0 { "▲" } else { "▼" })
    }
}

/// Look of one cell of a heatmap.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The cell's style.
    pub style: Style,
    /// The cell's characters, unless a number is written into it.
    pub fill: &'static str,
}

/// Styles of all kinds of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Theme {
    depth: Depth,
    palette: Palette,
    paper: Paper,
}

/// Cells without a background colour, by the size of the value. A value of exactly 0 has another cell.
const SHADES: [&str; 5] = ["  ", "░░", "▒▒", "▓▓", "██"];
const NEGATIVE: [&str; 5] = ["- ", "-░", "-▒", "-▓", "-█"];
const POSITIVE: [&str; 5] = ["+ ", "+░", "+▒", "+▓", "+█"];
/// The cell of exactly 0, with any number of colours.
const ZERO: &str = " ·";

impl Theme {
    /// The theme of a terminal with this number of colours.
    pub fn new(depth: Depth) -> Self {
        Self { depth, palette: Palette::default(), paper: Paper::default() }
    }

    /// Sets the colour scales, and the background that they are for.
    #[must_use]
    pub fn with(self, palette: Palette, paper: Paper) -> Self {
        Self { palette, paper, ..self }
    }

    /// The same theme on another background.
    #[must_use]
    pub fn on(self, paper: Paper) -> Self {
        Self { paper, ..self }
    }

    /// The terminal's background.
    pub fn paper(self) -> Paper {
        self.paper
    }

    /// The number of colours.
    pub fn depth(self) -> Depth {
        self.depth
    }

    fn coloured(self, color: Color, without: Modifier) -> Style {
        // Bright colours cannot be read on white.
        let color = match (color, self.paper) {
            (Color::Yellow | Color::Cyan, Paper::Light) => Color::Blue,
            (color, _) => color,
        };
        if self.depth == Depth::None { Style::new().add_modifier(without) } else { Style::new().fg(color) }
    }

    /// Secondary text: rules, shapes, disabled items.
    pub fn dim(self) -> Style {
        self.coloured(Color::DarkGray, Modifier::DIM)
    }

    /// Names of stages and headings.
    pub fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// The heading of a panel, with or without the focus.
    pub fn heading(self, focused: bool) -> Style {
        let style = self.coloured(Color::Cyan, Modifier::BOLD).add_modifier(Modifier::BOLD);
        if focused { style.add_modifier(Modifier::REVERSED) } else { style }
    }

    /// The current item.
    pub fn current(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED | Modifier::BOLD)
    }

    /// A view in the outline.
    pub fn view(self) -> Style {
        self.dim().add_modifier(Modifier::ITALIC)
    }

    /// A key in the footer and the help screen.
    pub fn key(self) -> Style {
        self.coloured(Color::Yellow, Modifier::BOLD).add_modifier(Modifier::BOLD)
    }

    /// Formulas and code.
    pub fn code(self) -> Style {
        self.coloured(Color::Green, Modifier::empty())
    }

    /// A token's text.
    pub fn token(self) -> Style {
        self.coloured(Color::Yellow, Modifier::empty())
    }

    /// Indices beside tokens.
    pub fn index(self) -> Style {
        self.dim()
    }

    /// A failure.
    pub fn error(self) -> Style {
        self.coloured(Color::Red, Modifier::BOLD).add_modifier(Modifier::BOLD)
    }

    /// The bar beside a ranked value.
    pub fn bar(self) -> Style {
        self.coloured(Color::Cyan, Modifier::empty())
    }

    /// A value that is not finite: masked, or wrong.
    pub fn special(self) -> Style {
        self.coloured(Color::Magenta, Modifier::DIM)
    }

    fn rgb(self, share: f64, span: Span) -> Rgb {
        match span.positive {
            true => self.palette.sequential(share, self.paper),
            false => self.palette.diverging(share),
        }
    }

    /// The colour of `value` in a part of a character; darker if `marked`. None for exactly 0, so that the background
    /// shows.
    pub fn half(self, value: f64, span: Span, marked: bool) -> Option<Color> {
        if value == 0.0 {
            return None;
        }
        if !value.is_finite() {
            return Some(if value.is_nan() { Color::Magenta } else { Color::DarkGray });
        }
        let (r, g, b) = self.rgb(span.share(value), span);
        let darker = |part: u8| if marked { part / 4 * 3 } else { part };
        let rgb = (darker(r), darker(g), darker(b));
        Some(match self.depth {
            Depth::True => Color::Rgb(rgb.0, rgb.1, rgb.2),
            _ => palette::indexed(rgb),
        })
    }

    /// The cell of `value`, coloured by `span`.
    pub fn cell(self, value: f64, span: Span) -> Cell {
        if !value.is_finite() {
            let fill = if value.is_nan() {
                "??"
            } else if value < 0.0 {
                "-∞"
            } else {
                "+∞"
            };
            return Cell { style: self.special(), fill };
        }
        let share = span.share(value);
        let level = if share.abs() < 0.05 { 0 } else { ((share.abs() * 4.0).ceil() as usize).clamp(1, 4) };
        let fill = match (span.positive, share < 0.0) {
            _ if value == 0.0 => ZERO,
            (true, _) if span.beyond(value).is_some() => "▲▲",
            (false, true) if span.beyond(value).is_some() => "-▼",
            (false, false) if span.beyond(value).is_some() => "+▲",
            (true, _) => SHADES[level],
            (false, true) => NEGATIVE[level],
            (false, false) => POSITIVE[level],
        };
        let rgb = self.rgb(share, span);
        let on = |color: Color, (r, g, b): Rgb| {
            let text = if palette::is_light((r, g, b)) { Color::Black } else { Color::White };
            // The colour shows the size of the value. The sign tells values below 0 from values above 0.
            let fill = match fill {
                ZERO => ZERO,
                _ if !span.positive && value < 0.0 => "- ",
                _ => "  ",
            };
            Cell { style: Style::new().bg(color).fg(text), fill }
        };
        match self.depth {
            Depth::True => on(Color::Rgb(rgb.0, rgb.1, rgb.2), rgb),
            Depth::Indexed => on(palette::indexed(rgb), rgb),
            Depth::Ansi => {
                let [from_zero, below, above] = self.palette.named();
                let color = match (span.positive, share < 0.0) {
                    (true, _) => from_zero,
                    (false, true) => below,
                    (false, false) => above,
                };
                Cell { style: Style::new().fg(color), fill }
            }
            Depth::None => Cell { style: Style::new(), fill },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depth(variables: &[(&str, &str)]) -> Depth {
        Depth::detect(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn the_environment_tells_how_many_colours_there_are() {
        assert_eq!(depth(&[("TERM", "xterm-256color"), ("COLORTERM", "truecolor")]), Depth::True);
        assert_eq!(depth(&[("TERM", "xterm-256color")]), Depth::Indexed);
        assert_eq!(depth(&[("TERM", "xterm")]), Depth::Ansi);
        assert_eq!(depth(&[("TERM", "xterm-256color"), ("NO_COLOR", "1")]), Depth::None);
        assert_eq!(depth(&[("TERM", "xterm-256color"), ("NO_COLOR", "")]), Depth::Indexed);
        assert_eq!(depth(&[("TERM", "dumb"), ("COLORTERM", "truecolor")]), Depth::None);
        for term in ["vt100", "vt102", "vt220", "vt220-w", "linux-m", "xterm-mono"] {
            assert_eq!(depth(&[("TERM", term)]), Depth::None, "{term}");
            assert_eq!(depth(&[("TERM", term), ("COLORTERM", "truecolor")]), Depth::None, "{term}");
        }
        for term in ["linux", "vt525", "rxvt", "xterm-color", "vt100-color", "st-meta"] {
            assert_eq!(depth(&[("TERM", term)]), Depth::Ansi, "{term}");
        }
    }

    #[test]
    fn without_colour_sign_and_size_are_characters() {
        let span = Span { positive: false, high: 2.0, clipped: 1, at_most: false };
        let fill = |value| Theme::new(Depth::None).cell(value, span).fill;
        assert_eq!([-2.0, -0.9, 0.0, 0.2, 1.2, 9.0].map(fill), ["-█", "-▒", " ·", "+░", "+▓", "+▲"]);
        assert_eq!([-1e-9, 1e-9].map(fill), ["- ", "+ "], "small is not zero");
        assert_eq!([f64::NEG_INFINITY, f64::NAN].map(fill), ["-∞", "??"]);
        assert_eq!(Theme::new(Depth::None).cell(1.0, span).style, Style::new());
    }

    /// The characters of a cell, and not only its colour, distinguish exactly 0, a small value and −inf, and the two
    /// signs.
    #[test]
    fn every_colour_has_a_second_cue() {
        for depth in [Depth::None, Depth::Ansi, Depth::Indexed, Depth::True] {
            for palette in [Palette::RedBlue, Palette::PurpleOrange, Palette::Grey] {
                let theme = Theme::new(depth).with(palette, Paper::Dark);
                for positive in [true, false] {
                    let fill = |value| {
                        theme.cell(value, Span { positive, high: 1.0, clipped: 0, at_most: false }).fill
                    };
                    let told: std::collections::HashSet<_> =
                        [0.0, 1e-6, f64::NEG_INFINITY, f64::NAN].map(fill).into();
                    assert_eq!(told.len(), 4, "{depth:?} {positive}");
                    assert!(positive || fill(-0.5) != fill(0.5), "{depth:?}");
                }
            }
        }
    }
}
