//! A screen as a picture: plain text, text with a terminal's colours, an HTML page, and drawings. Each format has its
//! own file. The same screen gives the same bytes on any machine.

mod ansi;
pub mod canvas;
pub mod cells;
#[cfg_attr(not(feature = "png"), path = "no_font.rs")]
mod font;
mod html;
mod look;
#[cfg_attr(not(feature = "png"), path = "no_png.rs")]
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

/// The format of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A drawing: text, and rectangles for everything else.
    Svg,
    /// The drawing in pixels, with the embedded font.
    Png,
    /// An HTML page.
    Html,
    /// Text with a terminal's colours.
    Ansi,
    /// Plain text.
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

    /// The same format, if this build can write it.
    ///
    /// # Errors
    /// [`Error::Usage`] if this build cannot write the format.
    pub fn built(self) -> Result<Self> {
        if self == Self::Png {
            png::built()?;
        }
        Ok(self)
    }

    /// Returns the format of a file's suffix.
    ///
    /// # Errors
    /// [`Error::Usage`] if the suffix is not one of these, or this build cannot write the format.
    pub fn of(path: &Path) -> Result<Self> {
        let suffix = path.extension().map(|suffix| suffix.to_string_lossy().to_ascii_lowercase());
        let known = Self::ALL.iter().find(|(_, name)| suffix.as_deref() == Some(name));
        let known = known.map(|(format, _)| *format).ok_or_else(|| {
            let suffixes: Vec<_> = Self::ALL.iter().map(|(_, name)| format!(".{name}")).collect();
            Error::usage("the suffix is not that of a picture format")
                .at(path.display())
                .expected(suffixes.join(", "))
                .found(suffix.map_or_else(|| "none".to_owned(), |suffix| format!(".{suffix}")))
                .next("give the file one of these suffixes")
        });
        known.and_then(Self::built)
    }
}

/// Encodes `screen` on `paper` as the bytes of a file.
///
/// # Errors
/// If there is no memory for the pixels of a drawing.
pub fn encode(screen: &Buffer, paper: Paper, format: Format) -> Result<Vec<u8>> {
    Ok(match format {
        Format::Txt => text::write(screen).into_bytes(),
        Format::Ansi => ansi::write(screen).into_bytes(),
        Format::Html => html::write(screen, paper).into_bytes(),
        Format::Svg | Format::Png => written(svg::draw(screen, paper, format == Format::Png))?,
    })
}

/// Returns the bytes of a drawing's file: SVG, or PNG with a pixel for each unit.
///
/// # Errors
/// As [`encode`].
pub fn written(canvas: Canvas) -> Result<Vec<u8>> {
    naming("the picture", || match canvas.drawn {
        Drawn::Svg(svg) => Ok((svg + canvas::END).into_bytes()),
        Drawn::Pixels { rects, texts } => png::write(canvas.size, canvas.ground, &rects, &texts),
    })
}
