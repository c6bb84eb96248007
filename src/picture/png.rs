//! A drawing in pixels, one band of rows at a time: memory stays small for any size. No fonts of the machine are used,
//! so the result is the same everywhere.

use std::ops::Range;
use std::sync::Arc;

use png::{BitDepth, ColorType, Encoder};
use resvg::tiny_skia::{Color, Paint, Pixmap, Rect, Transform};
use resvg::usvg::{Options, Tree, fontdb};

use super::canvas::{self, Filled, Line};
use super::font;
use super::look::Rgb;
use llama_trace_core::error::{Error, Result};

/// Rows of a band.
const ROWS: u32 = 16;

/// Extra rows above and below a band, which are drawn and then dropped. At the edge of the drawn area, cut shapes blend
/// differently.
const AROUND: u32 = 8;

/// Checks that this build can write PNG files.
///
/// # Errors
/// None.
pub(super) fn built() -> Result<()> {
    Ok(())
}

/// Returns the bytes of a PNG file with a pixel for each unit: texts above rectangles on a ground.
pub(super) fn write(
    (width, height): (f32, f32),
    ground: Rgb,
    rects: &[Filled],
    texts: &[Line],
) -> Result<Vec<u8>> {
    let (wide, high) = (width.round() as u32, height.round() as u32);
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(&mut bytes, wide, high);
    encoder.set_color(ColorType::Rgb);
    encoder.set_depth(BitDepth::Eight);
    let mut file = encoder.write_header().map_err(failed)?;
    let mut out = file.stream_writer().map_err(failed)?;
    let fonts = fonts();
    for top in (0..high).step_by(ROWS as usize) {
        let rows = top..top + ROWS.min(high - top);
        let colours = rows_of((wide, high), rows, (width, height), ground, (rects, texts), &fonts)?;
        std::io::Write::write_all(&mut out, &colours).map_err(failed)?;
    }
    out.finish().map_err(failed)?;
    drop(file);
    Ok(bytes)
}

fn failed(found: impl std::fmt::Display) -> Error {
    Error::output("the picture cannot be drawn in pixels").found(found)
}

fn fonts() -> Options<'static> {
    let mut fonts = fontdb::Database::new();
    fonts.load_font_source(fontdb::Source::Binary(Arc::new(font::FILE)));
    fonts.set_monospace_family(font::FAMILY);
    Options { font_family: font::FAMILY.to_owned(), fontdb: Arc::new(fonts), ..Options::default() }
}

/// Returns red, green and blue of each pixel in some rows of a drawing of `wide` by `high`.
fn rows_of(
    (wide, high): (u32, u32),
    rows: Range<u32>,
    size: (f32, f32),
    ground: Rgb,
    drawn: (&[Filled], &[Line]),
    fonts: &Options<'_>,
) -> Result<Vec<u8>> {
    let from = rows.start.saturating_sub(AROUND);
    let to = high.min(rows.end.saturating_add(AROUND));
    let band = band((wide, to - from), from as f32, size, ground, drawn, fonts)?;
    let row = |row: u32| (row - from) as usize * wide as usize * 4;
    let pixels = &band.data()[row(rows.start)..row(rows.end)];
    // The ground is opaque, and so is every pixel.
    Ok(pixels.chunks_exact(4).flat_map(|pixel| &pixel[..3]).copied().collect())
}

/// Draws `wide` by `high` pixels of the drawing from row `top` on.
fn band(
    (wide, high): (u32, u32),
    top: f32,
    (width, height): (f32, f32),
    ground: Rgb,
    (rects, texts): (&[Filled], &[Line]),
    fonts: &Options<'_>,
) -> Result<Pixmap> {
    let mut pixels = Pixmap::new(wide, high).ok_or_else(|| failed(format!("{wide} x {high} pixels")))?;
    let opaque = |(red, green, blue): Rgb| Color::from_rgba8(red, green, blue, 255);
    pixels.fill(opaque(ground));
    let (up, bottom) = (Transform::from_translate(0.0, -top), top + high as f32);
    let mut paint = Paint { anti_alias: false, ..Paint::default() };
    for Filled { corner: (x, y), size, ink, opacity } in rects {
        // Fills the pixels whose centres are inside: the same ones in every band.
        let [left, right, over, under] = [*x, x + size.0, *y, y + size.1].map(|edge| (edge - 0.5).ceil());
        if over < bottom
            && under > top
            && let Some(rect) = Rect::from_ltrb(left, over, right, under)
        {
            let mut colour = opaque(*ink);
            colour.apply_opacity(*opacity);
            paint.set_color(colour);
            pixels.fill_rect(rect, &paint, up, None);
        }
    }
    let mut svg = String::new();
    for text in texts.iter().filter(|text| text.rows.0 < bottom && text.rows.1 > top) {
        svg += &text.element;
    }
    if !svg.is_empty() {
        let svg = canvas::head(width, height) + &svg + canvas::END;
        let tree = Tree::from_str(&svg, fonts).map_err(failed)?;
        resvg::render(&tree, up, &mut pixels.as_mut());
    }
    Ok(pixels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canvas::{Canvas, Drawn, Letters};

    /// A band equals the same rows of the whole drawing.
    #[test]
    fn bands_are_parts_of_one_drawing() {
        let size = (200.0, 300.0);
        let mut canvas = Canvas::pixels(size.0, size.1, (10, 20, 30));
        canvas.rect((5.0, 100.0), (90.0, 60.0), (200, 0, 0), 1.0);
        canvas.rect((50.0, 120.5), (90.0, 130.0), (0, 200, 0), 0.5);
        canvas.text((20.0, 131.0), 6, "across", Letters::new((250, 250, 250), 10.0));
        canvas.text_upwards((150.0, 290.0), 20, "from below to the top", Letters::new((250, 250, 0), 10.0));
        let Drawn::Pixels { rects, texts } = &canvas.drawn else { panic!() };
        let fonts = fonts();
        let of = |rows: Range<u32>| {
            rows_of((200, 300), rows, size, canvas.ground, (rects, texts), &fonts).unwrap()
        };
        let whole = of(0..300);
        let parts: Vec<u8> = (0..300).step_by(20).flat_map(|top| of(top..top + 20)).collect();
        let apart = whole.iter().zip(&parts).map(|(one, other)| one.abs_diff(*other)).max().unwrap();
        assert!(whole.len() == parts.len() && apart <= 2, "{apart}");
        let pixels = band((200, 300), 0.0, size, canvas.ground, (rects, texts), &fonts).unwrap();
        assert!(pixels.pixels().iter().all(|pixel| pixel.alpha() == 255), "opaque");
        let drawn = |x: usize, y: usize| &whole[3 * (y * 200 + x)..][..3];
        assert_eq!((drawn(0, 0), drawn(10, 110)), (&[10, 20, 30][..], &[200, 0, 0][..]));
        let bytes = write(size, canvas.ground, rects, texts).unwrap();
        assert!(bytes.starts_with(b"\x89PNG\r\n"));
    }
}
