//! One frame as a `.npy` file: little-endian float32, int64 or int8, C order.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::ops::Range;

use ndarray::{Dimension, IxDyn};
use ndarray_npy::{WriteNpyError, WriteNpyExt, write_zeroed_npy};

use super::frame::{Frame, FrameData};
use super::stage::Stage;

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
    written.map_err(plain)
}

fn plain(error: WriteNpyError) -> std::io::Error {
    match error {
        WriteNpyError::Io(error) => error,
        other => std::io::Error::other(other),
    }
}

/// Begins `file`, which is empty, for values of `stage` in `shape`, which are to follow in order ([`values`]).
///
/// # Errors
/// Whatever the file answers.
pub fn begin(stage: Stage, shape: &[usize], file: &mut File) -> std::io::Result<()> {
    let shape = IxDyn(shape);
    let values = shape.size() * stage.value_bytes();
    let begun = match stage {
        stage if stage.is_ids() => write_zeroed_npy::<i64, _>(file, shape),
        stage if stage.is_int8() => write_zeroed_npy::<i8, _>(file, shape),
        _ => write_zeroed_npy::<f32, _>(file, shape),
    };
    begun.map_err(plain)?;
    file.seek(SeekFrom::End(-i64::try_from(values).unwrap_or(i64::MAX))).map(drop)
}

/// Writes the values `range` of `frame`, row-major, little-endian.
///
/// # Errors
/// Whatever the writer answers.
pub fn values(frame: &Frame, range: Range<usize>, writer: impl Write) -> std::io::Result<()> {
    fn all<const N: usize, T: Copy>(
        values: Option<&[T]>,
        range: Range<usize>,
        bytes: impl Fn(T) -> [u8; N],
        writer: impl Write,
    ) -> std::io::Result<()> {
        let mut writer = std::io::BufWriter::new(writer);
        for &value in values.and_then(|values| values.get(range)).unwrap_or_default() {
            writer.write_all(&bytes(value))?;
        }
        writer.flush()
    }
    match &frame.data {
        FrameData::F32(array) => all(array.as_slice(), range, f32::to_le_bytes, writer),
        FrameData::I64(array) => all(array.as_slice(), range, i64::to_le_bytes, writer),
        FrameData::I8(array) => all(array.as_slice(), range, i8::to_le_bytes, writer),
    }
}
