//! A drawing of rectangles and text, in SVG's terms.

use std::fmt::Write;

use super::font;
use super::look::{Rgb, escaped, hex};

/// The font size for a column width of 10 units.
const LETTERS: f32 = 16.6;

/// The style of a piece of text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Letters {
    /// Colour of the letters.
    pub ink: Rgb,
    /// Distance between letters in units.
    pub width: f32,
    /// Drawn thicker.
    pub bold: bool,
    /// Slanted, if the reader has such a font.
    pub italic: bool,
}

impl Letters {
    /// Plain letters of this colour, `width` units apart.
    pub fn new(ink: Rgb, width: f32) -> Self {
        Self { ink, width, bold: false, italic: false }
    }
}

/// A drawing.
#[derive(Clone, Debug)]
pub struct Canvas {
    pub(super) size: (f32, f32),
    pub(super) ground: Rgb,
    pub(super) drawn: Drawn,
}

/// The contents of a drawing.
#[derive(Clone, Debug)]
pub(super) enum Drawn {
    /// The text of an SVG file, without its last line.
    Svg(String),
    /// Rectangles and texts for pixels. All texts are above all rectangles.
    Pixels { rects: Vec<Filled>, texts: Vec<Line> },
}

/// A rectangle.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "png"), expect(dead_code, reason = "only the PNG format reads it"))]
pub(super) struct Filled {
    pub(super) corner: (f32, f32),
    pub(super) size: (f32, f32),
    pub(super) ink: Rgb,
    pub(super) opacity: f32,
}

/// A text as an SVG element, and its vertical range in units from the top.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "png"), expect(dead_code, reason = "only the PNG format reads it"))]
pub(super) struct Line {
    pub(super) rows: (f32, f32),
    pub(super) element: String,
}

/// Returns a number with at most two decimals, and no trailing zeros.
fn short(number: f32) -> String {
    let text = format!("{number:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The first lines of a file of this size.
pub(super) fn head(width: f32, height: f32) -> String {
    let (width, height) = (short(width), short(height));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} \
         {height}\" font-family=\"'{family}',Menlo,Consolas,monospace\" xml:space=\"preserve\">\n",
        family = font::FAMILY,
    )
}

/// The last line of a file.
pub(super) const END: &str = "</svg>\n";

impl Canvas {
    /// An empty drawing for an SVG file, filled with one colour.
    pub fn svg(width: f32, height: f32, ground: Rgb) -> Self {
        let mut svg = head(width, height);
        let (wide, high) = (short(width), short(height));
        add(&mut svg, format_args!("<rect width=\"{wide}\" height=\"{high}\" fill=\"{}\"/>", hex(ground)));
        Self { size: (width, height), ground, drawn: Drawn::Svg(svg) }
    }

    /// An empty drawing for pixels, filled with one colour.
    pub fn pixels(width: f32, height: f32, ground: Rgb) -> Self {
        let drawn = Drawn::Pixels { rects: Vec::new(), texts: Vec::new() };
        Self { size: (width, height), ground, drawn }
    }

    /// Adds a rectangle.
    pub fn rect(&mut self, corner: (f32, f32), size: (f32, f32), ink: Rgb, opacity: f32) {
        let svg = match &mut self.drawn {
            Drawn::Svg(svg) => svg,
            Drawn::Pixels { rects, .. } => return rects.push(Filled { corner, size, ink, opacity }),
        };
        let [x, y, width, height] = [corner.0, corner.1, size.0, size.1].map(short);
        let opacity = if opacity < 1.0 { format!(" opacity=\"{}\"", short(opacity)) } else { String::new() };
        add(
            svg,
            format_args!(
                "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{}\"{opacity} \
                 shape-rendering=\"crispEdges\"/>",
                hex(ink)
            ),
        );
    }

    /// Adds text at a baseline that begins at (x, y), `columns` letters wide.
    pub fn text(&mut self, (x, y): (f32, f32), columns: usize, text: &str, letters: Letters) {
        let rows = (y - LETTERS, y + LETTERS);
        self.letters((x, y), (columns, rows), text, letters, "");
    }

    /// Adds text that goes upwards from (x, y).
    pub fn text_upwards(&mut self, (x, y): (f32, f32), columns: usize, text: &str, letters: Letters) {
        let turn = format!(" transform=\"rotate(-90 {} {})\"", short(x), short(y));
        let rows = (y - columns as f32 * letters.width - LETTERS, y + LETTERS);
        self.letters((x, y), (columns, rows), text, letters, &turn);
    }

    fn letters(
        &mut self,
        (x, y): (f32, f32),
        (columns, rows): (usize, (f32, f32)),
        text: &str,
        letters: Letters,
        turn: &str,
    ) {
        let Letters { ink, width, bold, italic } = letters;
        let ink = hex(ink);
        // Bold is a stroke, so it needs no second font.
        let bold = if bold { format!(" stroke=\"{ink}\" stroke-width=\"0.6\"") } else { String::new() };
        let italic = if italic { " font-style=\"italic\"" } else { "" };
        let mut element = String::new();
        let svg = if let Drawn::Svg(svg) = &mut self.drawn { svg } else { &mut element };
        add(
            svg,
            format_args!(
                "<text x=\"{}\" y=\"{}\" font-size=\"{}\" textLength=\"{}\" lengthAdjust=\"spacingAndGlyphs\" \
             fill=\"{ink}\"{bold}{italic}{turn}>{}</text>",
                short(x),
                short(y),
                short(LETTERS * width / 10.0),
                short(columns as f32 * width),
                escaped(text),
            ),
        );
        if let Drawn::Pixels { texts, .. } = &mut self.drawn {
            texts.push(Line { rows, element });
        }
    }
}

fn add(svg: &mut String, element: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(svg, "{element}");
}
