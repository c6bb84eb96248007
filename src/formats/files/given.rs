//! Files in memory: the disk of a build without `native`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use llama_trace_core::error::{Error, Result};
use llama_trace_core::tensor::Bytes;

static FILES: Mutex<BTreeMap<PathBuf, Bytes>> = Mutex::new(BTreeMap::new());

fn files() -> MutexGuard<'static, BTreeMap<PathBuf, Bytes>> {
    FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `path` without `.` parts.
fn plain(path: &Path) -> PathBuf {
    path.components().filter(|part| *part != Component::CurDir).collect()
}

/// Stores a file with these bytes at `path`, and replaces an existing one. Folders need not exist.
pub fn give(path: &Path, bytes: Bytes) {
    files().insert(plain(path), bytes);
}

/// Removes all files of `folder`. Bytes that are in use stay in memory until they are dropped.
pub fn forget(folder: &Path) {
    let folder = plain(folder);
    files().retain(|path, _| !path.starts_with(&folder));
}

/// The bytes of the whole file at `path`.
///
/// # Errors
/// [`Error::Model`] if there is no such file.
pub fn map(path: &Path) -> Result<Bytes> {
    files().get(&plain(path)).cloned().ok_or_else(|| {
        Error::model("the file cannot be opened")
            .in_file(path)
            .expected("a file that was given")
            .next("check that it was given under this name")
    })
}

/// Reads a text file of at most `limit` bytes.
///
/// # Errors
/// [`Error::Model`] if there is no such file, or it is larger or not UTF-8.
pub fn read_text(path: &Path, limit: u64) -> Result<String> {
    let bytes = map(path)?;
    if bytes.len() as u64 > limit {
        return Err(Error::model("the file is too large for its kind")
            .in_file(path)
            .expected(format!("at most {limit} bytes"))
            .found(format!("{} bytes", bytes.len()))
            .next("check that this is the right file"));
    }
    String::from_utf8(bytes.to_vec()).map_err(|error| {
        Error::model("the file cannot be read as text").in_file(path).expected("UTF-8 text").found(error)
    })
}

/// Returns whether `path` is a file or a folder.
pub(crate) fn exists(path: &Path) -> bool {
    is_folder(path).is_ok()
}

/// Returns whether `path` is a folder.
///
/// # Errors
/// If nothing is there.
pub(crate) fn is_folder(path: &Path) -> io::Result<bool> {
    match files().range(plain(path)..).next() {
        Some((found, _)) if *found == plain(path) => Ok(false),
        Some((found, _)) if found.starts_with(plain(path)) => Ok(true),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

/// The bytes of the file at `path`.
///
/// # Errors
/// If there is no file.
pub(crate) fn size(path: &Path) -> io::Result<u64> {
    let bytes = files().get(&plain(path)).map(|bytes| bytes.len() as u64);
    bytes.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The names in `folder`.
pub(crate) fn names(folder: &Path) -> impl Iterator<Item = OsString> {
    let (files, folder) = (files(), plain(folder));
    let inside = files.keys().filter_map(|path| path.strip_prefix(&folder).ok()?.components().next());
    inside.map(|name| name.as_os_str().to_owned()).collect::<BTreeSet<_>>().into_iter()
}

/// `path` itself: there are no links.
///
/// # Errors
/// None.
pub(crate) fn full(path: &Path) -> io::Result<PathBuf> {
    Ok(plain(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_lies_in_folders() {
        give(Path::new("./given/config.json"), Bytes::owned(b"{}".to_vec()));
        give(Path::new("given/more/weights"), Bytes::owned(vec![0xff; 3]));
        let [folder, file, none] = ["given", "given/config.json", "given/conf"].map(Path::new);
        assert_eq!([folder, file].map(|path| is_folder(path).unwrap()), [true, false]);
        assert!(
            exists(&folder.join("./more")) && !exists(none) && map(none).is_err() && size(folder).is_err()
        );
        assert_eq!(names(folder).collect::<Vec<_>>(), ["config.json", "more"]);
        assert_eq!(names(none).count(), 0);
        assert_eq!((full(file).unwrap().as_path(), size(file).unwrap()), (file, 2));
        assert_eq!(read_text(file, 2).unwrap(), "{}");
        assert!(read_text(file, 1).unwrap_err().to_string().contains("at most 1 bytes"));
        let text = read_text(&folder.join("more/weights"), 9).unwrap_err().to_string();
        assert!(text.contains("UTF-8"), "{text}");
        forget(&folder.join("more"));
        assert_eq!(names(folder).collect::<Vec<_>>(), ["config.json"]);
    }
}
