//! One frame as a `.npy` file: little-endian float32, int64 or int8, C order.

use std::io::Write;

use ndarray_npy::{WriteNpyError, WriteNpyExt};

use super::frame::{Frame, FrameData};

/// Writes `frame` in NumPy's format.
///
/// # Errors
/// Whatever the writer answers.
pub fn write(frame: &Frame, writer: impl Write) -> std::io::Result<()> {
    let written = match &frame.data {
        FrameData::F32(array) => array.write_npy(writer),
        FrameData::I64(array) => array.write_npy(writer),
        FrameData::I8(array) => array.write_npy(writer),
    };
    written.map_err(|error| match error {
        WriteNpyError::Io(error) => error,
        other => std::io::Error::other(other),
    })
}
