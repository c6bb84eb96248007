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

/// Whether there is anything at `path`.
pub(crate) fn exists(path: &Path) -> bool {
    path.exists()
}

/// Whether a directory is at `path`.
///
/// # Errors
/// Whatever the system answers, where nothing is there or nobody may look.
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

/// The names of what is in `folder`; none where it cannot be read.
pub(crate) fn names(folder: &Path) -> impl Iterator<Item = OsString> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name())
}

/// `path` from the root on, without links.
///
/// # Errors
/// As [`is_folder`].
pub(crate) fn full(path: &Path) -> io::Result<PathBuf> {
    path.canonicalize()
}
