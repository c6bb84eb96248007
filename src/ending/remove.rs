//! Removal of temporary folders with any number of files. An ending process has little time, so it hands over a long
//! removal to another process. The other process runs this program with `ARGUMENT`, the folder and the id of the ending
//! process as arguments. It has its own process group, which a second Ctrl-C does not reach.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
#[cfg(unix)]
use std::thread;
use std::time::{Duration, Instant};

use llama_trace_core::stop;

pub(super) const LOCK: &str = "lock";
/// The beginning of every temporary folder's name.
pub(super) const PREFIX: &str = ".llama-trace-";

/// The argument of a process that removes a folder. It is internal and undocumented.
#[cfg(unix)]
const ARGUMENT: &str = "__remove-temporary-folder";

/// How long an ending process removes files itself. Nearly every folder takes less time.
const ITSELF: Duration = Duration::from_secs(2);

/// How many times the other process tries to remove the folder.
#[cfg(unix)]
const TRIES: usize = 20;
/// How many times the other process checks whether the ending process is gone, and the time between checks.
#[cfg(unix)]
const LOOKS: usize = 600;
#[cfg(unix)]
const LOOK: Duration = Duration::from_millis(100);

/// The folder that another process is removing, and whether an exchange in it was interrupted.
static GOING: Mutex<Option<(PathBuf, bool)>> = Mutex::new(None);

/// Describes what another process is still doing.
pub(super) fn going_on() -> Option<String> {
    let going = GOING.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let (folder, half_done) = going.filter(|(folder, _)| folder.exists())?;
    let folder = folder.display();
    Some(match half_done {
        true => format!("the earlier files are being put back from {folder}, which is removed last"),
        false => format!("{folder} is being removed"),
    })
}

/// Removes `folder`, whose lock is `lock`. If the process is ending (`now`, or a stop request meanwhile), another
/// process takes over a long removal.
pub(super) fn remove(folder: &Path, lock: Option<&File>, now: bool) -> io::Result<()> {
    let mut asked: Option<Instant> = None;
    let mut late = || {
        if asked.is_none() && (now || stop::process().asked()) {
            asked = Some(Instant::now());
        }
        asked.is_some_and(|asked| asked.elapsed() > ITSELF)
    };
    match clear(folder, &mut late) {
        Ok(false) if hand_over(folder, lock, false).is_ok() => Ok(()),
        // Other threads may have added files meanwhile. The other process finds those.
        Err(_) if late() && hand_over(folder, lock, false).is_ok() => Ok(()),
        _ => whole(folder),
    }
}

/// Removes `folder`, its lock last: until then it is recognised as a temporary folder.
pub(super) fn whole(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false if entry.file_name() == LOCK => {}
            false => fs::remove_file(entry.path())?,
        }
    }
    fs::remove_dir_all(folder)
}

/// Removes everything in `folder` except its lock, and follows no links. Returns false if it is `late` before the end.
fn clear(folder: &Path, late: &mut impl FnMut() -> bool) -> io::Result<bool> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if late() {
            return Ok(false);
        }
        if entry.file_type()?.is_dir() {
            if !clear(&entry.path(), late)? {
                return Ok(false);
            }
            fs::remove_dir(entry.path())?;
        } else if entry.file_name() != LOCK {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(true)
}

/// Starts another process that removes `folder`, and first reverts an exchange that is `half_done`. The process holds
/// the lock as its standard input.
#[cfg(unix)]
pub(super) fn hand_over(folder: &Path, lock: Option<&File>, half_done: bool) -> io::Result<()> {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    let lock = lock.ok_or(io::ErrorKind::NotFound)?.try_clone()?;
    let mut command = Command::new(super::program()?);
    let own = std::process::id().to_string();
    command.arg(ARGUMENT).arg(folder).arg(own).stdin(lock).stdout(Stdio::null()).stderr(Stdio::null());
    command.process_group(0).spawn()?;
    *GOING.lock().unwrap_or_else(PoisonError::into_inner) = Some((folder.to_owned(), half_done));
    Ok(())
}

#[cfg(not(unix))]
pub(super) fn hand_over(_: &Path, _: Option<&File>, _: bool) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Whether this process was started to remove a folder. If so, this call removes the folder. `take_back` runs first; if
/// it fails, the folder stays.
#[cfg(unix)]
pub fn was_asked_to(take_back: impl Fn(&Path) -> io::Result<()>) -> bool {
    use std::os::unix::process::parent_id;
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let (folder, asking) = match &words[..] {
        [argument, folder, asking] if argument == ARGUMENT => (PathBuf::from(folder), asking),
        _ => return false,
    };
    if holds_lock_of(&folder).unwrap_or(false) {
        // The ending process may be in the middle of an exchange. It also has files open: the process that closes a
        // removed file last waits for the real removal.
        let asking = asking.to_string_lossy();
        for _ in 0..LOOKS {
            if parent_id().to_string() != asking {
                break;
            }
            thread::sleep(LOOK);
        }
        // The next run removes what cannot be removed now.
        for _ in 0..TRIES {
            if take_back(&folder).and_then(|()| whole(&folder)).is_ok() || !folder.exists() {
                break;
            }
            thread::sleep(LOOK);
        }
    }
    true
}

/// Whether `folder` has the name of a temporary folder, and the standard input is its lock. Only the process that made
/// the folder has the lock.
#[cfg(unix)]
fn holds_lock_of(folder: &Path) -> io::Result<bool> {
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;
    if !folder.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(PREFIX.as_bytes())) {
        return Ok(false);
    }
    let input = File::from(io::stdin().as_fd().try_clone_to_owned()?).metadata()?;
    let lock = fs::symlink_metadata(folder.join(LOCK))?;
    Ok(lock.is_file() && (lock.dev(), lock.ino()) == (input.dev(), input.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_late_removes_no_file_more_and_the_lock_goes_last() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("folder");
        let names = ["a", "b", "pass/c", "pass/layer/d", "pass/layer/e", LOCK];
        fs::create_dir_all(folder.join("pass/layer")).unwrap();
        names.iter().for_each(|name| fs::write(folder.join(name), "").unwrap());
        let left = || names.iter().filter(|name| folder.join(name).exists()).count();
        assert!(!clear(&folder, &mut || left() < 4).unwrap());
        assert_eq!(left(), 3, "three were removed when it was late");
        assert!(clear(&folder, &mut || false).unwrap());
        assert_eq!((left(), folder.join(LOCK).exists()), (1, true));
        whole(&folder).unwrap();
        assert!(!folder.exists());
    }
}
