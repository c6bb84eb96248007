//! The cache folder, shared with Python's huggingface_hub and in its layout:
//!
//! ```text
//! models--org--name/refs/main                      the last known commit of the branch
//! models--org--name/snapshots/COMMIT/config.json   a link to a blob
//! models--org--name/blobs/ETAG                     a file's bytes; ETAG.incomplete during the download
//! models--org--name/.no_exist/COMMIT/FILE          the commit is known not to have this file
//! .locks/models--org--name/ETAG.lock               locked during the download of that blob
//! ```
//!
//! A complete blob is never overwritten or deleted.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::name::{Name, is_commit};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::stop;
use llama_trace_formats::files::{itself, read_text};

/// The maximum size in bytes of a file with the id of a commit. An id has 40 bytes.
const MAX_REF: u64 = 1 << 10;

/// The part of the cache that belongs to one repository.
pub(super) struct Cache {
    folder: PathBuf,
    locks: PathBuf,
}

impl Cache {
    pub(super) fn new(cache: &Path, name: &Name) -> Self {
        let folder = format!("models--{}", name.repo.replace('/', "--"));
        Self { locks: cache.join(".locks").join(&folder), folder: cache.join(folder) }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(etag)
    }

    /// The path of an incomplete blob.
    pub(super) fn partial(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(format!("{etag}.incomplete"))
    }

    /// Returns the commit of a revision as last reported by the hub.
    pub(super) fn commit(&self, name: &Name) -> Option<String> {
        if name.is_pinned() {
            return Some(name.revision.clone());
        }
        let commit = read_text(&self.folder.join("refs").join(&name.revision), MAX_REF).ok()?;
        Some(commit.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    /// Stores the commit of a revision. A read-only cache works too, so a failure is ignored.
    pub(super) fn set_commit(&self, name: &Name, commit: &str) {
        if name.is_pinned() || self.commit(name).as_deref() == Some(commit) {
            return;
        }
        let path = self.folder.join("refs").join(&name.revision);
        let write = || {
            let folder = path.parent()?;
            fs::create_dir_all(folder).ok()?;
            // The tempfile crate makes files that only their owner can read, but a cache may be shared.
            let mut new = path.as_os_str().to_owned();
            new.push(format!(".{}.tmp", std::process::id()));
            // Never writes to an existing file of this name.
            let _ = fs::remove_file(&new);
            File::create_new(&new).and_then(|mut file| file.write_all(commit.as_bytes())).ok()?;
            fs::rename(&new, &path).ok()
        };
        write();
    }

    /// Returns whether the commit is known not to have a file.
    pub(super) fn lacks(&self, commit: &str, file: &str) -> bool {
        self.folder.join(".no_exist").join(commit).join(file).exists()
    }

    /// Stores that the commit does not have a file, so it need not be requested again.
    pub(super) fn set_lacks(&self, commit: &str, file: &str) {
        let folder = self.folder.join(".no_exist").join(commit);
        let _ = fs::create_dir_all(&folder).and_then(|()| File::create_new(folder.join(file)));
    }

    /// Locks a blob exclusively until the returned file is dropped. Calls `wait` before it waits for another process.
    /// Returns `None` on a file system without locks: downloads are checked in any case.
    pub(super) fn lock(&self, etag: &str, wait: impl FnOnce()) -> Result<Option<File>> {
        let path = self.locks.join(format!("{etag}.lock"));
        let file = fs::create_dir_all(&self.locks)
            .and_then(|()| itself(File::options().create(true).truncate(false).write(true)).open(&path))
            .map_err(|error| cannot_write(&path, &error))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => {
                wait();
                loop {
                    stop::sleep(stop::LOOK)?;
                    match file.try_lock() {
                        Ok(()) => return Ok(Some(file)),
                        Err(TryLockError::WouldBlock) => {}
                        Err(TryLockError::Error(_)) => return Ok(None),
                    }
                }
            }
            Err(TryLockError::Error(_)) => Ok(None),
        }
    }

    /// Links the blob as a file of the commit. `fresh` is set if no other commit can use the blob yet.
    pub(super) fn link(&self, commit: &str, file: &str, etag: &str, fresh: bool) -> Result<()> {
        let pointer = self.snapshot(commit).join(file);
        // One folder up for each folder of the file's path, and two for snapshots/COMMIT.
        let up = "../".repeat(2 + file.matches('/').count());
        let target = format!("{up}blobs/{etag}");
        let make = || -> io::Result<()> {
            if let Some(folder) = pointer.parent() {
                fs::create_dir_all(folder)?;
            }
            if fs::symlink_metadata(&pointer).is_ok() {
                // A dangling link: its blob was deleted.
                fs::remove_file(&pointer)?;
            }
            // Windows can make links that it does not follow.
            match symlink(Path::new(&target), &pointer).and_then(|()| fs::metadata(&pointer)) {
                // Another process was faster.
                Err(_) if pointer.exists() => Ok(()),
                // Without symbolic links, the file itself is in the snapshot, as in huggingface_hub.
                Err(_) if fresh => fs::rename(self.blob(etag), &pointer),
                Err(_) => fs::copy(self.blob(etag), &pointer).map(drop),
                Ok(_) => Ok(()),
            }
        };
        if pointer.exists() {
            return Ok(());
        }
        make().map_err(|error| cannot_write(&pointer, &error))
    }
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target.to_string_lossy().replace('/', "\\"), link)
}

/// Returns the error for a file of the cache that cannot be written.
pub(super) fn cannot_write(path: &Path, error: &io::Error) -> Error {
    Error::output("the model cannot be written to the cache")
        .in_file(path)
        .expected("free space and write permission")
        .found(error)
        .next("free some space, or set HF_HOME to another folder; downloaded files are kept")
}
