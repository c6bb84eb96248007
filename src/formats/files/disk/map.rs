//! Memory-mapping of files and release of memory: the only unsafe code for reading files.
#![allow(unsafe_code)]

use std::ops::{Deref, Range};
use std::path::Path;

use memmap2::Mmap;

use super::regular::open_regular;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::tensor::{Bytes, Held};
#[cfg(unix)]
use llama_trace_ending::lost;

/// A mapped file. Access to a part that no longer exists ends the process with a message that names the file.
#[derive(Debug)]
pub struct File {
    #[cfg(unix)]
    _watched: lost::Watched,
    map: Mmap,
}

impl File {
    /// Maps the whole file at `path`, read-only. Its pages are read at the first access, so a file of many gigabytes
    /// opens at once.
    ///
    /// A mapping depends on other processes. If another process shortens the file while it is mapped, access to the
    /// lost pages ends this process (cleanly, see [`lost`]). If another process writes to it, the values change during
    /// use. Only a copy of the file could prevent this, so a model file must not be changed while it is in use.
    ///
    /// # Errors
    /// Returns [`Error::Model`] if the file cannot be opened, is not a regular file, is empty, or cannot be mapped.
    /// Returns [`Error::Prompt`] if there is not enough memory for it.
    fn open(path: &Path) -> Result<Self> {
        let (file, size) = open_regular(path)?;
        if size == 0 {
            return Err(Error::model("the file is empty")
                .in_file(path)
                .expected("a model, a tokenizer or a trace")
                .found("0 bytes")
                .next("fetch or make the file again"));
        }
        // SAFETY: the map is read-only and only shared slices of it are handed out, so nothing in this process changes
        // the bytes. That no other process changes them is the condition in the doc comment. Everyone who runs a
        // program with a mapped model accepts this condition.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| {
            let failed = match error.kind() {
                std::io::ErrorKind::OutOfMemory => Error::prompt("there is not enough memory for the file"),
                _ => Error::model("the file cannot be mapped into memory"),
            };
            failed
                .in_file(path)
                .expected(format!("room for {size} bytes of address space"))
                .found(error)
                .next("raise the process's memory limit (ulimit -v), or use a smaller model")
        })?;
        Ok(Self::new(map, path))
    }

    fn new(map: Mmap, path: &Path) -> Self {
        #[cfg(unix)]
        let error = Error::model(
            "the file cannot be read any more: it became shorter while it was open, or its disk failed",
        )
        .in_file(path)
        .expected(format!("{} bytes, as when it was opened", map.len()))
        .next("start again once no other program writes to the file");
        #[cfg(not(unix))]
        let _ = path;
        Self {
            #[cfg(unix)]
            _watched: lost::watch_memory(map.as_ptr() as usize, map.len(), &error),
            map,
        }
    }
}

impl Deref for File {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

impl Held for File {
    fn give_back(&self, range: Range<usize>) {
        #[cfg(unix)]
        {
            let advice = memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: no code writes to the map, so a page that is read again has the same bytes of the file. If
            // `madvise` fails, this is not an error.
            let _ = unsafe { self.map.unchecked_advise_range(advice, range.start, range.len()) };
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}

/// Maps the file at `path` read-only and returns its bytes. The file must not be changed while it is in use.
///
/// # Errors
/// Returns [`Error::Model`] if the file cannot be opened, is not a regular file, is empty, or cannot be mapped. Returns
/// [`Error::Prompt`] if there is not enough memory for it.
pub fn map(path: &Path) -> Result<Bytes> {
    File::open(path).map(Bytes::held)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_file_has_the_files_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"abc").unwrap();
        assert_eq!(&*File::open(&path).unwrap(), b"abc");
    }

    #[test]
    fn an_empty_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"").unwrap();
        assert!(File::open(&path).unwrap_err().to_string().contains("the file is empty"));
    }

    #[test]
    fn long_stretches_are_compared_to_their_last_byte() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let half = vec![7; (16 << 20) + 5];
        std::fs::write(&path, [&half[..], &half].concat()).unwrap();
        let file = map(&path).unwrap();
        let part = |from: usize, to: usize| file.slice(from..to).unwrap();
        assert!(part(0, half.len()).equal(&part(half.len(), 2 * half.len())));
        assert!(!part(1, half.len()).equal(&part(half.len(), 2 * half.len())));
        let mut other = half.clone();
        other[half.len() - 1] = 8;
        assert!(!part(0, half.len()).equal(&Bytes::owned(other)));
        assert_eq!(file[..], [&half[..], &half].concat(), "they are still there");
    }
}
