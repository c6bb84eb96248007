//! A drawing as it grows: rectangles and text, in the words of SVG.

use std::fmt::Write;

use super::font;
use super::look::{Rgb, escaped, hex};

/// The size of the letters whose columns are 10 units apart.
const LETTERS: f32 = 16.6;

/// How a piece of text looks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Letters {
    /// Their colour.
    pub ink: Rgb,
    /// Units from one to the next.
    pub width: f32,
    /// Drawn thicker.
    pub bold: bool,
    /// Slanted, where the reader has such a font.
    pub italic: bool,
}

impl Letters {
    /// Plain ones of this colour, so many units from one to the next.
    pub fn new(ink: Rgb, width: f32) -> Self {
        Self { ink, width, bold: false, italic: false }
    }
}

/// A drawing.
#[derive(Clone, Debug)]
pub struct Canvas {
    svg: String,
}

/// A number in as few characters as say it.
fn short(number: f32) -> String {
    let text = format!("{number:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl Canvas {
    /// An empty one of this size, all of it in one colour.
    pub fn new(width: f32, height: f32, ground: Rgb) -> Self {
        let (width, height) = (short(width), short(height));
        let svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} \
             {height}\" font-family=\"'{family}',Menlo,Consolas,monospace\" xml:space=\"preserve\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"{ground}\"/>\n",
            family = font::FAMILY,
            ground = hex(ground),
        );
        Self { svg }
    }

    /// A rectangle.
    pub fn rect(&mut self, (x, y): (f32, f32), (width, height): (f32, f32), ink: Rgb, opacity: f32) {
        let [x, y, width, height] = [x, y, width, height].map(short);
        let opacity = if opacity < 1.0 { format!(" opacity=\"{}\"", short(opacity)) } else { String::new() };
        self.add(format_args!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{}\"{opacity} \
             shape-rendering=\"crispEdges\"/>",
            hex(ink)
        ));
    }

    /// Text whose letters stand on a line that begins at a place, `columns` of them wide.
    pub fn text(&mut self, (x, y): (f32, f32), columns: usize, text: &str, letters: Letters) {
        self.letters((x, y), columns, text, letters, "");
    }

    /// Text that goes upwards from a place.
    pub fn text_upwards(&mut self, (x, y): (f32, f32), columns: usize, text: &str, letters: Letters) {
        let turn = format!(" transform=\"rotate(-90 {} {})\"", short(x), short(y));
        self.letters((x, y), columns, text, letters, &turn);
    }

    fn letters(&mut self, (x, y): (f32, f32), columns: usize, text: &str, letters: Letters, turn: &str) {
        let Letters { ink, width, bold, italic } = letters;
        let ink = hex(ink);
        // A stroke, and no second font.
        let bold = if bold { format!(" stroke=\"{ink}\" stroke-width=\"0.6\"") } else { String::new() };
        let italic = if italic { " font-style=\"italic\"" } else { "" };
        self.add(format_args!(
            "<text x=\"{}\" y=\"{}\" font-size=\"{}\" textLength=\"{}\" lengthAdjust=\"spacingAndGlyphs\" \
             fill=\"{ink}\"{bold}{italic}{turn}>{}</text>",
            short(x),
            short(y),
            short(LETTERS * width / 10.0),
            short(columns as f32 * width),
            escaped(text),
        ));
    }

    /// The file.
    pub fn finish(mut self) -> String {
        self.svg.push_str("</svg>\n");
        self.svg
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.svg, "{element}");
    }
}
