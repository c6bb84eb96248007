//! The directory that an export goes to: never half written, and never at the cost of what was there.
//!
//! Everything is written into a temporary folder in the directory itself, or beside it where it is not there yet: so
//! there is no other file system on the way. At the end the files of an earlier export are moved aside into that
//! folder, the new ones take their places, and the folder goes with what was moved aside. What fails in between is
//! taken back; where the process ends before that, by another one ([`ending::remove`]), and what a killed run left, by
//! the next one.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use super::folder::{Folder, Kind};
use super::manifest::{self, Earlier, MANIFEST};
use super::{interrupted, stopped};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::stop;
use llama_trace_ending::scratch::{self, Scratch};

/// The temporary folder's kind.
const KIND: &str = "export";
/// Where the earlier export's files are moved aside, in the temporary folder; the new ones are in [`NEW`].
const OLD: &str = "old";
const NEW: &str = "files";
/// The largest manifest that is read.
const MAX_MANIFEST: u64 = 1 << 30;

/// A directory that may be written.
pub(super) struct Target {
    path: PathBuf,
    /// None where it is not there yet.
    folder: Option<Folder>,
}

impl Target {
    /// Checks that `path` can be written before anything is computed.
    pub(super) fn check(path: &Path, force: bool) -> Result<Self> {
        let folder = match Folder::open(path) {
            Ok(folder) => Some(folder),
            Err(error) if error.kind() == ErrorKind::NotFound => match fs::symlink_metadata(path) {
                Err(_) => None,
                Ok(_) => return Err(refuse(path, "a link to a place that does not exist")),
            },
            Err(error) => return Err(refuse(path, &error.to_string())),
        };
        let target = Self { path: path.to_owned(), folder };
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

    /// Checks that no file that is not this program's has a name that is to be written; `planned` gives the names of a
    /// pass, of one of several sequences where there are several.
    pub(super) fn check_free(&self, planned: impl Fn(Option<usize>, usize) -> Vec<String>) -> Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let failed = |error: io::Error| refuse(&self.path, &error.to_string());
        let earlier = self.earlier()?;
        let mut passes = Vec::new();
        for name in folder.names().map_err(failed)? {
            let sequence = manifest::sequence_of(&name);
            passes.extend(manifest::pass_of(&name).map(|pass| (None, pass)));
            if sequence.is_some() {
                // What is no folder is in the way of the first pass too.
                let inner = folder.enter(&name).ok().flatten().map_or(Ok(Vec::new()), |inner| inner.names());
                let inner = inner.map_err(failed)?;
                passes.push((sequence, 0));
                passes.extend(inner.iter().filter_map(|name| Some((sequence, manifest::pass_of(name)?))));
            }
        }
        for (sequence, pass) in passes {
            for name in planned(sequence, pass) {
                let (place, kind) = match obstacle(folder, &name).map_err(failed)? {
                    Some((_, Kind::File(_))) if earlier.names(&name) => continue,
                    Some(found) => found,
                    None => continue,
                };
                return Err(in_the_way(&self.path.join(place), kind.describe()));
            }
        }
        Ok(())
    }

    /// What the earlier export in the directory consists of; nothing where there is none.
    fn earlier(&self) -> Result<Earlier> {
        let Some(folder) = &self.folder else { return Ok(Earlier::default()) };
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
            Ok(None) => Ok(Earlier::default()),
            Ok(Some(text)) => Earlier::read(&text).map_err(|found| in_the_way(&place, &found)),
            Err(error) => Err(in_the_way(&place, &error.to_string())),
        }
    }

    /// Checks that the directory is there in which the target would be made.
    fn check_parent(&self) -> Result<()> {
        let found = match fs::metadata(self.parent()) {
            Ok(metadata) if metadata.is_dir() => return Ok(()),
            Ok(_) => "something else than a directory".into(),
            Err(error) => error.to_string(),
        };
        Err(Error::output("the directory above --out cannot be used")
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

    /// A temporary folder in the target's own file system.
    pub(super) fn begin(&self) -> Result<Scratch> {
        let (parent, what) = match &self.folder {
            Some(_) => (&*self.path, "nothing can be written into the output directory"),
            None => (self.parent(), "nothing can be written beside the output directory"),
        };
        Scratch::new(parent, KIND).map_err(|error| {
            Error::output(what)
                .in_file(parent)
                .found(error)
                .next("choose an --out that can be written, or whose parent directory exists and can be")
        })
    }

    /// Moves everything in `files` to the target. Where that fails, everything is as before.
    pub(super) fn commit(self, files: Scratch) -> Result<PathBuf> {
        let failed = |error: &io::Error| {
            Error::output("the export cannot be moved to its place").in_file(&self.path).found(error)
        };
        let Some(folder) = &self.folder else {
            // An empty directory may have come there; anything else fails.
            let moved = files.exchange(|| {
                stopped()?;
                fs::rename(files.path(), &self.path).map_err(|error| failed(&error))
            });
            return moved.map(|()| self.path.clone());
        };
        // It may be another one than before anything was computed.
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

/// Moves the earlier export's files aside and gives the new ones their places, the manifest last.
fn exchange(folder: &Folder, staging: &Folder, earlier: &Earlier) -> io::Result<()> {
    let (old, new) = (staging.make(OLD)?, staging.make(NEW)?);
    let look = || stop::check().map_err(io::Error::other);
    for name in earlier.files() {
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
    for name in earlier.files() {
        remove_empty(folder, name);
    }
    Ok(())
}

/// Removes the folders on the way to a file of an earlier export that are empty without it, the innermost first.
fn remove_empty(folder: &Folder, name: &str) {
    for (end, _) in name.rmatch_indices('/') {
        let removed = folder.way(&name[..end]).map(|way| way.map(|(from, last)| from.remove_empty(last)));
        if !matches!(removed, Ok(Some(Ok(())))) {
            return;
        }
    }
}

/// Takes back what a process that is gone left half done in the temporary folder at `left`.
pub(in crate::cli) fn take_back_left(left: &Path) -> io::Result<()> {
    match left.parent() {
        Some(parent) => take_back_from(&Folder::open(parent)?, left),
        None => Ok(()),
    }
}

fn take_back_from(folder: &Folder, left: &Path) -> io::Result<()> {
    // A link would lead elsewhere.
    let staging = folder.enter(left.file_name().and_then(|name| name.to_str()).unwrap_or_default())?;
    staging.map_or(Ok(()), |staging| take_back(folder, &staging))
}

/// Takes back an exchange that did not get to its end; where it did, there is nothing to do.
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

/// The first thing on the way to `name`, or there, that is not a folder to go through.
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

fn refuse(path: &Path, found: &str) -> Error {
    Error::output("the output directory cannot be used")
        .in_file(path)
        .expected("a path where a directory can be made")
        .found(found)
        .next("choose another --out")
}

fn in_the_way(path: &Path, found: &str) -> Error {
    Error::output("something that is not an earlier export's is in the way")
        .in_file(path)
        .expected("nothing, or a file that the manifest.json of an earlier export names")
        .found(found)
        .next("move it away, or choose another --out")
}
