//! Reads a `.npy` file of any supported number type as a frame.

mod sixteen;

use std::ops::Range;
use std::path::Path;

use ndarray::{ArrayD, ArrayViewD, IxDyn};
use ndarray_npy::{ViewElement, ViewNpyError, ViewNpyExt};

use crate::diff::Found;
use llama_trace_core::error::Error;
use llama_trace_core::trace::{Frame, FrameData, Site, Stage};

/// The values in the file at `path`, used as the values of `site`, in the file's own shape.
///
/// Supported are float32, float64, float16, bfloat16, int32, int64 and int8, little-endian, in C or Fortran order. A mask
/// may be bool too.
pub(crate) fn read(path: &Path, site: Site) -> Found {
    // If there is no file at the path, the values are missing; a file that cannot be read is damaged.
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Found::Missing,
        Ok(file) if file.is_file() && file.len() == 0 => return Found::Damaged("the file is empty".into()),
        _ => {}
    }
    let bytes = match llama_trace_formats::files::map(path) {
        Ok(bytes) => bytes,
        Err(error) => return Found::Damaged(in_a_line(&error)),
    };
    let data = (view::<f32>(&bytes).map(|x| FrameData::F32(x.as_standard_layout().into_owned())))
        .or_else(|| view::<i64>(&bytes).map(|x| FrameData::I64(x.as_standard_layout().into_owned())))
        .or_else(|| view::<i8>(&bytes).map(|x| FrameData::I8(x.as_standard_layout().into_owned())))
        .or_else(|| view::<f64>(&bytes).map(|x| FrameData::F32(standard(&x, |x| x as f32))))
        .or_else(|| view::<i32>(&bytes).map(|x| FrameData::I64(standard(&x, i64::from))))
        .or_else(|| sixteen::read(&bytes).map(FrameData::F32))
        .or_else(|| mask(&bytes).filter(|_| site.stage == Stage::Mask));
    match data {
        Some(data) => Found::Frame(Frame { site, axes: site.stage.axes(), data }.into()),
        None => Found::Damaged(match ArrayViewD::<f32>::view_npy(&bytes) {
            Err(ViewNpyError::NonNativeEndian) => {
                "its bytes are in big-endian order: save it with numpy's `<` types".into()
            }
            _ if !bytes.starts_with(b"\x93NUMPY") => {
                "it is not a .npy file, which begins with the bytes \\x93NUMPY, as numpy.save writes them"
                    .into()
            }
            Err(ViewNpyError::MissingBytes(missing)) => {
                format!("it is cut off: {missing} bytes of its values are missing")
            }
            Err(ViewNpyError::Io(_)) => "it is cut off in its header".into(),
            Err(error) => format!(
                "it is not a .npy file of supported numbers (float16, bfloat16, float32, float64, int8, int32, int64): {error}"
            ),
            Ok(_) => "it cannot be read".into(),
        }),
    }
}

/// The numbers in the file at `path`, as float32. The number types are those of [`RecordedFolder`](super::RecordedFolder).
///
/// # Errors
/// The reason why there are no numbers.
pub fn array(path: &Path) -> Result<ArrayD<f32>, String> {
    match read(path, Site::once(0, Stage::Embedding)) {
        Found::Frame(frame) => Ok(match &frame.data {
            FrameData::F32(array) => array.clone(),
            FrameData::I64(array) => array.mapv(|value| value as f32),
            FrameData::I8(array) => array.mapv(f32::from),
        }),
        Found::Damaged(why) | Found::TooLarge(why) => Err(why),
        Found::Missing => Err("there is no such file".into()),
    }
}

/// A bool mask as the numbers that attention adds: 0 or −∞. Some runtimes write true for a visible key, others for a
/// hidden one. Each token sees its own key, which tells the two apart.
fn mask(bytes: &[u8]) -> Option<FrameData> {
    let truths = view::<bool>(bytes)?;
    let [.., rows, keys] = *truths.shape() else { return None };
    let last = truths.ndim() - 1;
    let is_own = |at: &IxDyn| at[last] + rows == at[last - 1] + keys;
    let is_true = truths.indexed_iter().any(|(at, &truth)| truth && is_own(&at));
    let added = |truth| if truth == is_true { 0.0 } else { f32::NEG_INFINITY };
    Some(FrameData::F32(standard(&truths, added)))
}

/// The shape of a file of floats that [`read`] supports; `None` for any other file.
pub(crate) fn shape(path: &Path) -> Option<Vec<usize>> {
    let bytes = llama_trace_formats::files::map(path).ok()?;
    let of = |shape: &[usize]| shape.to_vec();
    (view::<f32>(&bytes).map(|x| of(x.shape())))
        .or_else(|| view::<f64>(&bytes).map(|x| of(x.shape())))
        .or_else(|| sixteen::read(&bytes).map(|x| of(x.shape())))
}

/// Returns whether the file at `path` holds int8 values.
pub(crate) fn is_int8(path: &Path) -> bool {
    llama_trace_formats::files::map(path).is_ok_and(|bytes| view::<i8>(&bytes).is_some())
}

/// Rows of the file at `path`, of shape (rows, width). `None` if the file does not have this `shape` in C order, or is
/// not float32, int64 or int8.
pub(super) fn rows(path: &Path, shape: &[usize], rows: Range<usize>) -> Option<FrameData> {
    let bytes = llama_trace_formats::files::map(path).ok()?;
    (part::<f32>(&bytes, shape, &rows).map(FrameData::F32))
        .or_else(|| part::<i64>(&bytes, shape, &rows).map(FrameData::I64))
        .or_else(|| part::<i8>(&bytes, shape, &rows).map(FrameData::I8))
}

fn part<T: ViewElement + Clone>(bytes: &[u8], shape: &[usize], rows: &Range<usize>) -> Option<ArrayD<T>> {
    let view = view::<T>(bytes).filter(|view| view.shape() == shape)?;
    let width = shape.last().copied().unwrap_or(1);
    let values = view.as_slice()?.get(rows.start * width..rows.end * width)?.to_vec();
    ArrayD::from_shape_vec(IxDyn(&[rows.len(), width]), values).ok()
}

fn view<T: ViewElement>(bytes: &[u8]) -> Option<ArrayViewD<'_, T>> {
    ArrayViewD::<T>::view_npy(bytes).ok()
}

fn standard<T: Copy, U: Clone>(values: &ArrayViewD<'_, T>, number: impl Fn(T) -> U) -> ArrayD<U> {
    values.mapv(number).as_standard_layout().into_owned()
}

/// The error's first line and its `found` in one line.
fn in_a_line(error: &Error) -> String {
    let text = error.to_string();
    let what = text.lines().next().unwrap_or_default();
    let found = text.lines().find_map(|line| line.trim().strip_prefix("found:"));
    found.map_or_else(|| what.to_owned(), |found| format!("{what}: {}", found.trim()))
}
