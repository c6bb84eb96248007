//! The font of pictures in a build without the feature `png`: its name. Only pixels need its glyphs.

/// The font family in a drawing.
pub(super) const FAMILY: &str = "DejaVu Sans Mono";

/// Returns none: which characters the reader's fonts lack is unknown.
pub(super) fn missing(_: &str) -> Option<char> {
    None
}
