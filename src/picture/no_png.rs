//! PNG in a build without the feature `png`: every use is an error.

use super::canvas::{Filled, Line};
use super::look::Rgb;
use llama_trace_core::error::{Error, Result};

/// Checks that this build can write PNG files.
///
/// # Errors
/// Always [`Error::Usage`].
pub(super) fn built() -> Result<()> {
    Err(Error::not_built("pictures in pixels (PNG)", "png"))
}

/// Fails without writing.
///
/// # Errors
/// As [`built`].
pub(super) fn write(_: (f32, f32), _: Rgb, _: &[Filled], _: &[Line]) -> Result<Vec<u8>> {
    built().map(|()| Vec::new())
}
