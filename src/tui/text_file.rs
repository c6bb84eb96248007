//! Files of text that the viewer reads whole and replaces atomically: marks and lessons.

use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use llama_trace_core::error::{Error, Result};

/// Maximum size of such a file, in bytes.
pub(super) const MOST: u64 = 1 << 20;
/// Maximum length of a chain of symbolic links, as in Linux.
const MOST_LINKS: usize = 40;

/// A kind of file, for the messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextFile {
    /// The content: "the marks".
    pub(super) content: &'static str,
    /// The file: "a file of marks".
    pub(super) name: &'static str,
    /// The option that names the file: "--marks FILE".
    pub(super) option: &'static str,
}

impl TextFile {
    /// The text of the file at `path`; none if it does not exist. Only a regular file is opened, because a pipe would
    /// block and a device may have no end.
    pub(super) fn read(self, path: &Path) -> Result<Option<String>> {
        let failed = |what: String| Error::usage(what).in_file(path);
        let unreadable = |error| {
            failed(format!("{} cannot be read", self.content))
                .expected("a text in UTF-8")
                .found(error)
                .next(format!("give another file, or one that does not exist yet: {}", self.option))
        };
        let about = match fs::metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            about => about.map_err(unreadable)?,
        };
        if !about.is_file() {
            let found = if about.is_dir() { "a directory" } else { "a pipe, socket or device" };
            return Err(failed("this is not a regular file".into())
                .expected(format!("{} on disk, or one that does not exist yet", self.name))
                .found(found)
                .next(format!("give the path of a file: {}", self.option)));
        }
        let mut text = String::new();
        if about.len() <= MOST {
            // Reads one byte more than allowed, to notice a file that grows meanwhile.
            let file = fs::File::open(path).map_err(unreadable)?;
            file.take(MOST + 1).read_to_string(&mut text).map_err(unreadable)?;
        }
        let size = about.len().max(text.len() as u64);
        if size > MOST {
            return Err(failed(format!("this is too large to be {}", self.name))
                .expected(format!("at most {MOST} bytes"))
                .found(format!("{size} bytes"))
                .next("check that this is the right file"));
        }
        // Some editors write a byte-order mark.
        if text.starts_with('\u{feff}') {
            text.remove(0);
        }
        Ok(Some(text))
    }

    /// Replaces the file at `path` as a whole or not at all. A symbolic link stays, and its target is replaced.
    pub(super) fn write(self, path: &Path, text: &str) -> Result<()> {
        let target = target_of(path);
        let mut name = target.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        let new = target.with_file_name(name);
        fs::write(&new, text).and_then(|()| fs::rename(&new, &target)).map_err(|error| {
            drop(fs::remove_file(&new));
            Error::output(format!("{} cannot be written", self.content)).in_file(path).found(error)
        })
    }
}

/// The file that `path` leads to through symbolic links. It need not exist.
fn target_of(path: &Path) -> PathBuf {
    let mut target = path.to_owned();
    for _ in 0..MOST_LINKS {
        let Ok(next) = fs::read_link(&target) else { break };
        target = target.parent().unwrap_or(Path::new("")).join(next);
    }
    target
}
