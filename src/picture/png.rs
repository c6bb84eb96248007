//! A drawing in pixels. No font of the machine is looked at, so that it is the same everywhere.

use std::sync::Arc;

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb};

use super::font;
use crate::error::{Error, Result};

/// The bytes of a PNG file of `svg`, a pixel for each of its units.
pub(super) fn render(svg: &str) -> Result<Vec<u8>> {
    let mut fonts = fontdb::Database::new();
    fonts.load_font_data(font::FILE.to_vec());
    fonts.set_monospace_family(font::FAMILY);
    let options =
        Options { font_family: font::FAMILY.to_owned(), fontdb: Arc::new(fonts), ..Options::default() };
    let failed = |found: String| Error::output("the picture cannot be drawn in pixels").found(found);
    let tree = Tree::from_str(svg, &options).map_err(|error| failed(error.to_string()))?;
    let size = tree.size().to_int_size();
    let mut pixels = Pixmap::new(size.width(), size.height())
        .ok_or_else(|| failed(format!("{} x {} pixels", size.width(), size.height())))?;
    resvg::render(&tree, Transform::identity(), &mut pixels.as_mut());
    pixels.encode_png().map_err(|error| failed(error.to_string()))
}
