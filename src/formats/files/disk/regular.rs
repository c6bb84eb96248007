//! Opening of untrusted files: only regular files, and text files only up to a size limit.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::path::Path;

use llama_trace_core::error::{Error, Result};

/// Opens the regular file at `path` and returns it with its size in bytes. Other kinds of file are rejected before they
/// are opened: a FIFO would block, and a device could be endless. If the file is replaced by one of these in between,
/// opening does not block, and the file is rejected afterwards.
///
/// # Errors
/// Returns [`Error::Model`] if there is no such file, if it is of another kind, or if it cannot be opened.
pub fn open_regular(path: &Path) -> Result<(File, u64)> {
    let failed = |error: std::io::Error| {
        Error::model("the file cannot be opened")
            .in_file(path)
            .expected("a readable file")
            .found(error)
            .next("check that it exists and that you may read it")
    };
    let regular = |metadata: std::fs::Metadata| {
        if metadata.is_file() {
            return Ok(metadata.len());
        }
        let found = if metadata.is_dir() { "a directory" } else { "a pipe, socket or device" };
        Err(Error::model("this is not a regular file")
            .in_file(path)
            .expected("a file on disk")
            .found(found)
            .next("give the path of a file"))
    };
    regular(std::fs::metadata(path).map_err(failed)?)?;
    let file = at_once(File::options().read(true)).open(path).map_err(failed)?;
    let size = regular(file.metadata().map_err(failed)?)?;
    Ok((file, size))
}

/// Sets the options for opening without blocking.
pub fn at_once(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
    }
    options
}

/// Sets the options for opening without blocking and without following links, for files that are written.
pub fn itself(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags((OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed());
    }
    options
}

/// Reads a text file of at most `limit` bytes.
///
/// # Errors
/// Returns [`Error::Model`] if the file cannot be read, is larger, or is not UTF-8.
pub fn read_text(path: &Path, limit: u64) -> Result<String> {
    let (file, size) = open_regular(path)?;
    let mut text = String::new();
    if size <= limit {
        // Reads one byte more than allowed, to notice a file that has grown in the meantime.
        file.take(limit + 1).read_to_string(&mut text).map_err(|error| {
            Error::model("the file cannot be read as text")
                .in_file(path)
                .expected("UTF-8 text")
                .found(error)
                .next("fetch the file again")
        })?;
    }
    if size > limit || text.len() as u64 > limit {
        return Err(Error::model("the file is too large for its kind")
            .in_file(path)
            .expected(format!("at most {limit} bytes"))
            .found(format!("{} bytes", size.max(text.len() as u64)))
            .next("check that this is the right file"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        assert!(open_regular(folder.path()).unwrap_err().to_string().contains("a directory"));
        assert!(open_regular(&folder.path().join("none")).is_err());
        #[cfg(unix)]
        assert!(open_regular(Path::new("/dev/zero")).unwrap_err().to_string().contains("device"));
    }

    #[test]
    fn text_is_read_up_to_a_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        std::fs::write(&path, "héllo").unwrap();
        assert_eq!(read_text(&path, 6).unwrap(), "héllo");
        let text = read_text(&path, 5).unwrap_err().to_string();
        assert!(text.contains("at most 5 bytes") && text.contains("6 bytes"), "{text}");
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(read_text(&path, 6).unwrap_err().to_string().contains("UTF-8"));
    }
}
