//! No drawing in pixels: what a build without the feature `png` says.

use super::canvas::{Filled, Line};
use super::look::Rgb;
use llama_trace_core::error::{Error, Result};

/// Whether this build can write such files.
///
/// # Errors
/// [`Error::Usage`]: it cannot.
pub(super) fn built() -> Result<()> {
    Err(Error::not_built("pictures in pixels (PNG)", "png"))
}

/// Writes nothing.
///
/// # Errors
/// As [`built`].
pub(super) fn write(_: (f32, f32), _: Rgb, _: &[Filled], _: &[Line]) -> Result<Vec<u8>> {
    built().map(|()| Vec::new())
}
