//! Export of a stage, block by block, and of the screen, each into a new file.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use ratatui::buffer::Buffer;
use ratatui::widgets::Widget;

use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::npy::Npy;
use llama_trace_core::trace::{Block, Region, Site};
use llama_trace_picture as picture;
use llama_trace_picture::Format;

use super::app::App;

/// File names that are tried.
const TRIES: usize = 1000;

/// An export under way. Dropped before its end it removes the file, as half a file is worse than none.
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

/// Creates a file in `folder` that is named after an address: `p0_L1_softmax.npy`, or `p0_L1_softmax-2.npy` and so on
/// if that exists.
fn free_file(folder: &Path, address: &str, suffix: &str) -> Result<(PathBuf, File)> {
    let stem = address.replace(['/', ':'], "_");
    let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    for number in 1..=TRIES {
        let name = if number == 1 { format!("{stem}.{suffix}") } else { format!("{stem}-{number}.{suffix}") };
        let path = folder.join(name);
        match OpenOptions::new().read(true).write(true).create_new(true).open(&path) {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(&path, error)),
        }
    }
    Err(Error::output("the stage cannot be exported")
        .in_file(&folder)
        .found(format!("{TRIES} files named {stem}"))
        .next("move some of them away"))
}

/// Draws the screen into a new SVG file in `folder` that is named after the place, and returns its path.
///
/// # Errors
/// [`Error::Output`] if the file cannot be written.
pub fn draw(app: &App, folder: &Path) -> Result<PathBuf> {
    let mut screen = Buffer::empty(app.panels.size);
    app.render(app.panels.size, &mut screen);
    let bytes = picture::encode(&screen, app.theme.paper(), Format::Svg)?;
    let (path, mut file) = free_file(folder, &app.place().path(), "svg")?;
    file.write_all(&bytes).map_err(|error| {
        drop(fs::remove_file(&path));
        failed(&path, error)
    })?;
    Ok(path)
}

impl Saving {
    /// Creates the file in `folder` for the whole stage at `site`, whose shape is that of `block`: `p0_L1_softmax.npy`,
    /// or `p0_L1_softmax-2.npy` and so on if that exists.
    ///
    /// # Errors
    /// [`Error::Output`] if the file cannot be created.
    pub fn begin(site: Site, block: &Block, folder: &Path) -> Result<Self> {
        let (path, file) = free_file(folder, &site.to_string(), "npy")?;
        let shape = block.shape.clone();
        match Npy::begin(site.stage, &shape, file) {
            Ok(file) => Ok(Self { site, shape, path, file, written: 0 }),
            Err(error) => {
                drop(fs::remove_file(&path));
                Err(failed(&path, error))
            }
        }
    }

    /// The exported site.
    pub fn site(&self) -> Site {
        self.site
    }

    /// Number of values written so far.
    pub fn written(&self) -> usize {
        self.written
    }

    /// The written part in percent.
    pub fn percent(&self) -> usize {
        self.written * 100 / self.count().max(1)
    }

    fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// The region of the next value, which the next block must contain.
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

    /// Writes the next values as far as `block` has them. Returns the path of the file after the last value.
    ///
    /// # Errors
    /// [`Error::Output`] if the file cannot be written.
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
            // A failure here cannot be handled.
            drop(fs::remove_file(&self.path));
        }
    }
}
