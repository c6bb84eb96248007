//! The output directory of an export, replaced as a whole or not at all. Other files in it are never touched.
//!
//! 1. All files are written into a temporary folder in the directory, or next to the directory if it does not exist
//!    yet. The folder is therefore in the same file system.
//! 2. At the end the files of an earlier export are moved aside into that folder, and the new files take their places.
//! 3. The folder is removed, and with it the files that were moved aside.
//!
//! A failure in step 2 is undone. If a signal ends the process before that, another process undoes the step
//! ([`super::remove`]). If the process was killed, the next export undoes it.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use super::folder::{Folder, Kind};
use super::scratch::{self, Scratch};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::stop;

/// The kind of the temporary folder.
const KIND: &str = "export";
/// The folder inside it for the earlier export's files, and the one for the new files.
const OLD: &str = "old";
const NEW: &str = "files";
/// The largest manifest that is read, in bytes.
const MAX_MANIFEST: u64 = 1 << 30;

/// The name of the file that lists an export's files. It is moved last, so the export is complete if it is there.
pub const MANIFEST: &str = "manifest.json";

/// Reads a manifest. Returns the names of the files that it lists, without the manifest's own name, or a description of
/// a text that is not a manifest.
pub type ReadManifest = fn(&[u8]) -> std::result::Result<BTreeSet<String>, String>;

/// An output directory that can be written.
pub struct Target {
    path: PathBuf,
    /// None if it does not exist yet.
    folder: Option<Folder>,
    read: ReadManifest,
}

impl Target {
    /// Checks that `path` can be written, before anything is computed. With `force`, an existing export is replaced;
    /// `read` reads its manifest, which tells its files from other files.
    ///
    /// # Errors
    /// [`Error::Output`] if the directory cannot be written, or if it is not empty and `force` is not set.
    pub fn check(path: &Path, force: bool, read: ReadManifest) -> Result<Self> {
        let folder = match Folder::open(path) {
            Ok(folder) => Some(folder),
            Err(error) if error.kind() == ErrorKind::NotFound => match fs::symlink_metadata(path) {
                Err(_) => None,
                Ok(_) => return Err(refuse(path, "a link to a place that does not exist")),
            },
            Err(error) => return Err(refuse(path, &error.to_string())),
        };
        let target = Self { path: path.to_owned(), folder, read };
        let Some(folder) = &target.folder else {
            target.check_parent()?;
            scratch::remove_left(target.parent(), KIND, |_| Ok(()));
            return Ok(target);
        };
        scratch::remove_left(path, KIND, |left| take_back_from(folder, left));
        let names = folder.names().map_err(|error| refuse(path, &error.to_string()))?;
        if !names.is_empty() && !force {
            return Err(Error::output("the output directory is not empty")
                .in_file(path)
                .expected("a directory that does not exist yet, or an empty one")
                .next("choose another --out, or add --force: an earlier export there is replaced, other files stay"));
        }
        target.earlier()?;
        Ok(target)
    }

    /// Checks that no other file has a name that is to be written. `planned` returns these names; it may leave out
    /// names for which nothing in the directory is in the way.
    ///
    /// # Errors
    /// [`Error::Output`] if something is in the way.
    pub fn check_free(&self, planned: impl FnOnce(&Folder) -> io::Result<Vec<String>>) -> Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let failed = |error: io::Error| refuse(&self.path, &error.to_string());
        let earlier = self.earlier()?;
        for name in planned(folder).map_err(failed)? {
            let (place, kind) = match obstacle(folder, &name).map_err(failed)? {
                Some((_, Kind::File(_))) if earlier.contains(&name) => continue,
                Some(found) => found,
                None => continue,
            };
            return Err(in_the_way(&self.path.join(place), kind.describe()));
        }
        Ok(())
    }

    /// The names of the earlier export's files, its manifest included; none without an export.
    fn earlier(&self) -> Result<BTreeSet<String>> {
        let Some(folder) = &self.folder else { return Ok(BTreeSet::new()) };
        let place = self.path.join(MANIFEST);
        let read = || -> io::Result<Option<Vec<u8>>> {
            match folder.kind(MANIFEST)? {
                None => Ok(None),
                Some(Kind::File(_)) => {
                    let mut text = Vec::new();
                    folder.open_file(MANIFEST)?.take(MAX_MANIFEST).read_to_end(&mut text)?;
                    Ok(Some(text))
                }
                Some(kind) => Err(io::Error::other(kind.describe())),
            }
        };
        match read() {
            Ok(None) => Ok(BTreeSet::new()),
            Ok(Some(text)) => {
                let mut names = (self.read)(&text).map_err(|found| in_the_way(&place, &found))?;
                names.insert(MANIFEST.to_owned());
                Ok(names)
            }
            Err(error) => Err(in_the_way(&place, &error.to_string())),
        }
    }

    /// Checks that the parent directory of the target exists.
    fn check_parent(&self) -> Result<()> {
        let found = match fs::metadata(self.parent()) {
            Ok(metadata) if metadata.is_dir() => return Ok(()),
            Ok(_) => "something else than a directory".into(),
            Err(error) => error.to_string(),
        };
        Err(Error::output("the parent directory of --out cannot be used")
            .in_file(self.parent())
            .expected("a directory")
            .found(found)
            .next("make it first, or choose another --out"))
    }

    fn parent(&self) -> &Path {
        match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        }
    }

    /// A temporary folder for the new files, in the target's file system.
    ///
    /// # Errors
    /// [`Error::Output`] if no folder can be made.
    pub fn begin(&self) -> Result<Scratch> {
        let (parent, what) = match &self.folder {
            Some(_) => (&*self.path, "nothing can be written into the output directory"),
            None => (self.parent(), "nothing can be written beside the output directory"),
        };
        Scratch::new(parent, KIND).map_err(|error| {
            Error::output(what)
                .in_file(parent)
                .found(error)
                .next("choose an --out that can be written, or one whose parent directory exists and can be written")
        })
    }

    /// Replaces the earlier export with the contents of `files`, and returns the directory's path. After a failure
    /// everything is as before.
    ///
    /// # Errors
    /// [`Error::Output`], and [`Error::Interrupted`] if the process was asked to stop.
    pub fn commit(self, files: Scratch) -> Result<PathBuf> {
        let failed = |error: &io::Error| {
            Error::output("the export cannot be moved to its place").in_file(&self.path).found(error)
        };
        let Some(folder) = &self.folder else {
            // An empty directory at the path is replaced; anything else fails.
            let moved = files.exchange(|| {
                stopped()?;
                fs::rename(files.path(), &self.path).map_err(|error| failed(&error))
            });
            return moved.map(|()| self.path.clone());
        };
        // The directory may have another export now than at the check.
        let earlier = self.earlier()?;
        let staging = Folder::open(files.folder()).map_err(|error| failed(&error))?;
        let exchanged = files.exchange(|| {
            exchange(folder, &staging, &earlier).map_err(|error| (error, take_back(folder, &staging)))
        });
        match exchanged {
            Ok(()) => Ok(self.path),
            Err((_, Ok(()))) if stop::process().asked() => Err(interrupted()),
            Err((error, Ok(()))) => Err(failed(&error).next("nothing was changed; choose another --out")),
            Err((error, Err(_))) => {
                let left = files.keep();
                Err(failed(&error).next(format!("the earlier export's files are in {}", left.display())))
            }
        }
    }
}

/// Moves the earlier export's files aside and the new ones into place, the manifest last.
fn exchange(folder: &Folder, staging: &Folder, earlier: &BTreeSet<String>) -> io::Result<()> {
    let (old, new) = (staging.make(OLD)?, staging.make(NEW)?);
    let look = || stop::check().map_err(io::Error::other);
    for name in earlier {
        look()?;
        let Ok(Some((from, last))) = folder.way(name) else { continue };
        if matches!(from.kind(last)?, Some(Kind::File(_))) {
            from.replace(last, &old.make_way(name)?.0)?;
        }
    }
    let mut names = new.files()?;
    names.sort_by_key(|name| name == MANIFEST);
    for name in &names {
        look()?;
        if let Some((from, last)) = new.way(name)? {
            from.put(last, &folder.make_way(name)?.0)?;
        }
    }
    for name in earlier {
        remove_empty(folder, name);
    }
    Ok(())
}

/// Removes the parent folders of a file of an earlier export that are empty now, the innermost first.
fn remove_empty(folder: &Folder, name: &str) {
    for (end, _) in name.rmatch_indices('/') {
        let removed = folder.way(&name[..end]).map(|way| way.map(|(from, last)| from.remove_empty(last)));
        if !matches!(removed, Ok(Some(Ok(())))) {
            return;
        }
    }
}

/// Undoes an exchange that another process left half done in the temporary folder at `left`.
///
/// # Errors
/// If that fails. Some of the earlier files are then still in `left`.
pub fn take_back_left(left: &Path) -> io::Result<()> {
    match left.parent() {
        Some(parent) => take_back_from(&Folder::open(parent)?, left),
        None => Ok(()),
    }
}

fn take_back_from(folder: &Folder, left: &Path) -> io::Result<()> {
    // `enter` does not follow a link, which would lead elsewhere.
    let staging = folder.enter(left.file_name().and_then(|name| name.to_str()).unwrap_or_default())?;
    staging.map_or(Ok(()), |staging| take_back(folder, &staging))
}

/// Undoes an exchange that was not completed.
fn take_back(folder: &Folder, staging: &Folder) -> io::Result<()> {
    let (Some(old), Some(new)) = (staging.enter(OLD)?, staging.enter(NEW)?) else { return Ok(()) };
    let same = |name: &str| -> io::Result<bool> {
        let (here, there) = (new.kind(name)?, folder.kind(name));
        Ok(matches!(here, Some(Kind::File(_))) && there.is_ok_and(|there| there == here))
    };
    if same(MANIFEST)? || new.kind(MANIFEST)?.is_none() {
        return Ok(());
    }
    for name in new.files()? {
        if same(&name)?
            && let Some((place, last)) = folder.way(&name)?
        {
            place.remove(last)?;
        }
    }
    for name in old.files()? {
        if let Some((from, last)) = old.way(&name)? {
            let place = folder.make_way(&name)?.0;
            from.put(last, &place)?;
            if from.kind(last)?.is_some() {
                from.remove(last)?;
            }
        }
    }
    Ok(())
}

/// The first part of the path `name` that is in the way, and its kind.
fn obstacle<'n>(folder: &Folder, name: &'n str) -> io::Result<Option<(&'n str, Kind)>> {
    for (end, _) in name.match_indices('/').chain([(name.len(), "")]) {
        match folder.kind(&name[..end])? {
            None => return Ok(None),
            Some(Kind::Folder) if end < name.len() => {}
            Some(kind) => return Ok(Some((&name[..end], kind))),
        }
    }
    Ok(None)
}

/// The error of an export that was asked to stop.
pub fn interrupted() -> Error {
    Error::interrupted("interrupted; nothing was written")
}

/// Fails if the process was asked to stop.
///
/// # Errors
/// [`interrupted`].
pub fn stopped() -> Result<()> {
    match stop::process().asked() {
        true => Err(interrupted()),
        false => Ok(()),
    }
}

fn refuse(path: &Path, found: &str) -> Error {
    Error::output("the output directory cannot be used")
        .in_file(path)
        .expected("a path where a directory can be made")
        .found(found)
        .next("choose another --out")
}

fn in_the_way(path: &Path, found: &str) -> Error {
    Error::output("a file that is not from an earlier export is in the way")
        .in_file(path)
        .expected("nothing, or a file that the manifest.json of an earlier export names")
        .found(found)
        .next("move it away, or choose another --out")
}
