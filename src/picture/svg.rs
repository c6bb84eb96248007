//! A screen as a drawing: rectangles for backgrounds, blocks and boxes, and text for runs of cells with one style.

use ratatui::buffer::Buffer;

use super::canvas::{Canvas, Letters};
use super::font;
use super::look::{self, Look, Paper};
use super::shapes::{self, CELL};

/// The distance of the baseline from the top of a row.
const BASELINE: f32 = 15.0;

/// Adjacent letters with one style.
struct Text {
    x: u16,
    columns: u16,
    look: Look,
    text: String,
}

/// Draws a screen, `in_pixels` or as an SVG file. In pixels, a character that is not in the font becomes a box with its
/// code point. In SVG it stays text: the reader's fonts may have it.
pub(super) fn draw(screen: &Buffer, paper: Paper, in_pixels: bool) -> Canvas {
    let area = screen.area;
    let (width, height) = (f32::from(area.width) * CELL.0, f32::from(area.height) * CELL.1);
    let new = if in_pixels { Canvas::pixels } else { Canvas::svg };
    let mut canvas = new(width, height, paper.background());
    for y in 0..area.height {
        backgrounds(screen, paper, y, &mut canvas);
        letters(screen, paper, y, in_pixels, &mut canvas);
    }
    canvas
}

fn place(x: u16, y: u16) -> (f32, f32) {
    (f32::from(x) * CELL.0, f32::from(y) * CELL.1)
}

/// Draws one rectangle for neighbours with the same background.
fn backgrounds(screen: &Buffer, paper: Paper, y: u16, canvas: &mut Canvas) {
    let mut draw = |from: u16, columns: u16, ground| {
        if let Some(ground) = ground {
            canvas.rect(place(from, y), (f32::from(columns) * CELL.0, CELL.1), ground, 1.0);
        }
    };
    let (mut from, mut columns, mut now) = (0, 0, None);
    for (x, width, cell) in look::row(screen, y) {
        let ground = Look::of(cell, paper).background;
        if ground != now {
            draw(from, columns, now);
            (from, columns, now) = (x, 0, ground);
        }
        columns += width;
    }
    draw(from, columns, now);
}

fn letters(screen: &Buffer, paper: Paper, y: u16, boxed: bool, canvas: &mut Canvas) {
    let mut run: Option<Text> = None;
    for (x, width, cell) in look::row(screen, y) {
        let (symbol, look) = (cell.symbol(), Look::of(cell, paper));
        if look.underlined {
            let (left, top) = place(x, y);
            canvas.rect((left, top + 17.0), (f32::from(width) * CELL.0, 1.0), look.ink, 1.0);
        }
        if let Some(parts) = shapes::of(symbol) {
            end(run.take(), y, canvas);
            let (left, top) = place(x, y);
            for part in parts {
                let corner = (left + part.x, top + part.y);
                canvas.rect(corner, (part.width, part.height), look.ink, part.opacity);
            }
            continue;
        }
        if let Some(c) = font::missing(symbol).filter(|_| boxed) {
            end(run.take(), y, canvas);
            code_point(c, x, y, width, look, canvas);
            continue;
        }
        // Letters of other writing systems would change their places when they join.
        let simple = symbol.chars().all(|c| c < '\u{300}' || ('\u{2010}'..'\u{2c00}').contains(&c));
        let goes_on = run.as_ref().is_some_and(|run| run.look == look) && simple && width == 1;
        if !goes_on {
            end(run.take(), y, canvas);
        }
        match &mut run {
            Some(run) => {
                run.columns += width;
                run.text.push_str(symbol);
            }
            None if symbol.trim().is_empty() => {}
            None => run = Some(Text { x, columns: width, look, text: symbol.to_owned() }),
        }
        if !simple || width > 1 {
            end(run.take(), y, canvas);
        }
    }
    end(run, y, canvas);
}

fn end(run: Option<Text>, y: u16, canvas: &mut Canvas) {
    let Some(Text { x, columns, look, text }) = run else { return };
    let shown = text.trim_end();
    let columns = usize::from(columns) - (text.len() - shown.len());
    let (left, top) = place(x, y);
    let Look { ink, bold, italic, .. } = look;
    canvas.text((left, top + BASELINE), columns, shown, Letters { ink, width: CELL.0, bold, italic });
}

/// Draws a box with the code point of a character, in as many lines as it takes.
fn code_point(c: char, x: u16, y: u16, width: u16, look: Look, canvas: &mut Canvas) {
    let (left, top) = place(x, y);
    let (wide, high) = (f32::from(width) * CELL.0 - 1.0, CELL.1 - 3.0);
    let (left, top) = (left + 0.5, top + 1.5);
    for (corner, size) in [
        ((left, top), (wide, 1.0)),
        ((left, top + high - 1.0), (wide, 1.0)),
        ((left, top), (1.0, high)),
        ((left + wide - 1.0, top), (1.0, high)),
    ] {
        canvas.rect(corner, size, look.ink, 1.0);
    }
    let code = format!("{:04X}", u32::from(c));
    let lines = code.as_bytes().chunks(2 * usize::from(width));
    let step = if lines.len() > 2 { 5.0 } else { 7.0 };
    for (down, line) in (0_u8..).zip(lines) {
        let line = String::from_utf8_lossy(line);
        let at = (left + 1.0, top + step + f32::from(down) * step);
        canvas.text(at, line.len(), &line, Letters::new(look.ink, 3.5));
    }
}

#[cfg(test)]
mod tests {
    use ratatui::layout::Rect;
    use ratatui::style::Style;

    use super::*;

    fn screen(text: &str) -> Buffer {
        let mut screen = Buffer::empty(Rect::new(0, 0, 20, 1));
        screen.set_string(0, 0, text, Style::new());
        screen
    }

    #[test]
    fn what_the_font_lacks_is_a_box_with_its_code_point() {
        let boxed = format!("{:?}", draw(&screen("a日b"), Paper::Dark, true));
        assert!(boxed.contains(">65E5</text>") && !boxed.contains('日'), "{boxed}");
        // A reader may have other fonts.
        assert!(format!("{:?}", draw(&screen("a日b"), Paper::Dark, false)).contains(">日</text>"));
    }

    #[test]
    fn what_the_screens_are_made_of_needs_no_box() {
        for c in "␣⋮←→↑↓▸▾▲▼·∞≥≤−×Σ√εθτ⌈⌉⌊⌋⊙ᵀ⁻²…≡≣".chars()
        {
            let text = c.to_string();
            assert!(shapes::of(&text).is_some() || font::missing(&text).is_none(), "{c}");
        }
    }

    /// Blocks fill their share of the cell, and lines reach its edges.
    #[test]
    fn boxes_and_blocks_are_shapes() {
        let area = |symbol: &str| -> f32 {
            let parts = shapes::of(symbol).unwrap();
            parts.iter().map(|part| part.width * part.height * part.opacity).sum::<f32>() / (CELL.0 * CELL.1)
        };
        let shares =
            [("█", 1.0), ("▀", 0.5), ("▌", 0.5), ("░", 0.25), ("▓", 0.75), ("▏", 0.125), ("▟", 0.75)];
        for (symbol, share) in shares {
            assert!((area(symbol) - share).abs() < 1e-6, "{symbol}");
        }
        let dots = |symbol: &str| shapes::of(symbol).unwrap().len();
        assert_eq!(["⠀", "⠁", "⡇", "⣿"].map(dots), [0, 1, 4, 8]);
        let edges = |symbol: &str| {
            let parts = shapes::of(symbol).unwrap();
            let any = |holds: &dyn Fn(&shapes::Part) -> bool| parts.iter().any(holds);
            [
                any(&|part| part.x == 0.0),
                any(&|part| part.x + part.width == CELL.0),
                any(&|part| part.y == 0.0),
                any(&|part| part.y + part.height == CELL.1),
            ]
        };
        assert_eq!(edges("─"), [true, true, false, false]);
        assert_eq!(edges("│"), [false, false, true, true]);
        assert_eq!(edges("┌"), [false, true, false, true]);
        assert_eq!(edges("┤"), [true, false, true, true]);
        assert_eq!(edges("┼"), [true; 4]);
        assert!(shapes::of("a").is_none() && shapes::of("──").is_none());
    }
}
