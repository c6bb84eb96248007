//! The embedded font of pictures: DejaVu Sans Mono. Its licence is in the same folder, `font/`.

use skrifa::{FontRef, MetadataProvider};

/// The font family in a drawing.
pub(super) const FAMILY: &str = "DejaVu Sans Mono";

/// The font file.
pub(super) static FILE: &[u8] = include_bytes!("font/DejaVuSansMono.ttf");

/// Returns the first character of `text` without a glyph in the font.
pub(super) fn missing(text: &str) -> Option<char> {
    let Ok(font) = FontRef::new(FILE) else { return text.chars().next() };
    let glyphs = font.charmap();
    text.chars().find(|&c| glyphs.map(c).is_none())
}
