//! Export of a stage, block by block, and export of the screen. Each goes into a new file.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::task::Poll;

use ratatui::buffer::Buffer;
use ratatui::widgets::Widget;

use llama_trace_core::error::{Error, Result, printable};
use llama_trace_core::trace::npy::Npy;
use llama_trace_core::trace::{Block, InOrder, Region, Site, Source, source};
use llama_trace_picture as picture;
use llama_trace_picture::Format;

use super::app::{App, Shown};
use super::effects::{fail, say};

/// Maximum number of file names that are tried.
const TRIES: usize = 1000;

/// An export under way. If it is dropped before its end, it removes the file, because half a file is worse than none.
#[derive(Debug)]
pub struct Saving {
    site: Site,
    order: InOrder,
    path: PathBuf,
    file: Npy,
}

fn failed(path: &Path, error: std::io::Error) -> Error {
    Error::output("the stage cannot be exported")
        .in_file(path)
        .next(match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                "make room on the disk, or start in a folder on another disk"
            }
            _ => "start in a folder that you may write to",
        })
        .found(error)
}

/// Creates a file in `folder` that is named after an address: `p0_L1_softmax.npy`. If that file exists, the name is
/// `p0_L1_softmax-2.npy`, and so on.
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

/// Draws the screen into a new SVG file in `folder` and returns its path. The file is named after the place.
///
/// # Errors
/// [`Error::Output`] if the file cannot be written.
fn draw(app: &App, folder: &Path) -> Result<PathBuf> {
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
    /// Creates the file in `folder` for the whole stage at `site`; `block` gives its shape. The name is
    /// `p0_L1_softmax.npy`, or `p0_L1_softmax-2.npy` and so on if that file exists.
    ///
    /// # Errors
    /// [`Error::Output`] if the file cannot be created.
    pub fn begin(site: Site, block: &Block, folder: &Path) -> Result<Self> {
        let (path, file) = free_file(folder, &site.to_string(), "npy")?;
        match Npy::begin(site.stage, &block.shape, file) {
            Ok(file) => Ok(Self { site, order: InOrder::new(&block.shape), path, file }),
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
        self.order.taken()
    }

    /// The shape and the type of the values, as numpy prints them: "(4, 12, 12) float32".
    fn what(&self) -> String {
        let lengths: Vec<_> = self.order.shape().iter().map(usize::to_string).collect();
        // A tuple of one number has a comma.
        let comma = if lengths.len() == 1 { "," } else { "" };
        let dtype = match self.site.stage {
            stage if stage.is_ids() => "int64",
            stage if stage.is_int8() => "int8",
            _ => "float32",
        };
        format!("({}{comma}) {dtype}", lengths.join(", "))
    }

    /// The written part in percent.
    pub fn percent(&self) -> usize {
        self.order.percent()
    }

    /// The region of the next value to write, which the next block must contain.
    pub fn next(&self) -> Region {
        self.order.next()
    }

    /// Writes the next values, as far as `block` has them. After the last value, returns the path of the file.
    ///
    /// # Errors
    /// [`Error::Output`] if the file cannot be written.
    pub fn write(&mut self, block: &Block) -> Result<Option<PathBuf>> {
        while let Some((first, values)) = self.order.take(block) {
            self.file.write(first, values).map_err(|error| {
                drop(fs::remove_file(&self.path));
                failed(&self.path, error)
            })?;
        }
        Ok(self.order.is_done().then(|| self.path.clone()))
    }
}

impl Drop for Saving {
    fn drop(&mut self) {
        if !self.order.is_done() {
            // A failure here cannot be handled.
            drop(fs::remove_file(&self.path));
        }
    }
}

/// Begins to write the current stage into `folder`. [`continue_saving`] writes the blocks that come later.
pub fn save(app: &mut App, source: &mut dyn Source, folder: &Path) -> Option<Saving> {
    // The user may have stepped on since the last drawing, and the new step's values have not been asked for yet.
    app.sync(source);
    let Some(tensor) = app.tensor() else {
        match app.shown() {
            Shown::Failed(reason) => fail(app, reason),
            _ => say(app, "there is nothing to export yet: the values are being computed"),
        }
        return None;
    };
    let saving = Saving::begin(app.place().site(), tensor.block(), folder)
        .map_err(|error| fail(app, error.to_string()));
    continue_saving(app, source, saving.ok())
}

/// Writes the blocks of the exported stage that have come. Returns none once the export is complete or was stopped.
pub fn continue_saving(app: &mut App, source: &mut dyn Source, saving: Option<Saving>) -> Option<Saving> {
    let mut saving = saving?;
    let block = match source::block(source, saving.site(), &saving.next()) {
        Poll::Pending => return Some(saving),
        Poll::Ready(block) => block,
    };
    match block.and_then(|block| saving.write(&block)) {
        Ok(Some(path)) => say(app, wrote(&path, &saving.what())),
        Ok(None) => {
            say(app, format!("writing {}: {} %; Esc stops", saving.site(), saving.percent()));
            return Some(saving);
        }
        Err(Error::Interrupted(_)) => say(app, "the export was stopped; e starts it again"),
        Err(error) => fail(app, error.to_string()),
    }
    None
}

/// The message on a written file, which has `what` in it.
fn wrote(path: &Path, what: &str) -> String {
    let size = fs::metadata(path).map_or(String::new(), |file| format!(" · {} bytes", file.len()));
    format!("wrote {} · {what}{size}", printable(&path.display().to_string()))
}

/// Draws the screen into a file in `folder`.
pub fn draw_into(app: &mut App, source: &mut dyn Source, folder: &Path) {
    // The user may have stepped on since the last drawing, and the new step's values have not been asked for yet.
    app.sync(source);
    match draw(app, folder) {
        Ok(path) => {
            let (columns, rows) = app.size();
            say(app, wrote(&path, &format!("a screen of {columns}x{rows}")));
        }
        Err(error) => fail(app, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_for_a_full_disk_is_to_make_room() {
        let said = |kind: ErrorKind| failed(Path::new("p0_tokens.npy"), kind.into()).to_string();
        assert!(said(ErrorKind::StorageFull).contains("make room"));
        assert!(said(ErrorKind::PermissionDenied).contains("a folder that you may write to"));
    }
}
