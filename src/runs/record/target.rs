//! The output path of a trace: checked before the run, and used when the file is complete.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use llama_trace_core::error::{Error, Result};
use llama_trace_ending::scratch::{self, Scratch};
use llama_trace_formats::files::folder_of;

/// The purpose of the temporary folder.
const KIND: &str = "record";

/// An output file.
pub struct Target {
    path: PathBuf,
    force: bool,
}

impl Target {
    /// Checks that a file can be written to `path`. `force` allows replacing another file.
    ///
    /// # Errors
    /// [`Error::Output`] if no file can be written there, or something is already there.
    pub fn check(path: &Path, force: bool) -> Result<Self> {
        let target = Self { path: path.to_owned(), force };
        target.check_free()?;
        let folder = folder_of(path);
        let names_folder = path.as_os_str().as_encoded_bytes().ends_with(b"/");
        if names_folder
            || path.file_name().is_none()
            || !fs::metadata(folder).is_ok_and(|about| about.is_dir())
        {
            return Err(Error::output("the trace cannot be written to this path")
                .in_file(path)
                .expected("the path of a file in a directory that exists")
                .next("make the directory first, or choose another --out"));
        }
        scratch::remove_left(folder, KIND, |_| Ok(()));
        Ok(target)
    }

    fn check_free(&self) -> Result<()> {
        let found = match fs::symlink_metadata(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => error.to_string(),
            Ok(about) if about.is_file() && self.force => return Ok(()),
            Ok(about) if about.is_file() => {
                return Err(Error::output("the output exists already")
                    .in_file(&self.path)
                    .expected("a path that does not exist yet")
                    .next("choose another --out, or add --force to replace the file"));
            }
            Ok(about) if about.is_dir() => "a directory".to_owned(),
            Ok(_) => "a link, pipe or device".to_owned(),
        };
        Err(Error::output("the trace cannot be written to this path")
            .in_file(&self.path)
            .expected("a path that does not exist yet, or with --force a file")
            .found(found)
            .next("choose another --out"))
    }

    /// Creates a temporary folder in the file system of the target.
    pub(super) fn begin(&self) -> Result<Scratch> {
        let folder = folder_of(&self.path);
        Scratch::new(folder, KIND).map_err(|error| {
            Error::output("nothing can be written beside the output")
                .in_file(folder)
                .found(error)
                .next("choose an --out in a directory that can be written")
        })
    }

    /// Moves the complete file to its place, atomically.
    pub(super) fn commit(&self, from: &Path) -> Result<()> {
        // Another process may have created a file there meanwhile.
        self.check_free()?;
        fs::rename(from, &self.path).map_err(|error| {
            Error::output("the trace cannot be moved to its place").in_file(&self.path).found(error)
        })
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
