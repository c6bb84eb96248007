//! Files on a disk.

mod huge;
mod map;
mod regular;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{fs, io};

pub use huge::{Given, Huge};
pub use map::{File, map};
pub use regular::{at_once, itself, open_regular, read_text};

/// Returns whether `path` exists.
pub(crate) fn exists(path: &Path) -> bool {
    path.exists()
}

/// Returns whether a directory is at `path`.
///
/// # Errors
/// The system's error if nothing is at `path`, or if it may not be read.
pub(crate) fn is_folder(path: &Path) -> io::Result<bool> {
    Ok(fs::metadata(path)?.is_dir())
}

/// The bytes of the file at `path`.
///
/// # Errors
/// As [`is_folder`].
pub(crate) fn size(path: &Path) -> io::Result<u64> {
    Ok(fs::metadata(path)?.len())
}

/// The names in `folder`; none if it cannot be read.
pub(crate) fn names(folder: &Path) -> impl Iterator<Item = OsString> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name())
}

/// The absolute path, with links resolved.
///
/// # Errors
/// As [`is_folder`].
pub(crate) fn full(path: &Path) -> io::Result<PathBuf> {
    path.canonicalize()
}
