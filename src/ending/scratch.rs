//! Temporary folders. A folder is removed when its [`Scratch`] is dropped. If a signal ends the process, all of its
//! folders are removed. A process that was killed leaves its folders; the next folder that is made in the same place
//! removes them. [`super::remove`] does the removal.
//!
//! ```text
//! .llama-trace-KIND-XXXXXX/lock     locked while the process runs
//! .llama-trace-KIND-XXXXXX/files/   the contents
//! ```

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::remove::{LOCK, PREFIX, hand_over, remove, whole};

const FILES: &str = "files";
/// Attempts to make a folder. Until a folder has its lock, another process may take it for the folder of a dead
/// process, and remove it.
const TRIES: usize = 16;

/// The existing folders of this process.
static THERE: Mutex<Vec<There>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct There {
    folder: PathBuf,
    /// The lock, held by this process. If another process can lock it, this process is gone. `None` before the lock
    /// exists.
    lock: Option<File>,
    /// Whether an exchange with another place is in progress.
    half_done: bool,
}

impl There {
    /// Returns a copy of the lock, which may outlive this value.
    fn lock(&self) -> Option<File> {
        self.lock.as_ref()?.try_clone().ok()
    }
}

/// A temporary folder that exists until this value is dropped.
#[derive(Debug)]
pub struct Scratch {
    folder: PathBuf,
    files: PathBuf,
    kept: bool,
}

impl Scratch {
    /// Makes a folder in `parent`; `kind` is a part of its name.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn new(parent: &Path, kind: &str) -> io::Result<Self> {
        for _ in 0..TRIES {
            let folder =
                tempfile::Builder::new().prefix(&prefix(kind)).tempdir_in(parent).map_err(without_path)?;
            let new = There { folder: folder.path().to_owned(), lock: None, half_done: false };
            // No memory may be allocated while the list is locked: the cleanup after a failed allocation locks it too.
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
                // Another process holds the lock and is about to remove the folder.
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
        Err(io::Error::new(ErrorKind::AlreadyExists, "other processes remove the new folder"))
    }

    /// The empty folder inside, to be filled.
    pub fn path(&self) -> &Path {
        &self.files
    }

    /// The folder with the lock. [`remove_left`] passes it to `look`.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Keeps the folder after the end of the process, and returns its path.
    pub fn keep(mut self) -> PathBuf {
        self.kept = true;
        forget(&self.folder);
        self.folder.clone()
    }

    /// Runs `work`, which moves files between this folder and another place. Before each step it must check for a stop
    /// request. If a signal ends the process in the middle, another process reverts the moves.
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
        // If the process is ending, its cleanup may already have removed this folder. The list then does not contain
        // it.
        let found = there().iter().find(|there| there.folder == self.folder).map(There::lock);
        // The next run removes what cannot be removed now.
        if let Some(lock) = found {
            drop(remove(&self.folder, lock.as_ref(), false));
        }
        forget(&self.folder);
        // Windows keeps an open file, here the lock, until it is closed.
        #[cfg(not(unix))]
        drop(whole(&self.folder));
    }
}

/// Removes the folders of `kind` in `parent` whose process is gone. Each of them is first passed to `look`; if `look`
/// fails, the folder stays.
///
/// Removes only real folders with a name of this form, of the current user, with a lock that no process holds. On a
/// file system without locks, removes nothing.
pub fn remove_left(parent: &Path, kind: &str, look: impl Fn(&Path) -> io::Result<()>) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    let prefix = prefix(kind);
    for entry in entries.flatten() {
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix)) {
            // A folder that cannot be removed does no harm.
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
        // The process was killed before it had a lock. A folder with contents stays.
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
    // Windows keeps an open file until it is closed.
    #[cfg(not(unix))]
    drop(lock);
    whole(folder)
}

/// Returns the system's own error, without the folder's random name.
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

/// Removes all existing folders, or hands them over to another process. This process is ending, so the owners of the
/// folders will not drop them.
pub(super) fn remove_all() {
    const PATIENCE: Duration = Duration::from_secs(5);
    let started = Instant::now();
    loop {
        let mut there = there();
        there.retain_mut(|There { folder, lock, half_done }| {
            let gone = match half_done {
                true => hand_over(folder, lock.as_ref(), true),
                false => remove(folder, lock.as_ref(), true),
            };
            // Windows keeps an open file until it is closed, so the next attempt succeeds.
            #[cfg(not(unix))]
            if !*half_done {
                *lock = None;
            }
            gone.is_err() && folder.exists()
        });
        // Other threads may have added files meanwhile, and an exchange may have ended.
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

/// Makes room in the list. Allocates a new list first: no lock is held during an allocation.
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
        // A killed process leaves this: the file exists and is not locked.
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
