//! The font that pictures are drawn with where no other may be taken: DejaVu Sans Mono, whose licence is beside it in
//! `font/`.

use skrifa::{FontRef, MetadataProvider};

/// The name by which a drawing asks for it.
pub(super) const FAMILY: &str = "DejaVu Sans Mono";

/// The file.
pub(super) static FILE: &[u8] = include_bytes!("font/DejaVuSansMono.ttf");

/// The first character of `text` that the font has no picture of.
pub(super) fn missing(text: &str) -> Option<char> {
    let Ok(font) = FontRef::new(FILE) else { return text.chars().next() };
    let glyphs = font.charmap();
    text.chars().find(|&c| glyphs.map(c).is_none())
}
