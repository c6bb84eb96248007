//! One stage into a file of its own that was not there before, block by block.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::trace::npy::Npy;
use crate::trace::{Block, Region, Site};

/// How many names are tried.
const TRIES: usize = 1000;

/// A file that is being written. Half a file is worse than none: where it is dropped before its end, it is removed.
#[derive(Debug)]
pub struct Saving {
    site: Site,
    shape: Vec<usize>,
    path: PathBuf,
    file: Npy,
    /// Values written so far.
    written: usize,
}

fn failed(path: &Path, error: std::io::Error) -> Error {
    Error::output("the stage cannot be exported")
        .in_file(path)
        .found(error)
        .next("start in a folder of yours")
}

impl Saving {
    /// Begins a file in `folder` for the whole stage that `block` is of: `p0_L1_softmax.npy`, or
    /// `p0_L1_softmax-2.npy` and so on where that is taken.
    ///
    /// # Errors
    /// [`Error::Output`] where nothing can be written there.
    pub fn begin(block: &Block, folder: &Path) -> Result<Self> {
        let stem = block.frame.site.to_string().replace('/', "_");
        let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
        for number in 1..=TRIES {
            let name = if number == 1 { format!("{stem}.npy") } else { format!("{stem}-{number}.npy") };
            let path = folder.join(name);
            let file = match OpenOptions::new().read(true).write(true).create_new(true).open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(failed(&path, error)),
            };
            let (site, shape) = (block.frame.site, block.shape.clone());
            return match Npy::begin(site.stage, &shape, file) {
                Ok(file) => Ok(Self { site, shape, path, file, written: 0 }),
                Err(error) => {
                    drop(fs::remove_file(&path));
                    Err(failed(&path, error))
                }
            };
        }
        Err(Error::output("the stage cannot be exported")
            .in_file(&folder)
            .found(format!("{TRIES} files named {stem}"))
            .next("move some of them away"))
    }

    /// What is written.
    pub fn site(&self) -> Site {
        self.site
    }

    /// How many values are written.
    pub fn written(&self) -> usize {
        self.written
    }

    /// How much of it is written.
    pub fn percent(&self) -> usize {
        self.written * 100 / self.count().max(1)
    }

    fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Where the next value is; it is to be in the next block.
    pub fn next(&self) -> Region {
        let mut rest = self.written;
        let mut at = Vec::new();
        for &length in self.shape.iter().rev() {
            at.push(rest % length.max(1)..rest % length.max(1) + 1);
            rest /= length.max(1);
        }
        at.reverse();
        Region(at).within(&self.shape)
    }

    /// Writes what comes next and is in `block`. When that was the last value, answers where the file is.
    ///
    /// # Errors
    /// [`Error::Output`] where it cannot be written.
    pub fn write(&mut self, block: &Block) -> Result<Option<PathBuf>> {
        while self.written < self.count()
            && let Some(run) = block.run(self.written)
        {
            let values = block.frame.values().slice(run.clone());
            self.file.write(self.written, values).map_err(|error| failed(&self.path, error))?;
            self.written += run.len();
        }
        Ok((self.written == self.count()).then(|| self.path.clone()))
    }
}

impl Drop for Saving {
    fn drop(&mut self) {
        if self.written < self.count() {
            // Where even that fails there is nothing left to do.
            drop(fs::remove_file(&self.path));
        }
    }
}
