//! A screen as a picture: text, text with colours for a terminal, a page, and drawings. One file a format; each gives
//! the same bytes for the same screen, on any machine.

mod ansi;
pub mod canvas;
mod font;
mod html;
mod look;
mod png;
mod shapes;
mod svg;
mod text;

use std::path::Path;

use ratatui::buffer::Buffer;

use canvas::{Canvas, Drawn};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::memory::naming;

pub use look::{Paper, Rgb};

/// What a picture is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A drawing: text, and rectangles for everything else.
    Svg,
    /// The drawing in pixels, with a font of its own.
    Png,
    /// A page.
    Html,
    /// Text with a terminal's colours.
    Ansi,
    /// Text.
    Txt,
}

impl Format {
    /// Every format, with the suffix of its files.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Svg, "svg"),
        (Self::Png, "png"),
        (Self::Html, "html"),
        (Self::Ansi, "ansi"),
        (Self::Txt, "txt"),
    ];

    /// The format that a file's suffix names.
    ///
    /// # Errors
    /// [`Error::Usage`] where it names none.
    pub fn of(path: &Path) -> Result<Self> {
        let suffix = path.extension().map(|suffix| suffix.to_string_lossy().to_ascii_lowercase());
        let known = Self::ALL.iter().find(|(_, name)| suffix.as_deref() == Some(name));
        known.map(|(format, _)| *format).ok_or_else(|| {
            let suffixes: Vec<_> = Self::ALL.iter().map(|(_, name)| format!(".{name}")).collect();
            Error::usage("the suffix names no kind of picture")
                .at(path.display())
                .expected(suffixes.join(", "))
                .found(suffix.map_or_else(|| "none".to_owned(), |suffix| format!(".{suffix}")))
                .next("give the file one of these suffixes")
        })
    }
}

/// `screen` on `paper` as the bytes of a file.
///
/// # Errors
/// Where a drawing cannot be turned into pixels: there is no memory for them.
pub fn encode(screen: &Buffer, paper: Paper, format: Format) -> Result<Vec<u8>> {
    Ok(match format {
        Format::Txt => text::write(screen).into_bytes(),
        Format::Ansi => ansi::write(screen).into_bytes(),
        Format::Html => html::write(screen, paper).into_bytes(),
        Format::Svg | Format::Png => written(svg::draw(screen, paper, format == Format::Png))?,
    })
}

/// The bytes of a drawing's file: SVG, or PNG with a pixel for each unit.
///
/// # Errors
/// As [`encode`].
pub fn written(canvas: Canvas) -> Result<Vec<u8>> {
    naming("the picture", || match canvas.drawn {
        Drawn::Svg(svg) => Ok((svg + canvas::END).into_bytes()),
        Drawn::Pixels { rects, texts } => png::write(canvas.size, canvas.ground, &rects, &texts),
    })
}
