//! Temporary folders. Each goes when it is dropped; the ending that a signal makes removes what is there; and what a
//! process left that could not do either, as one that was killed, goes when the next folder is made beside it. How they
//! are removed is [`super::remove`]'s.
//!
//! ```text
//! .llama-trace-KIND-XXXXXX/lock     held for as long as the process is there
//! .llama-trace-KIND-XXXXXX/files/   what it is for
//! ```

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::remove::{LOCK, PREFIX, hand_over, remove, whole};

const FILES: &str = "files";
/// Others may take an empty folder for one that was left, before it has its lock.
const TRIES: usize = 16;

/// Those that are there.
static THERE: Mutex<Vec<There>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct There {
    folder: PathBuf,
    /// Locked: whoever can lock it too knows that its process is gone. None before it is there.
    lock: Option<File>,
    /// Whether things are on their way between it and another place.
    half_done: bool,
}

impl There {
    /// The lock, for somebody who may hold it longer than this.
    fn lock(&self) -> Option<File> {
        self.lock.as_ref()?.try_clone().ok()
    }
}

/// A folder that is there for as long as this is.
#[derive(Debug)]
pub struct Scratch {
    folder: PathBuf,
    files: PathBuf,
    kept: bool,
}

impl Scratch {
    /// Makes one in `parent`, for what `kind` says.
    ///
    /// # Errors
    /// Where nothing can be made there.
    pub fn new(parent: &Path, kind: &str) -> io::Result<Self> {
        for _ in 0..TRIES {
            let folder =
                tempfile::Builder::new().prefix(&prefix(kind)).tempdir_in(parent).map_err(without_path)?;
            let new = There { folder: folder.path().to_owned(), lock: None, half_done: false };
            // Nothing is allocated while this is locked: the end of a process without memory locks it too.
            room_for_one();
            there().push(new);
            let lock = match File::create_new(folder.path().join(LOCK)) {
                Ok(lock) => lock,
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    forget(folder.path());
                    continue;
                }
                Err(error) => {
                    forget(folder.path());
                    return Err(error);
                }
            };
            if matches!(lock.try_lock(), Err(TryLockError::WouldBlock)) {
                // Whoever holds it is about to remove the folder.
                forget(folder.path());
                continue;
            }
            let folder = folder.keep();
            if let Some(there) = there().iter_mut().find(|there| there.folder == folder) {
                there.lock = Some(lock);
            }
            let scratch = Self { files: folder.join(FILES), folder, kept: false };
            return fs::create_dir(&scratch.files).map(|()| scratch);
        }
        Err(io::Error::new(ErrorKind::AlreadyExists, "others remove what is made"))
    }

    /// The empty folder inside that is to be filled.
    pub fn path(&self) -> &Path {
        &self.files
    }

    /// The folder with the lock, which whoever finds it later may look into before it is removed.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Lets it stay when the process ends, and says where it is.
    pub fn keep(mut self) -> PathBuf {
        self.kept = true;
        forget(&self.folder);
        self.folder.clone()
    }

    /// Runs `work`, which moves things between this folder and another place, in steps before each of which it looks
    /// whether the process is to stop. Where a signal ends it in the middle, another process takes it back.
    pub fn exchange<R>(&self, work: impl FnOnce() -> R) -> R {
        let half_done = |whether| {
            if let Some(there) = there().iter_mut().find(|there| there.folder == self.folder) {
                there.half_done = whether;
            }
        };
        half_done(true);
        let done = work();
        half_done(false);
        done
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        // A signal's ending takes away those that it has seen to.
        let found = there().iter().find(|there| there.folder == self.folder).map(There::lock);
        // What cannot be removed now is removed by the next run.
        if let Some(lock) = found {
            drop(remove(&self.folder, lock.as_ref(), false));
        }
        forget(&self.folder);
    }
}

/// Removes the folders of `kind` in `parent` whose process is gone. `look` sees each of them first; where it fails the
/// folder stays.
///
/// Only a real folder with a name of this form is removed, of the same owner as `parent`'s new ones, with a lock that
/// nobody holds. Where the file system has no locks, nothing is.
pub fn remove_left(parent: &Path, kind: &str, look: impl Fn(&Path) -> io::Result<()>) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    let prefix = prefix(kind);
    for entry in entries.flatten() {
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix)) {
            // What cannot be removed is in nobody's way.
            drop(remove_one(&entry.path(), &look));
        }
    }
}

fn remove_one(folder: &Path, look: &impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    let about = fs::symlink_metadata(folder)?;
    if !about.is_dir() || !is_mine(&about) {
        return Ok(());
    }
    let path = folder.join(LOCK);
    match fs::symlink_metadata(&path) {
        // Killed before it had one. What is not empty stays.
        Err(error) if error.kind() == ErrorKind::NotFound => return fs::remove_dir(folder),
        Err(error) => return Err(error),
        Ok(about) if !about.is_file() => return Ok(()),
        Ok(_) => {}
    }
    let lock = File::options().write(true).open(&path)?;
    if lock.try_lock().is_err() {
        return Ok(());
    }
    look(folder)?;
    whole(folder)
}

/// The system's own error, without the name of a folder that nobody asked for.
fn without_path(error: io::Error) -> io::Error {
    let inner =
        error.get_ref().and_then(|error| error.source()).and_then(|error| error.downcast_ref::<io::Error>());
    inner.and_then(io::Error::raw_os_error).map_or(error, io::Error::from_raw_os_error)
}

#[cfg(unix)]
fn is_mine(about: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    about.uid() == rustix::process::geteuid().as_raw()
}

#[cfg(not(unix))]
fn is_mine(_: &fs::Metadata) -> bool {
    true
}

/// Removes all that are there, or has another process do so: this one ends, and who made them will not get to it.
pub(super) fn remove_all() {
    const PATIENCE: Duration = Duration::from_secs(5);
    let started = Instant::now();
    loop {
        let mut there = there();
        there.retain(|There { folder, lock, half_done }| {
            let gone = match half_done {
                true => hand_over(folder, lock.as_ref(), true),
                false => remove(folder, lock.as_ref(), true),
            };
            gone.is_err() && folder.exists()
        });
        // Files may have come into one while this went on, and what is half done may get to its end.
        if there.is_empty() || started.elapsed() > PATIENCE {
            return;
        }
        drop(there);
        thread::sleep(Duration::from_millis(5));
    }
}

fn prefix(kind: &str) -> String {
    format!("{PREFIX}{kind}-")
}

fn there() -> MutexGuard<'static, Vec<There>> {
    THERE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes room in the list, in a new one: who waits for memory holds no lock.
fn room_for_one() {
    let (length, room) = {
        let there = there();
        (there.len(), there.capacity())
    };
    if length == room {
        let mut larger = Vec::with_capacity(2 * length + 8);
        let mut there = there();
        larger.append(&mut there);
        let smaller = std::mem::replace(&mut *there, larger);
        drop(there);
        drop(smaller);
    }
}

fn forget(folder: &Path) {
    there().retain(|other| other.folder != folder);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(parent: &Path) -> Vec<String> {
        let entries = fs::read_dir(parent).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = entries.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn it_goes_when_it_is_dropped() {
        let parent = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(parent.path(), "test").unwrap();
        fs::write(scratch.path().join("file"), "x").unwrap();
        assert_eq!(names(parent.path()).len(), 1);
        drop(scratch);
        assert!(names(parent.path()).is_empty());
    }

    #[test]
    fn only_folders_of_ours_whose_process_is_gone_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let at = |name: &str| parent.path().join(name);
        let alive = Scratch::new(parent.path(), "test").unwrap();
        // As a killed process leaves it: the file is there and nobody holds its lock.
        fs::create_dir_all(at(".llama-trace-test-dead/files/pass_000")).unwrap();
        fs::write(at(".llama-trace-test-dead/lock"), "").unwrap();
        fs::create_dir(at(".llama-trace-test-early")).unwrap();
        fs::create_dir_all(at(".llama-trace-test-mine/photos")).unwrap();
        fs::create_dir_all(at(".llama-trace-other-dead")).unwrap();
        fs::write(at(".llama-trace-test-file"), "mine").unwrap();
        #[cfg(unix)]
        {
            fs::create_dir_all(at("elsewhere")).unwrap();
            fs::write(at("elsewhere/lock"), "mine").unwrap();
            std::os::unix::fs::symlink(at("elsewhere"), at(".llama-trace-test-link")).unwrap();
        }
        let before = names(parent.path()).len();
        remove_left(parent.path(), "test", |_| Err(io::Error::other("not yet")));
        assert_eq!(names(parent.path()).len(), before - 1, "the empty one alone: whoever looks says no");
        remove_left(parent.path(), "test", |_| Ok(()));
        let left = names(parent.path());
        assert!(!left.contains(&".llama-trace-test-dead".into()), "{left:?}");
        assert_eq!(left.len(), before - 2, "{left:?}");
        assert!(alive.path().exists());
        #[cfg(unix)]
        assert_eq!(fs::read_to_string(at("elsewhere/lock")).unwrap(), "mine");
    }
}
