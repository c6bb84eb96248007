//! One frame into a file of its own that was not there before.

use std::fs::{self, OpenOptions};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::trace::{Frame, npy};

/// How many names are tried.
const TRIES: usize = 1000;

/// Writes `frame` into `folder` as `p0_L1_softmax.npy`, or `p0_L1_softmax-2.npy` and so on where that is
/// taken, and says where.
///
/// # Errors
/// [`Error::Output`] where nothing can be written there.
pub fn save(frame: &Frame, folder: &Path) -> Result<PathBuf> {
    let stem = frame.site.to_string().replace('/', "_");
    let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let failed = |path: &Path, error: std::io::Error| {
        Error::output("the stage cannot be exported")
            .in_file(path)
            .found(error)
            .next("start in a folder of yours")
    };
    for number in 1..=TRIES {
        let name = if number == 1 { format!("{stem}.npy") } else { format!("{stem}-{number}.npy") };
        let path = folder.join(name);
        let file = match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(failed(&path, error)),
        };
        let mut writer = BufWriter::new(file);
        return match npy::write(frame, &mut writer).and_then(|()| writer.flush()) {
            Ok(()) => Ok(path),
            Err(error) => {
                // Half a file is worse than none; where even that fails, the error tells enough.
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
