//! The directory that an export goes to: never half written, and never at the cost of what was there.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::error::{Error, Result};

/// The file that marks a directory as an export.
pub(super) const MANIFEST: &str = "manifest.json";

/// A directory that may be written.
pub(super) struct Target {
    path: PathBuf,
    exists: bool,
}

impl Target {
    /// Checks that `path` can be written before anything is computed.
    pub(super) fn check(path: &Path, force: bool) -> Result<Self> {
        let target = |exists| Ok(Self { path: path.to_owned(), exists });
        let mut entries = match fs::read_dir(path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return match fs::symlink_metadata(path) {
                    Err(_) => target(false),
                    Ok(_) => Err(refuse(path, "a link to a place that does not exist")),
                };
            }
            Err(error) => return Err(refuse(path, &error.to_string())),
        };
        if entries.next().is_some() && !force {
            return Err(Error::output("the output directory is not empty")
                .in_file(path)
                .expected("a directory that does not exist yet, or an empty one")
                .next("choose another --out, or add --force: an earlier export there is replaced, other files stay"));
        }
        target(true)
    }

    /// A hidden directory beside the target, removed again unless it is committed.
    pub(super) fn begin(&self) -> Result<TempDir> {
        let parent = match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let made = tempfile::Builder::new().prefix(".llama-trace-").tempdir_in(parent);
        made.map_err(|error| {
            Error::output("nothing can be written beside the output directory")
                .in_file(parent)
                .found(error)
                .next("choose an --out whose parent directory exists and can be written")
        })
    }

    /// Moves everything in `files` to the target.
    pub(super) fn commit(self, files: TempDir) -> Result<PathBuf> {
        let failed =
            |error| Error::output("the export cannot be moved to its place").in_file(&self.path).found(error);
        set_permissions(files.path()).map_err(failed)?;
        if self.exists {
            remove_earlier(&self.path);
            move_into(files.path(), &self.path).map_err(failed)?;
        } else {
            fs::rename(files.path(), &self.path).map_err(failed)?;
            let _moved = files.keep();
        }
        Ok(self.path)
    }
}

fn refuse(path: &Path, found: &str) -> Error {
    Error::output("the output directory cannot be used")
        .in_file(path)
        .expected("a path where a directory can be made")
        .found(found)
        .next("choose another --out")
}

/// A temporary directory is made for its owner's eyes only; an export is an ordinary directory.
#[cfg(unix)]
fn set_permissions(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let plain = path.join("plain");
    fs::create_dir(&plain)?; // has the permissions that the user's umask gives
    let mode = fs::metadata(&plain)?.permissions().mode();
    fs::remove_dir(&plain)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

#[cfg(not(unix))]
fn set_permissions(_: &Path) -> std::io::Result<()> {
    Ok(())
}

/// Removes the files that an earlier export's manifest lists; nothing else.
fn remove_earlier(path: &Path) {
    let Ok(text) = fs::read(path.join(MANIFEST)) else { return };
    let Ok(manifest) = serde_json::from_slice::<Value>(&text) else { return };
    let files = manifest["files"].as_array().into_iter().flatten();
    for file in files.filter_map(|file| file["file"].as_str()) {
        let ours = file.starts_with("pass_") && file.ends_with(".npy") && !file.contains("..");
        if ours {
            // What is gone already need not be removed.
            let _ = fs::remove_file(path.join(file));
        }
    }
}

/// Moves every file below `from` to the same place below `to`.
fn move_into(from: &Path, to: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let place = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            fs::create_dir_all(&place)?;
            move_into(&entry.path(), &place)?;
        } else {
            fs::rename(entry.path(), &place)?;
        }
    }
    Ok(())
}
